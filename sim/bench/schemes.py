"""Schemes of ours as contenders."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.math import ring
from flhe.math.prg import random_elements
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.presets import DEFAULT_ESHE, DEFAULT_SASH
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms
from flhe_lab.bench.contender import (
    EXAMPLES,
    MANY,
    SLOT,
    Contender,
    Setting,
    Vector,
    Work,
    averaging,
)
from flhe_lab.bench.federation import Federation, layout_of, terms_of

NARROW = "rns-8192"
"""ESAFL's ring for narrow links, a row of its own."""

MATRIX = "lwr-736"
"""SASH's generator in the paper's form."""

Make = Callable[[Setting, Sequence[Vector]], Contender]


def flashe(setting: Setting, updates: Sequence[Vector], *, ahead: bool = False) -> Contender:
    """FLASHE; with `ahead` also phases "prepare", an upload's masks, and "encrypt_prepared"."""
    terms, key, threads = terms_of("flashe"), secrets.token_bytes(32), setting.threads
    scheme = Flashe(setting.cohort, terms.bits, terms.masking)

    def sealer(rank: int) -> FlasheSealer:
        return FlasheSealer(scheme, key, rank, threads=threads)

    ours = Federation(
        terms,
        scheme,
        lambda rank, plain: sealer(rank).encrypt(plain, SLOT),
        lambda total: FlasheOpener(scheme, key, threads=threads).decrypt(total),
        key,
        lambda sums, part: scheme.packing.add(sums.data, part.data, sums.length),
    )
    note = f"{terms.masking} masking, {terms.bits} bits, {scheme.lane_bits} on the wire"
    made = ours.contender("flashe", setting, updates, note=note)
    if not ahead:
        return made
    encoded, ready = ours.encoder(setting, updates), sealer(0)
    length = setting.values + terms.trailer_lanes(layout_of(setting.values))

    def prepare() -> None:
        nonlocal ready
        ready = sealer(0)
        ready.prepare(SLOT, length)

    more: dict[str, Work] = {
        "encrypt": made.phases["encrypt"],
        "prepare": prepare,
        "encrypt_prepared": lambda: ready.encrypt(encoded(0), SLOT),
    }
    return replace(made, phases={**more, **made.phases})


