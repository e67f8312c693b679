"""Schemes of ours as contenders: from float32 update to upload, from sum to float32 mean.

Nothing is computed ahead of time. Making keys is not timed, since it happens once an epoch. A fresh
sealer each time is what lets one process encrypt repeatedly in one slot; it protects nothing but random
numbers. `add` is what the server does for one upload.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.chain import Chain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.errors import ConfigError, FlheError
from flhe.math import ring
from flhe.math.prg import random_elements
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.presets import DEFAULT_ESHE, DEFAULT_SASH
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumTags
from flhe.training.terms import Terms
from flhe_lab.bench.contender import (
    EXAMPLES,
    MANY,
    SLOT,
    Contender,
    Setting,
    Vector,
    Work,
    worst,
)

NARROW = "rns-8192"
"""ESAFL's ring for narrow links, a row of its own."""

MATRIX = "lwr-736"
"""SASH's generator in the paper's form."""

Make = Callable[[Setting, Sequence[Vector]], Contender]


def layout_of(values: int) -> Layout:
    """A model of one array."""
    return Layout((Entry("update", (values,), "float32"),))


class Coded:
    """Updates to integers and back, as every client of one federation does it.

    Parameters
    ----------
    codec : Chain
        Clips, weighs, quantizes.
    updates : sequence of Vector
        By rank.
    tags : SumTags, optional
        Of schemes whose sealers make none.
    bits : int
        Of a value, where there are tags.
    examples : int
        Of each client.
    """

    def __init__(
        self,
        codec: Chain,
        updates: Sequence[Vector],
        tags: SumTags | None = None,
        bits: int = 0,
        examples: int = EXAMPLES,
    ) -> None:
        self.values = updates[0].size
        self._codec, self._updates, self._tags, self._bits = codec, updates, tags, bits
        self._state = codec.init(layout_of(self.values))
        self._extras = Extras().encode(examples, {}, [])

    def plain(self, rank: int) -> Plain:
        """What a client's sealer is given."""
        plain, _ = self._codec.encode(Plain(self._updates[rank], self._extras), self._state)
        return plain if self._tags is None else self._tags.tagged(plain, rank, self._bits)

    def mean(self, lanes: NDArray[Any], total: Sealed) -> Vector:
        """What a reader makes of an opened sum."""
        if self._tags is None:
            plain = Plain(lanes[: self.values], lanes[self.values :])
        else:
            plain = verified(self._tags, lanes, total, self._bits)
        opened, _ = self._codec.decode(plain, total.senders, self._state)
        return opened.values


def verified(
    tags: SumTags,
    lanes: NDArray[Any],
    total: Sealed,
    bits: int,
    coords: NDArray[np.uint32] | None = None,
) -> Plain:
    """What an opened sum holds, once its tags are seen to fit; `coords` of a sparse one."""
    values = tags.floats if coords is None else coords.size
    whole = Plain(lanes[:values], lanes[values:], coords)
    bounds = [support.digest() for support in total.supports]
    plain, fits = tags.matching(whole, total.senders, bits, bounds)
    if not all(fits):
        raise FlheError(f"{total.scheme}: the tags of a sum do not fit")
    return plain


def nbytes(sealed: Sealed) -> int:
    """Bytes that travel."""
    return sum(map(len, (*sealed.body(), sealed.header())))


