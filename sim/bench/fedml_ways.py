"""Ways to average three updates, for FedML-HE's tables: in clear, ours, bare TenSEAL, a part encrypted.

A round is timed as it is lived through, in three phases: "encrypt", one client's work from float32 to
bytes; "aggregate", the server's on everybody's bytes; "decrypt", one client's from bytes to the float32
mean. Clients work at the same time, so the three add up to the round. Seconds are those of the
processor: of the wall, on an idle machine, for all is on one thread. TenSEAL takes vectors in pieces,
so memory does not grow with them.

Bare TenSEAL is CKKS of ring dimension 8192 with one level, scale 2^40, encryption under the public key.
Weights are multiplied by the server, in plaintext, as in the paper's TenSEAL version (Algorithm 1; the
level is for that); or by the client before it encrypts, as in NVIDIA FLARE.

Source: Jin et al., "FedML-HE", Sec. 2.3 and appendix D.7.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.extras import Extras
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.coding.weigh import Weigh
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.ring import Ckks, CkksOpener, CkksSealer
from flhe.schemes.fedml_he.seal_blocks import tenseal
from flhe.schemes.presets import DEFAULT_CKKS
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective, SelectiveOpener, selective_sealer
from flhe.schemes.sum_mac import SumTags
from flhe_lab.bench.contender import SLOT, Contender, Laps, Vector
from flhe_lab.bench.fedml_models import COHORT
from flhe_lab.bench.peers import SLOTS
from flhe_lab.bench.schemes import layout_of, verified

MODULI = (60, 40, 60)
"""Bits of TenSEAL's; the last is the key's."""

GROUP = 64
"""Ciphertexts that are held at a time."""

BITS = 16
"""Of a value under ours."""

EXAMPLES = (200, 300, 500)
"""Of the three clients."""

WEIGHTS = tuple(count / sum(EXAMPLES) for count in EXAMPLES)

Way = Callable[[Sequence[Vector]], Contender]
"""The three updates -> who averages them."""


def updates_of(values: int) -> list[Vector]:
    """One update a client, always the same."""
    rng = np.random.default_rng(2)  # test data; keys and masks never come from here
    return [rng.standard_normal(values, np.float32) * np.float32(0.02) for _ in range(COHORT)]


def mask_of(values: int, ratio: float) -> Support | None:
    """The selection of a random share; None for all, one value for p = 0."""
    if ratio == 1:
        return None
    if ratio == 0:
        return Support.of(np.zeros(1, np.uint32), values)
    return Select(ratio, "random").fixed(layout_of(values))


class Watch:
    """Processor seconds by phase, and bytes, of one turn after the other.

    Attributes
    ----------
    upload, download : int
        Bytes of one client in the last turn.
    mean : Vector
        Of the last turn.
    """

    def __init__(self) -> None:
        self.upload = self.download = 0
        self.mean: Vector = np.empty(0, np.float32)
        self._laps = Laps()

    @contextmanager
    def phase(self, name: str, share: float = 1.0) -> Iterator[None]:
        """Count what is done to this phase; of work done for several clients, one's share."""
        began = time.process_time()
        yield
        self._laps[name] = self._laps.get(name, 0.0) + share * (time.process_time() - began)

    def client(self) -> Any:
        """One client's share of what is done for all."""
        return self.phase("encrypt", 1 / COHORT)

    def end(self, mean: Vector, upload: int, download: int) -> Laps:
        """What the turn took; the next one begins."""
        self.mean, self.upload, self.download = mean, upload, download
        laps, self._laps = self._laps, Laps()
        return laps

    def contender(
        self, name: str, turn: Callable[[], Laps], updates: Sequence[Vector]
    ) -> Contender:
        """Who averages `updates` in one turn."""

        def error() -> float:
            exact = sum(w * u.astype(np.float64) for w, u in zip(WEIGHTS, updates, strict=True))
            return float(np.max(np.abs(self.mean - exact), initial=0.0))

        sizes = lambda: (self.upload, self.download)  # noqa: E731
        return Contender(name, {"round": turn}, error=error, sizes=sizes)


def plain(updates: Sequence[Vector]) -> Contender:
    """FedAvg in clear: float32 to bytes, the weighted sum, bytes to float32."""
    watch = Watch()

    def turn() -> Laps:
        parts = []
        for update in updates:
            with watch.client():
                parts.append(update.tobytes())
        with watch.phase("aggregate"):
            total = np.zeros(updates[0].size, np.float32)
            for weight, part in zip(WEIGHTS, parts, strict=True):
                total += np.frombuffer(part, np.float32) * np.float32(weight)
            down = total.tobytes()
        with watch.phase("decrypt"):
            mean = np.frombuffer(down, np.float32).copy()
        return watch.end(mean, len(parts[0]), len(down))

    return watch.contender("plain", turn, updates)