def plain(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """FedAvg in clear: weigh, add, divide, in float32."""
    weight, mine = np.float32(EXAMPLES), [updates[j] for j in setting.survivors]
    total, running = np.zeros(setting.values, np.float32), np.zeros(setting.values, np.float32)
    for update in mine:
        total += update * weight
    factor = np.float32(1 / (EXAMPLES * len(mine)))
    return averaging(
        "plain",
        lambda: mine[0] * weight,
        lambda: np.add(running, mine[0], out=running),
        lambda: total * factor,
        mine,
        note="FedAvg in clear: weigh, add, divide",
        upload_bytes=4 * setting.values,
        sum_bytes=4 * setting.values,
    )


def sash(setting: Setting, updates: Sequence[Vector], preset: str = DEFAULT_SASH) -> Contender:
    """SASH: quantize, draw a seed, expand the mask, add.

    The agreement on the sum of seeds does not depend on the update's length and is timed elsewhere.
    Only the default preset takes part as often as the others.
    """
    from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer

    scheme = Sash(setting.cohort, 0, preset)
    seeds: dict[int, Any] = {}

    def seal(rank: int, encoded: Plain) -> Sealed:
        sealer = SashSealer(scheme, rank, threads=setting.threads)
        sealed = sealer.encrypt(encoded, SLOT)
        seeds.setdefault(rank, sealer.take_seed(SLOT))  # the first is in the sum
        return sealed

    @functools.cache
    def agreed() -> Any:
        return functools.reduce(ring.add, seeds.values())

    def opened(total: Sealed) -> Any:
        return SashOpener(scheme, agreed(), threads=setting.threads).decrypt(total)

    def add(sums: Sealed, part: Sealed) -> None:
        lanes = sums.data.view(np.uint32)
        np.add(lanes, part.data.view(np.uint32), out=lanes)

    terms = terms_of("sash", bits=0).resolved(setting.cohort)
    return Federation(terms, scheme, seal, opened, add=add).contender(
        _named("sash", preset, DEFAULT_SASH),
        setting,
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
    from flhe.schemes.esafl.keys import EsaflKey, Total, draw_own
    from flhe.schemes.esafl.scheme import Esafl, EsaflOpener, EsaflSealer

    mine, threads = [updates[j] for j in setting.survivors], setting.threads
    terms = terms_of("esafl", ring=ring_name).resolved(len(mine))
    scheme = terms.for_cohort(len(mine))
    assert isinstance(scheme, Esafl)
    sizes, key = scheme.sizes, secrets.token_bytes(32)
    owns = [draw_own(sizes.n) for _ in mine]
    s: Total = np.add.reduce(owns, dtype=np.int32)

    def seal(rank: int, encoded: Plain) -> Sealed:
        sealer = EsaflSealer(scheme, key, rank, EsaflKey(owns[rank], s), threads=threads)
        return sealer.encrypt(encoded, SLOT)

    def opened(total: Sealed) -> Any:
        return EsaflOpener(scheme, key, s, threads=threads).decrypt(total)

    return Federation(terms, scheme, seal, opened, key).contender(
        _named("esafl", ring_name, DEFAULT_ESHE),
        Setting(setting.values, len(mine), 0, threads),
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
        BatchCrypt,
        BatchCryptOpener,
        BatchCryptSealer,
    )

    key_bits, threads = key_bits or DEFAULT_KEY_BITS, setting.threads
    terms, key = terms_of("batchcrypt", key_bits=key_bits), SecretKey.generate(key_bits)
    scheme = terms.for_cohort(setting.cohort, public=key.public.to_bytes())
    assert isinstance(scheme, BatchCrypt)
    # Always the same: exponents are drawn afresh, and tags here protect nothing but random numbers.
    group_key = bytes(32)

    def seal(rank: int, encoded: Plain) -> Sealed:
        return BatchCryptSealer(scheme, key, group_key, rank, threads=threads).encrypt(
            encoded, SLOT
        )

    def opened(total: Sealed) -> Any:
        return BatchCryptOpener(scheme, key, group_key, threads=threads).decrypt(total)

    slots = scheme.batch
    count = slots.batches(setting.values + terms.trailer_lanes(layout_of(setting.values)))
    return Federation(terms, scheme, seal, opened).contender(
        "batchcrypt" if key_bits == DEFAULT_KEY_BITS else f"batchcrypt {key_bits}",
        setting,
        updates,
        note=f"Paillier, {key_bits} bits; {count:,} ciphertexts of {slots.per} values, each of "
        f"{terms.bits} bits in {slots.width}; at most 3 repeats",
        max_repeats=3,
    )


def fedml_terms(share: float) -> Terms:
    """FedML-HE with so much encrypted; which values does not matter, so they are random ones."""
    return terms_of("fedml-he", weighted=share == 1, select=Select(share, "random"))


def fedml(setting: Setting, updates: Sequence[Vector], share: float = 1.0) -> Contender:
    """FedML-HE: CKKS of all of an update, or of a share; TenSEAL's context is built once."""
    from flhe.schemes.fedml_he.keys import CkksSecret
    from flhe.schemes.fedml_he.ring import FedmlHe, FedmlHeOpener, FedmlHeSealer
    from flhe.schemes.selective import Selective, SelectiveOpener, SelectiveSealer

    terms, layout, threads = fedml_terms(share), layout_of(setting.values), setting.threads
    whole = terms.for_cohort(setting.cohort)
    assert isinstance(whole, FedmlHe)
    secret, key = CkksSecret.generate(whole.ring), secrets.token_bytes(32)
    whole = replace(whole, public=secret.public(whole.sizes))
    scheme: Any = terms.selective(whole, layout)
    part = isinstance(scheme, Selective)
    opener: Any = FedmlHeOpener(whole, secret, key, threads=threads)
    if part:
        opener = SelectiveOpener(scheme, opener, terms.select.fixed(layout), threads)

    def seal(rank: int, encoded: Plain) -> Sealed:
        sealer: Any = FedmlHeSealer(whole, secret, key, rank, threads=threads)
        if part:
            sealer = SelectiveSealer(scheme, sealer, terms.select.fixed(layout), threads)
        sealed: Sealed = sealer.encrypt(encoded, SLOT)
        return sealed

    sizes = whole.sizes
    return Federation(terms, scheme, seal, opener.decrypt, key).contender(
        "fedml-he" if share == 1 else f"fedml-he select {share:g}",
        setting,
        updates,
        note=f"ring {whole.ring}, log q = {sizes.q.bit_length()}, {sizes.per} values of "
        f"{whole.bits} bits in a slot",
    )


def fedml_clear(setting: Setting, updates: Sequence[Vector], share: float) -> Contender:
    """What selecting `share` leaves in clear, alone: quantized, packed, added, unpacked."""
    from flhe.schemes.selective import Selective, pack_clear, unpack_clear

    terms = fedml_terms(share)
    scheme = terms.selective(terms.for_cohort(setting.cohort), layout_of(setting.values))
    assert isinstance(scheme, Selective)
    count, packing, threads = scheme.rest, scheme.packing, setting.threads
    codec, senders = terms.codec(), setting.survivors
    state, extras = codec.init(layout_of(count)), Extras().encode(1, {}, [])
    update = updates[0][:count].copy()
    one, _ = codec.encode(Plain(update, extras), state)
    summed = one.extras.astype(np.int64) * len(senders)

    def encode() -> Any:
        encoded, _ = codec.encode(Plain(update, extras), state)
        return pack_clear(packing, encoded.values, threads)

    part = encode()
    total, running = part.copy(), part.copy()
    for _ in senders[1:]:
        packing.add(total, part, count)

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
