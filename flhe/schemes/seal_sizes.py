"""What the sizes of schemes that SEAL encrypts have in common: one modulus, and digits in slots."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from flhe.coding.digits import Digits
from flhe.coding.limb_packing import PIECE, LimbPacking
from flhe.errors import ConfigError
from flhe.math.prime_ring import PrimeRing, ntt_primes
from flhe.schemes.presets import RingPreset
from flhe.schemes.seal_format import SealFormat

LARGEST = 22
"""A coefficient's error and rounding, at most."""

MIN_BITS = 45
"""Shortest modulus that is tried: TenSEAL compresses what it hands out, and takes up to four times as
long over residues of fewer bits."""


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
