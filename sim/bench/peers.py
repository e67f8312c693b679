"""What a user would pick instead, on the same vector: TenSEAL's CKKS and BFV, python-paillier.

All clients upload client 0's ciphertexts under TenSEAL, unless it is said: encrypting ten updates would
take minutes and show nothing more, since adding costs the same whatever is inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.math.ring import is_prime
from flhe.packages import require
from flhe_lab.bench.contender import Contender, Setting, Vector, Work, averaging

SLOTS = 4096
"""Values in one ciphertext of CKKS's ring dimension 8192, and of BFV's 4096."""

MODULI = ((60, 40, 40), (60, 60))
"""CKKS's, in bits, the key's last."""

SCALE = 40
"""Bits of CKKS's scale, as FLASHE and TenSEAL's examples have it."""

SHORT_SCALE = 33
"""Bits of the shortest CKKS's scale: errors of a sum stay below a step of 16 bits."""

BFV_NOISE_BITS = 14
"""Room for the noise of one ciphertext of this dimension."""

BITS = 16
"""Bits of a value under BFV, sign included."""

LEVELS = (1 << (BITS - 1)) - 1
REPEATS = 5
Weighs = Literal["", "client", "server"]


@dataclass(frozen=True, slots=True)
class Tenseal:
    """TenSEAL under chosen parameters."""

    name: str  # Of its row
    context: Any  # With all keys
    vector: Any  # Of its ciphertexts
    slots: int  # Values in one of them
    levels: int = 0  # What 1 is quantized to; 0 for real numbers
    weighs: Weighs = ""
    """Who multiplies by weights, the server under encryption; by default sums are divided."""
    wire: bool = False  # Whether uploads and the sum are bytes

    def encrypt(self, values: Vector, weight: float = 1.0) -> list[Any]:
        """One client's upload."""
        x: NDArray[Any] = values * np.float32(weight) if self.weighs == "client" else values
        if self.levels:
            x = np.rint(np.clip(x.astype(np.float64), -1, 1) * self.levels).astype(np.int64)
        starts = range(0, x.size, self.slots)
        parts = [self.vector(self.context, x[at : at + self.slots]) for at in starts]
        return [part.serialize() for part in parts] if self.wire else parts

    def begin(self, part: Sequence[Any], weight: float = 1.0) -> list[Any]:
        """A running sum of one upload."""
        # By way of bytes in any case: TenSEAL's own `copy` takes a hundred times as long.
        return [self._read(each if self.wire else each.serialize(), weight) for each in part]

    def add(self, total: Sequence[Any], part: Sequence[Any], weight: float = 1.0) -> None:
        """Add an upload to a running sum."""
        for sums, each in zip(total, part, strict=True):
            sums.add_(self._read(each, weight) if self.wire else each)

    def close(self, total: Sequence[Any]) -> list[Any]:
        """What comes back to the clients."""
        return [each.serialize() for each in total] if self.wire else list(total)

    def opened(self, total: Sequence[Any]) -> NDArray[np.float64]:
        """The values of a sum."""
        parts = (self.vector.load(self.context, each) if self.wire else each for each in total)
        return np.concatenate([np.array(part.decrypt(), np.float64) for part in parts]) / (
            self.levels or 1
        )

    def contender(
        self, setting: Setting, updates: Sequence[Vector], about: str = "", *, alike: bool = True
    ) -> Contender:
        """It, at work on `updates`.

        `about` is what its note says of the parameters. With `alike` all upload client 0's ciphertexts.
        """
        mine = [updates[j] for j in setting.survivors]
        weight, divisor = 1 / len(mine), 1 if self.weighs else len(mine)
        first = self.encrypt(mine[0], weight)
        parts = [first] * len(mine) if alike else [self.encrypt(u, weight) for u in mine]
        total, running = self.begin(parts[0], weight), self.begin(parts[0], weight)
        for part in parts[1:]:
            self.add(total, part, weight)
        closed = self.close(total)
        size = sum(len(each) if self.wire else len(each.serialize()) for each in first)
        whose = "every client uploads client 0's" if alike else "every client its own"
        made = averaging(
            self.name,
            lambda: self.encrypt(mine[0], weight),
            lambda: self.add(running, parts[1], weight),
            lambda: (self.opened(closed) / divisor).astype(np.float32),
            mine[:1] if alike else mine,
            kind="peer",
            note=f"TenSEAL {tenseal().__version__}, {about}{len(first)} ciphertexts, {whose}; "
            f"at most {REPEATS} repeats",
            upload_bytes=size,
            sum_bytes=sum(map(len, closed)) if self.wire else None,
            max_repeats=REPEATS,
        )
        if self.wire:
            close: dict[str, Work] = {"close": lambda: self.close(running)}
            made = replace(made, phases={**made.phases, **close})
        return made

    def _read(self, data: bytes, weight: float) -> Any:
        part = self.vector.load(self.context, data)
        return part.mul_(weight) if self.weighs == "server" else part


