"""What the sizes of schemes that SEAL encrypts have in common: one modulus, and digits in slots."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from flhe.coding.limb_packing import PIECE, LimbPacking
from flhe.errors import ConfigError
from flhe.math.prime_ring import PrimeRing, ntt_primes
from flhe.schemes.seal_format import SealFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flhe.coding.digits import Digits
    from flhe.schemes.presets import SealPreset

LARGEST = 22
"""A coefficient's error and rounding, at most."""

MIN_BITS = 45
"""Shortest modulus that is tried: TenSEAL compresses what it hands out, and takes up to four times as
long over residues of fewer bits."""


class SealSizes:
    """Sizes of one ring; the base of frozen dataclasses with at least these fields.

    Parameters
    ----------
    n : int
        Dimension.
    bits : int
        Of the modulus, and of a residue on the wire.
    """

    __slots__ = ()

    n: int
    bits: int
    if TYPE_CHECKING:  # a field of some: a property here would be its default

        @property
        def digits(self) -> Digits:
            """How values lie in a slot."""

    @property
    def q(self) -> int:
        """The modulus: the largest fitting prime of that length."""
        return ntt_primes(self.n, self.bits, 1)[0]

    @property
    def ring(self) -> PrimeRing:
        """Where residues are computed."""
        return _ring(self.n, self.q)

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


@functools.cache
def _ring(n: int, q: int) -> PrimeRing:
    return PrimeRing(n, q)


S = TypeVar("S", bound=SealSizes)


def shortest(found: Sequence[S], preset: SealPreset, cohort: int, bits: int) -> S:
    """Of sizes that fit, those with the fewest bits a value; ConfigError where none do."""
    if not found:
        raise ConfigError(
            f"ring {preset.name!r}: a sum of {cohort} values of {bits} bits does not fit log q = "
            f"{preset.log_q}; use fewer bits or a smaller cohort"
        )
    return min(found, key=lambda sizes: sizes.bits / sizes.digits.per)