class Adder(Protocol):
    """What adds ciphertexts: every `Scheme` does."""

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold one in."""

    def close(self, total: Sealed) -> Sealed:
        """End a sum."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one scheme seals, adds and opens.

    Parameters
    ----------
    scheme : Adder
        Adds.
    seal : callable
        Rank -> its upload.
    open : callable
        Closed sum -> float32 mean.
    add : callable, optional
        (running sum, upload) -> what is timed of adding, where it is less than the scheme's `add`.
    """

    scheme: Adder
    seal: Callable[[int], Sealed]
    open: Callable[[Sealed], Vector]
    add: Callable[[Sealed, Sealed], object] | None = None


def contender(
    name: str, way: Way, ranks: Sequence[int], updates: Sequence[Vector], **known: Any
) -> Contender:
    """A contender of `ranks`, who upload; `known` as in `Contender`.

    Parameters
    ----------
    updates : sequence of Vector
        Whose float64 mean, over `ranks`, the mean is held against; unless `known` has an error.
    """
    parts = [way.seal(rank) for rank in ranks]
    total: Sealed | None = None
    for part in parts:
        total = way.scheme.add(total, part)
    assert total is not None
    closed = way.scheme.close(total)
    # `add` is timed on a running sum of its own: what it holds does not matter, its size does.
    running = way.scheme.add(None, replace(parts[0], senders=(0,)))
    more = replace(parts[1], senders=(1,))
    add = way.add or (lambda sums, part: way.scheme.add(replace(sums), part))
    mean = np.empty(0, np.float32)

    def decrypt() -> None:
        nonlocal mean
        mean = way.open(closed)

    error = known.pop("error", None)
    return Contender(
        name,
        {"encrypt": lambda: way.seal(ranks[0]), "add": lambda: add(running, more)}
        | {"decrypt": decrypt},
        upload_bytes=nbytes(parts[0]),
        sum_bytes=nbytes(closed),
        error=lambda: error(mean) if error else worst(mean, [updates[j] for j in ranks]),
        **known,
    )


def _flashe(setting: Setting, updates: Sequence[Vector]) -> tuple[Flashe, Terms, Coded, bytes]:
    terms = Terms(clip=1.0, max_examples=EXAMPLES, metrics=())
    scheme = Flashe(setting.cohort, terms.bits, terms.masking)
    key = secrets.token_bytes(32)
    tags = SumTags(key, SLOT, setting.values, setting.threads)
    return scheme, terms, Coded(terms.codec(), updates, tags, scheme.bits), key


def flashe(setting: Setting, updates: Sequence[Vector], *, ahead: bool = False) -> Contender:
    """FLASHE; with `ahead` also phases "prepare", an upload's masks, and "encrypt_prepared"."""
    scheme, terms, coded, key = _flashe(setting, updates)

    def sealer(rank: int) -> FlasheSealer:
        return FlasheSealer(scheme, key, rank, threads=setting.threads)

    def opened(total: Sealed) -> Vector:
        lanes = FlasheOpener(scheme, key, threads=setting.threads).decrypt(total)
        return coded.mean(lanes, total)

    way = Way(
        scheme,
        lambda rank: sealer(rank).encrypt(coded.plain(rank), SLOT),
        opened,
        lambda sums, part: scheme.packing.add(sums.data, part.data, sums.length),
    )
    note = f"{terms.masking} masking, {terms.bits} bits, {scheme.lane_bits} on the wire"
    made = contender("flashe", way, setting.survivors, updates, note=note)
    if not ahead:
        return made
    ready = sealer(0)
    length = setting.values + terms.trailer_lanes(layout_of(setting.values))

    def prepare() -> None:
        nonlocal ready
        ready = sealer(0)
        ready.prepare(SLOT, length)

    more: dict[str, Work] = {
        "encrypt": made.phases["encrypt"],
        "prepare": prepare,
        "encrypt_prepared": lambda: ready.encrypt(coded.plain(0), SLOT),
    }
    return replace(made, phases={**more, **made.phases})