def ours(mask: Support | None = None, ring: str = DEFAULT_CKKS) -> Way:
    """Clip, weigh and quantize to 16 bits, then our CKKS.

    Timed is all that a client does, with nothing computed ahead, and all that the server does, checks
    included. Making keys is not: it happens once an epoch.

    Parameters
    ----------
    mask : Support, optional
        Which values are encrypted; the others travel in clear, as integers. None: all are.
    ring : str
        Preset.
    """
    ckks, key = Ckks(COHORT, BITS, ring), CkksSecret.generate(ring)
    group_key = secrets.token_bytes(32)
    codec = Chain((Clip(1.0), Weigh(max(EXAMPLES)), Quantize(BITS)))

    def sealer(scheme: Scheme, rank: int) -> Sealer:
        # A fresh sealer each time: one key and slot encrypt repeatedly, random numbers only.
        whole = CkksSealer(ckks, key, group_key, rank)
        return (
            whole
            if mask is None or not isinstance(scheme, Selective)
            else selective_sealer(scheme, whole, mask)
        )

    def opener(scheme: Scheme) -> Opener:
        whole = CkksOpener(ckks, key, group_key)
        if mask is None or not isinstance(scheme, Selective):
            return whole
        return SelectiveOpener(scheme, whole, mask)

    def make(updates: Sequence[Vector]) -> Contender:
        watch, size = Watch(), updates[0].size
        state = codec.init(layout_of(size))
        scheme: Scheme = ckks if mask is None else Selective(ckks, size, mask.count)
        tags = SumTags(group_key, SLOT, size)

        def turn() -> Laps:
            total: Sealed | None = None
            for rank, (update, examples) in enumerate(zip(updates, EXAMPLES, strict=True)):
                sealing, extras = sealer(scheme, rank), Extras().encode(examples, {}, [])
                with watch.client():
                    encoded, _ = codec.encode(Plain(update, extras), state)
                    part = sealing.encrypt(tags.tagged(encoded, rank, BITS), SLOT)
                with watch.phase("aggregate"):
                    total = scheme.add(total, part)
            assert total is not None
            with watch.phase("aggregate"):
                total = scheme.close(total)
            opening = opener(scheme)
            with watch.phase("decrypt"):
                summed = verified(tags, opening.decrypt(total), total, BITS)
                opened, _ = codec.decode(summed, total.senders, state)
                mean = opened.values.astype(np.float32, copy=False)
            sizes = (each.data.size + len(each.header()) for each in (part, total))
            return watch.end(mean, *sizes)

        return watch.contender(f"ours, {ring}", turn, updates)

    return make


def bare(*, server_weighs: bool, moduli: tuple[int, ...] = MODULI) -> Way:
    """Bare TenSEAL, as a user would write it, GROUP ciphertexts at a time.

    Parameters
    ----------
    server_weighs : bool
        Whether the server multiplies by the weights, or the clients.
    moduli : tuple of int
        Bits of the coefficient moduli.
    """
    ts = tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=2 * SLOTS,
        coeff_mod_bit_sizes=list(moduli),
        n_threads=1,
    )
    context.global_scale = 2**40
    public = ts.context_from(context.serialize(save_secret_key=False), n_threads=1)

    def encrypted(values: Vector, weight: float) -> list[bytes]:
        if not server_weighs:
            values = values * np.float32(weight)
        pieces = (values[at : at + SLOTS] for at in range(0, values.size, SLOTS))
        return [ts.ckks_vector(context, piece).serialize() for piece in pieces]

    def aggregated(row: tuple[bytes, ...]) -> bytes:
        total: Any = None
        for weight, data in zip(WEIGHTS, row, strict=True):
            part = ts.ckks_vector_from(public, data)
            if server_weighs:
                part = part.mul_(weight)
            total = part if total is None else total.add_(part)
        serialized: bytes = total.serialize()
        return serialized

    def decrypted(data: bytes) -> NDArray[np.float64]:
        return np.array(ts.ckks_vector_from(context, data).decrypt())

    def make(updates: Sequence[Vector]) -> Contender:
        watch = Watch()

        def turn() -> Laps:
            mean, upload, download = np.empty(updates[0].size, np.float32), 0, 0
            for at in range(0, mean.size, GROUP * SLOTS):
                parts = []
                for weight, update in zip(WEIGHTS, updates, strict=True):
                    with watch.client():
                        parts.append(encrypted(update[at : at + GROUP * SLOTS], weight))
                upload += sum(map(len, parts[0]))
                with watch.phase("aggregate"):
                    down = [aggregated(row) for row in zip(*parts, strict=True)]
                download += sum(map(len, down))
                with watch.phase("decrypt"):
                    opened = np.concatenate([decrypted(data) for data in down])
                    mean[at : at + GROUP * SLOTS] = opened
            return watch.end(mean, upload, download)

        name = f"TenSEAL, {'server' if server_weighs else 'client'}"
        return watch.contender(name, turn, updates)

    return make


def selected(way: Way, mask: Support) -> Way:
    """The values of `mask` under `way`, the rest in clear as float32.

    Taking vectors apart and putting means together counts.
    """
    coords, clear = mask.coords, np.ones(mask.length, bool)
    clear[coords] = False

    def make(updates: Sequence[Vector]) -> Contender:
        watch = Watch()
        inner = way([update[coords] for update in updates])
        rest = plain([update[clear] for update in updates])

        def turn() -> Laps:
            for update in updates:
                with watch.client():
                    one, other = update[coords], update[clear]
            laps = [inner.turn(), rest.turn()]
            mean = np.empty_like(updates[0])
            with watch.phase("decrypt"):
                mean[coords], mean[clear] = one, other
            upload, download = map(sum, zip(inner.known_sizes(), rest.known_sizes(), strict=True))
            return added(watch.end(mean, upload, download), *laps)

        made = watch.contender(inner.name, turn, updates)
        return replace(made, error=lambda: max(e() for e in (inner.error, rest.error) if e))

    return make


def added(*laps: Laps) -> Laps:
    """Seconds of all of them, phase by phase."""
    total = Laps()
    for each in laps:
        for phase, seconds in each.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total
