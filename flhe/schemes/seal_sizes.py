"""Sizes of schemes that SEAL encrypts: one modulus, and digits in slots."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.limbs import PIECE, LimbPacking
from flhe.errors import ConfigError
from flhe.math.ring import PrimeRing, ntt_primes
from flhe.schemes.presets import RingPreset
from flhe.schemes.seal_format import SealFormat

LARGEST = 22
"""Bound on a coefficient's error and rounding."""

MIN_BITS = 45
"""Shortest modulus that is tried: TenSEAL compresses its output, and takes up to four times as long
over residues of fewer bits."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Layout of `per` values of at most `bound` in an integer, `width` bits each, sign included.

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
        """Return integers (count,) of (count * per,) values, the first of each lowest."""
        digits = values.reshape(-1, self.per)
        out = digits[:, -1].copy()
        for k in range(self.per - 2, -1, -1):
            out <<= self.width
            out += digits[:, k]
        return out

    def split(self, sums: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], bool]:
        """Invert `join` for a sum of `count`; also return whether `count` senders can have reached it.

        Digits are balanced, so that lower ones leave no borrow in higher ones.
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

    `bits` is the length of the modulus, and of a residue on the wire; `digits` is the layout of a
    slot.
    """

    WIDEST: ClassVar[int]
    """Maximum bits of a slot's sum that are tried."""

    n: int
    bits: int
    cohort: int
    digits: Digits

    def parameters(self) -> dict[str, Any]:
        """Return the other public parameters of this class."""
        raise NotImplementedError

    @property
    def fits(self) -> bool:
        """True if sums of `cohort` ciphertexts open exactly."""
        raise NotImplementedError

    @property
    def q(self) -> int:
        """The modulus: the largest fitting prime of that length."""
        return ntt_primes(self.n, self.bits, 1)[0]

    @property
    def ring(self) -> PrimeRing:
        """Ring of the residues."""
        return PrimeRing(self.n, self.q)

    @property
    def rings(self) -> tuple[PrimeRing]:
        """The ring, as the only one."""
        return (self.ring,)

    @property
    def limbs(self) -> LimbPacking:
        """Layout of residues on the wire."""
        return LimbPacking(self.bits, (self.q,))

    @property
    def seal(self) -> SealFormat:
        """SEAL's encodings for this ring."""
        return SealFormat(self.n, self.q)

    @property
    def scale(self) -> float:
        """Factor of the slots."""
        return 1.0

    @property
    def block(self) -> int:
        """Values in one ciphertext of the ring."""
        return self.seal.slots * self.digits.per

    @property
    def step(self) -> int:
        """Residues processed at a time: whole polynomials, whole pieces of the wire."""
        return max(PIECE, self.n)

    def slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """Return slots as integers, and whether `senders` senders can have made them."""
        return opened, True

    def count(self, length: int) -> int:
        """Return the residues of a ciphertext of `length` values: whole polynomials."""
        return -(-length // self.block) * self.n


@functools.lru_cache(maxsize=256)
def sizes_for(kind: type[SealSizes], preset: RingPreset, cohort: int, bits: int) -> Any:
    """Return the sizes, of a class, for `cohort` vectors of `bits`-bit values in the ring of `preset`.

    Takes the shortest modulus among those that hold a value in the fewest bits. Raises ConfigError:
    not even one value fits in a slot.
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
