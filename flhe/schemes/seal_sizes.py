"""What the sizes of schemes that SEAL encrypts have in common: one modulus, and digits in slots."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import PIECE, LimbPacking
from flhe.errors import ConfigError
from flhe.math.ring import PrimeRing, ntt_primes
from flhe.schemes.presets import RingPreset
from flhe.schemes.seal_format import SealFormat

LARGEST = 22
"""A coefficient's error and rounding, at most."""

MIN_BITS = 45
"""Shortest modulus that is tried: TenSEAL compresses what it hands out, and takes up to four times as
long over residues of fewer bits."""


@dataclass(frozen=True, slots=True)
class Digits:
    """How `per` values of at most `bound` lie in an integer, `width` bits each, sign included.

    V = sum over k of v_k 2^(width k): sums of V hold the sums of the v_k, each in its place.
    """

    width: int
    per: int
    bound: int

    @property
    def largest(self) -> int:
        """Largest absolute integer of one sender."""
        return self.bound * sum(1 << (self.width * k) for k in range(self.per))

    def join(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Integers (count,) of (count * per,) values, the first of each lowest."""
        digits = values.reshape(-1, self.per)
        out = digits[:, -1].copy()
        for k in range(self.per - 2, -1, -1):
            out <<= self.width
            out += digits[:, k]
        return out

    def split(self, sums: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], bool]:
        """Inverse of `join` for a sum of `count`, and whether as many can have added up to it.

        Digits are balanced, so that those below leave no borrow in the ones above.
        """
        digits = np.empty((sums.size, self.per), np.int64)
        half, mask, rest = 1 << (self.width - 1), (1 << self.width) - 1, sums
        for k in range(self.per - 1):
            digits[:, k] = ((rest + half) & mask) - half
            rest = (rest - digits[:, k]) >> self.width
        digits[:, -1] = rest
        most = count * self.bound
        return digits.reshape(-1), bool(digits.max() <= most and digits.min() >= -most)


@dataclass(frozen=True, slots=True)
class SealSizes:
    """Sizes of one ring of dimension n.

    `bits` are those of the modulus, and of a residue on the wire; `digits`: how values lie in a slot.
    """

    WIDEST: ClassVar[int]
    """Most bits of a slot's sum that are tried."""

    n: int
    bits: int
    cohort: int
    digits: Digits

    def parameters(self) -> dict[str, Any]:
        """What else is public of a kind."""
        raise NotImplementedError

    @property
    def fits(self) -> bool:
        """Whether sums of `cohort` ciphertexts open exactly."""
        raise NotImplementedError

    @property
    def q(self) -> int:
        """The modulus: the largest fitting prime of that length."""
        return ntt_primes(self.n, self.bits, 1)[0]

    @property
    def ring(self) -> PrimeRing:
        """Where residues are computed."""
        return PrimeRing(self.n, self.q)

    @property
    def rings(self) -> tuple[PrimeRing]:
        """The one ring that there is."""
        return (self.ring,)

    @property
    def limbs(self) -> LimbPacking:
        """How residues travel."""
        return LimbPacking(self.bits, (self.q,))

    @property
    def seal(self) -> SealFormat:
        """SEAL's encodings for this ring."""
        return SealFormat(self.n, self.q)

    @property
    def scale(self) -> float:
        """What slots are multiplied by."""
        return 1.0

    @property
    def block(self) -> int:
        """Values in one ciphertext of the ring."""
        return self.seal.slots * self.digits.per

    @property
    def step(self) -> int:
        """Residues that are worked on at a time: whole polynomials, whole pieces of the wire."""
        return max(PIECE, self.n)

    def slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """Slots as integers, and whether so many senders' may have come out like that."""
        return opened, True

    def count(self, length: int) -> int:
        """Residues of a ciphertext of `length` values: whole polynomials."""
        return -(-length // self.block) * self.n


@functools.lru_cache(maxsize=256)
def sizes_for(kind: type[SealSizes], preset: RingPreset, cohort: int, bits: int) -> Any:
    """What a sum of `cohort` vectors of `bits`-bit values takes in the ring of `preset`, of a kind.

    Of the moduli that hold a value in the fewest bits, the shortest. Raises ConfigError: not even one
    value fits in a slot.
    """
    bound = (1 << (bits - 1)) - 1
    width = (2 * bound * cohort).bit_length()
    found: list[SealSizes] = []
    for per in range(1, kind.WIDEST // width + 1):
        digits, lengths = Digits(width, per, bound), range(MIN_BITS, preset.log_q + 1)
        sizes = (kind(preset.dimension, length, cohort, digits) for length in lengths)
        if (fitting := next((one for one in sizes if one.fits), None)) is not None:
            found.append(fitting)
    if not found:
        raise ConfigError(
            f"ring {preset.name!r}: a sum of {cohort} values of {bits} bits does not fit log q = "
            f"{preset.log_q}; use fewer bits or a smaller cohort"
        )
    return min(found, key=lambda sizes: sizes.bits / sizes.digits.per)