def tenseal_ckks(
    moduli: Sequence[int] = (),
    scale: int = SCALE,
    dimension: int = 2 * SLOTS,
    slots: int = 0,
    threads: int = 1,
    **how: Any,
) -> Tenseal:
    """CKKS, as many values a ciphertext as there are slots, unless said; `how` as in `Tenseal`.

    Without `moduli` it takes SEAL's own for the dimension, 218 bits of 8192, as FLASHE's peer does
    (Sec. 5.4). The scale is 2**`scale`; 2**40 is theirs too.
    """
    ts = tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=dimension,
        coeff_mod_bit_sizes=list(moduli),  # none: SEAL's own
        n_threads=threads,
    )
    context.global_scale = 2.0**scale
    name = f"tenseal-ckks-{dimension}-{'-'.join(map(str, moduli)) or 'default'}"
    name += "" if scale == SCALE else f", scale 2^{scale}"
    return Tenseal(name, context, ts.CKKSVector, slots or dimension // 2, **how)


def ckks(
    setting: Setting, updates: Sequence[Vector], moduli: Sequence[int] = (), **how: Any
) -> Contender:
    """CKKS, ring dimension 8192, 4096 values a ciphertext unless said; see `tenseal_ckks`."""
    return tenseal_ckks(moduli, threads=setting.threads, **how).contender(setting, updates)


def shortest_moduli(cohort: int) -> tuple[int, int]:
    """Bits of the shortest CKKS's two moduli; the second is the key's, as long as SEAL takes it."""
    return SHORT_SCALE + cohort.bit_length() + 1, 60


def shortest_ckks(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """CKKS without a level to spare: the data's modulus holds a sum of values below 1, and its sign."""
    return ckks(setting, updates, shortest_moduli(setting.cohort), scale=SHORT_SCALE)


def bfv(
    setting: Setting,
    updates: Sequence[Vector],
    dimension: int = SLOTS,
    modulus: int = 0,
    slots: int = 0,
) -> Contender:
    """BFV: as many integers of 16 bits a ciphertext as its ring dimension is, or `slots`.

    `modulus` is that of plaintexts, under SEAL's own coefficient moduli. By default all are as short as
    may be: the smallest prime that gives batching and holds the sum of all clients' largest values, and
    the pair of moduli, the key's last, that leaves room for a sum and its noise. With `slots` the
    coefficient moduli are SEAL's own in any case.
    """
    ts = tenseal()
    moduli: tuple[int, ...] = ()  # SEAL's own
    if not modulus:
        modulus = plain_modulus(2 * setting.cohort * LEVELS, 2 * dimension)
        if not slots:
            # The noise of a sum of one and the same ciphertext grows with the cohort.
            moduli = (modulus.bit_length() + setting.cohort.bit_length() + BFV_NOISE_BITS,) * 2
    context = ts.context(
        ts.SCHEME_TYPE.BFV,
        poly_modulus_degree=dimension,
        plain_modulus=modulus,
        coeff_mod_bit_sizes=list(moduli),
        n_threads=setting.threads,
    )
    name = f"tenseal-bfv-{dimension}-{'-'.join(map(str, moduli)) or 'default'}"
    made = Tenseal(name, context, ts.BFVVector, slots or dimension, LEVELS)
    about = f"{BITS} bits a value, plain modulus {modulus}, "
    return made.contender(setting, updates, about)


def plain_modulus(above: int, step: int) -> int:
    """Smallest prime above `above` that is 1 modulo `step`: BFV batches under such a modulus."""
    first = above // step * step + step + 1
    return next(number for number in itertools.count(first, step) if is_prime(number))


def peers(setting: Setting, updates: Sequence[Vector]) -> list[Contender]:
    """All peers of this version."""
    from flhe_lab.bench.phe import phe_batches, phe_keys, phe_values

    keys = phe_keys()
    return [
        *(ckks(setting, updates, moduli) for moduli in MODULI),
        bfv(setting, updates),
        *(make(setting, updates, keys) for make in (phe_values, phe_batches)),
    ]


def tenseal() -> Any:
    """Give the module; ConfigError where it is not installed."""
    require("TenSEAL, to be compared with,", "peers", ("tenseal",))
    import tenseal

    return tenseal