def plain(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """FedAvg in clear: weigh, add, divide, in float32."""
    weight = np.float32(EXAMPLES)
    total = np.zeros(setting.values, np.float32)
    for j in setting.survivors:
        total += updates[j] * weight
    running, mean = np.zeros(setting.values, np.float32), np.empty(0, np.float32)
    factor = np.float32(1 / (EXAMPLES * len(setting.survivors)))

    def decrypt() -> None:
        nonlocal mean
        mean = total * factor

    return Contender(
        "plain",
        {
            "encrypt": lambda: updates[0] * weight,
            "add": lambda: np.add(running, updates[0], out=running),
            "decrypt": decrypt,
        },
        note="FedAvg in clear: weigh, add, divide",
        upload_bytes=4 * setting.values,
        error=lambda: worst(mean, [updates[j] for j in setting.survivors]),
    )


def sash(setting: Setting, updates: Sequence[Vector], preset: str = DEFAULT_SASH) -> Contender:
    """SASH: quantize, draw a seed, expand the mask, add.

    The agreement on the sum of seeds does not depend on the update's length and is timed elsewhere.
    Only the default preset takes part as often as the others.
    """
    from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer

    scheme = Sash(setting.cohort, 0, preset)
    terms = Terms("sash", 0, 1.0, EXAMPLES, metrics=()).resolved(setting.cohort)
    coded = Coded(terms.codec(), updates)
    seeds: dict[int, Any] = {}

    def seal(rank: int) -> Sealed:
        sealer = SashSealer(scheme, rank, threads=setting.threads)
        sealed = sealer.encrypt(coded.plain(rank), SLOT)
        seeds.setdefault(rank, sealer.take_seed(SLOT))  # the first is in the sum
        return sealed

    @functools.cache
    def agreed() -> Any:
        return functools.reduce(ring.add, seeds.values())

    def opened(total: Sealed) -> Vector:
        opener = SashOpener(scheme, agreed(), threads=setting.threads)
        return coded.mean(opener.decrypt(total), total)

    def add(sums: Sealed, part: Sealed) -> None:
        lanes = sums.data.view(np.uint32)
        np.add(lanes, part.data.view(np.uint32), out=lanes)

    return contender(
        _named("sash", preset, DEFAULT_SASH),
        Way(scheme, seal, opened, add),
        setting.survivors,
        updates,
        note=f"{scheme.bits} bits a value, 32 on the wire; {preset}",
        max_repeats=MANY if preset == DEFAULT_SASH else 3,
    )


def sash_mask(setting: Setting, preset: str = DEFAULT_SASH) -> Contender:
    """Of SASH's client, the mask alone: draw a seed, expand `a`, transform, round."""
    from flhe.schemes.sash.scheme import Sash

    generator = Sash(setting.cohort, 0, preset).generator(SLOT)
    dimension = generator.preset.dimension
    out = np.empty(setting.values, np.uint32)
    return Contender(
        _named("sash mask", preset, DEFAULT_SASH),
        {"encrypt": lambda: generator.into(random_elements(dimension), out, setting.threads)},
        "part",
        "of encrypt, the mask alone",
        max_repeats=MANY if preset == DEFAULT_SASH else 3,
    )


def _named(scheme: str, which: str, usual: str) -> str:
    return scheme if which == usual else f"{scheme} {which}"


def esafl(setting: Setting, updates: Sequence[Vector], ring_name: str = DEFAULT_ESHE) -> Contender:
    """ESAFL: quantize, draw the error, expand `a`, transform, add, pack.

    Who drops out does so before keys are agreed on: the cohort is that of the survivors.
    """
    from flhe.schemes.esafl.keys import EsheKey, Total, draw_own
    from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer

    terms = Terms("esafl", clip=1.0, max_examples=EXAMPLES, metrics=(), ring=ring_name)
    mine = [updates[j] for j in setting.survivors]
    scheme = terms.for_cohort(len(mine))
    assert isinstance(scheme, Eshe)
    sizes, key, threads = scheme.sizes, secrets.token_bytes(32), setting.threads
    tags = SumTags(key, SLOT, setting.values, threads)
    coded = Coded(terms.resolved(len(mine)).codec(), mine, tags, scheme.bits)
    owns = [draw_own(sizes.n) for _ in mine]
    s: Total = np.add.reduce(owns, dtype=np.int32)

    def seal(rank: int) -> Sealed:
        sealer = EsheSealer(scheme, key, rank, EsheKey(owns[rank], s), threads=threads)
        return sealer.encrypt(coded.plain(rank), SLOT)

    def opened(total: Sealed) -> Vector:
        return coded.mean(EsheOpener(scheme, key, s, threads=threads).decrypt(total), total)

    return contender(
        _named("esafl", ring_name, DEFAULT_ESHE),
        Way(scheme, seal, opened),
        range(len(mine)),
        mine,
        note=f"{ring_name}, log q = {sizes.slots.q.bit_length()}; {sizes.slots.per} values of "
        f"{scheme.bits} bits in {len(sizes.slots.moduli)} x {sizes.limb_bits}",
    )


def batchcrypt(setting: Setting, updates: Sequence[Vector], key_bits: int = 0) -> Contender:
    """BatchCrypt: quantize, batch, draw the powers r^n, multiply; fixed-base tables are made anew.

    `add` checks the ciphertexts. A modulus of `key_bits` bits; 0 for the usual one.
    """
    from flhe.schemes.batchcrypt.keys import SecretKey
    from flhe.schemes.batchcrypt.scheme import (
        DEFAULT_KEY_BITS,
        Paillier,
        PaillierOpener,
        PaillierSealer,
    )

    key_bits = key_bits or DEFAULT_KEY_BITS
    terms = Terms("batchcrypt", clip=1.0, max_examples=EXAMPLES, metrics=(), key_bits=key_bits)
    key = SecretKey.generate(key_bits)
    scheme = terms.for_cohort(setting.cohort, public=key.public.to_bytes())
    assert isinstance(scheme, Paillier)
    coded, threads = Coded(terms.codec(), updates), setting.threads
    # Always the same: exponents are drawn afresh, and tags here protect nothing but random numbers.
    group_key = bytes(32)

    def seal(rank: int) -> Sealed:
        sealer = PaillierSealer(scheme, key, group_key, rank, threads=threads)
        return sealer.encrypt(coded.plain(rank), SLOT)

    def opened(total: Sealed) -> Vector:
        opener = PaillierOpener(scheme, key, group_key, threads=threads)
        return coded.mean(opener.decrypt(total), total)

    slots = scheme.batch
    count = slots.batches(setting.values + terms.trailer_lanes(layout_of(setting.values)))
    return contender(
        "batchcrypt" if key_bits == DEFAULT_KEY_BITS else f"batchcrypt {key_bits}",
        Way(scheme, seal, opened),
        setting.survivors,
        updates,
        note=f"Paillier, {key_bits} bits; {count:,} ciphertexts of {slots.per} values, each of "
        f"{terms.bits} bits in {slots.width}; at most 3 repeats",
        max_repeats=3,
    )


def fedml_terms(share: float) -> Terms:
    """FedML-HE with so much encrypted; which values does not matter, so they are random ones."""
    return Terms(
        "fedml-he",
        clip=1.0,
        max_examples=EXAMPLES,
        weighted=share == 1,
        metrics=(),
        select=Select(share, "random"),
    )


def fedml(setting: Setting, updates: Sequence[Vector], share: float = 1.0) -> Contender:
    """FedML-HE: CKKS of all of an update, or of a share; TenSEAL's context is built once."""
    from flhe.schemes.fedml_he.keys import CkksSecret
    from flhe.schemes.fedml_he.ring import Ckks, CkksOpener, CkksSealer
    from flhe.schemes.selective import Selective, SelectiveOpener, SelectiveSealer

    terms, layout = fedml_terms(share), layout_of(setting.values)
    whole = terms.for_cohort(setting.cohort)
    assert isinstance(whole, Ckks)
    secret = CkksSecret.generate(whole.ring)
    whole = replace(whole, public=secret.public(whole.sizes))
    scheme: Any = terms.selective(whole, layout)
    key, threads = secrets.token_bytes(32), setting.threads
    tags = SumTags(key, SLOT, setting.values, threads)
    examples = EXAMPLES if share == 1 else 1
    coded = Coded(terms.codec(), updates, tags, terms.bits, examples)
    opener: Any = CkksOpener(whole, secret, key, threads=threads)
    if isinstance(scheme, Selective):
        opener = SelectiveOpener(scheme, opener, terms.select.fixed(layout), threads)

    def seal(rank: int) -> Sealed:
        plain = coded.plain(rank)
        sealer: Any = CkksSealer(whole, secret, key, rank, threads=threads)
        if isinstance(scheme, Selective):
            sealer = SelectiveSealer(scheme, sealer, terms.select.fixed(layout), threads)
        sealed: Sealed = sealer.encrypt(plain, SLOT)
        return sealed

    sizes = whole.sizes
    return contender(
        "fedml-he" if share == 1 else f"fedml-he select {share:g}",
        Way(scheme, seal, lambda total: coded.mean(opener.decrypt(total), total)),
        setting.survivors,
        updates,
        note=f"ring {whole.ring}, log q = {sizes.q.bit_length()}, {sizes.per} values of "
        f"{whole.bits} bits in a slot",
    )


def fedml_clear(setting: Setting, updates: Sequence[Vector], share: float) -> Contender:
    """What selecting `share` leaves in clear, alone: quantized, packed, added, unpacked."""
    from flhe.schemes.selective import Selective, pack_clear, unpack_clear

    terms, whole = fedml_terms(share), layout_of(setting.values)
    scheme = terms.selective(terms.for_cohort(setting.cohort), whole)
    assert isinstance(scheme, Selective)
    count, packing, threads = scheme.rest, scheme.packing, setting.threads
    codec, layout = terms.codec(), layout_of(count)
    state, extras = codec.init(layout), Extras().encode(1, {}, [])
    update, senders = updates[0][:count].copy(), setting.survivors

    def encode() -> Any:
        plain, _ = codec.encode(Plain(update, extras), state)
        return pack_clear(packing, plain.values, threads)

    part = encode()
    total, running = part.copy(), part.copy()
    for _ in range(len(senders) - 1):
        packing.add(total, part, count)
    one, _ = codec.encode(Plain(update, extras), state)
    summed = one.extras.astype(np.int64) * len(senders)

    def decode() -> None:
        sums = unpack_clear(packing, total, count, threads)
        codec.decode(Plain(sums, summed), senders, state, reuse=True)

    return Contender(
        f"its clear part, {count / setting.values:g}",
        {"encrypt": encode, "add": lambda: packing.add(running, part, count), "decrypt": decode},
        "part",
        f"{packing.bits} bits a value",
        upload_bytes=part.size,
    )


SCHEMES: dict[str, Make] = {
    "flashe": flashe,
    "sash": sash,
    "batchcrypt": batchcrypt,
    "esafl": esafl,
    "fedml-he": fedml,
    "plain": plain,
}
"""Name -> how to make it take part."""


def scheme_named(name: str) -> Make:
    """How to make a scheme take part; ConfigError for one that nobody knows."""
    if name not in SCHEMES:
        raise ConfigError(f"unknown scheme {name!r}; choose from {', '.join(SCHEMES)}")
    return SCHEMES[name]
