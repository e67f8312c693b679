"""How large CKKS's modulus, scale and slots are, for one preset, cohort and precision.

A slot carries the integer V = sum over k of v_k 2^(width k) of `per` values, as a real times the scale.
Sums of N of them open to the nearest integer. That is their sum, exactly, because

    q / 2  >  N max|V| scale + N 22                 no coefficient wraps: none exceeds the largest slot
    1 / 4  >  10 sigma / scale + 2^-48 N max|V|     no slot is off by half a step, nor by a quarter

    sigma^2 = N (10.5 + 1 / 2) n / 2

is the variance of a slot's error at most. A coefficient's error is centred binomial of variance 10.5
(at most 21), and the real part of a slot weighs n of them with cosines whose squares add up to n / 2.
Its rounding is random, as `flhe.schemes.fedml_he.seal_blocks.Dither` makes it: of mean 0 whatever
the vectors, in an interval of length 1, independent of other senders' and of all other
coefficients' but one. Slots are real, so coefficient n - i is the negative of coefficient i, and so
is its rounding: n / 2 of them count twice, (n - 1) / 4 in all. All is sub-Gaussian with these
parameters, so a slot is off by 10 sigma with odds of 2^-71 (Hoeffding). The other term is the
transforms in double precision, and slots as doubles, where the largest error that was measured is 8
2^-53 of the largest value: four times that are allowed for.

Without dither roundings would be a function of the vector: of equal vectors they add up, and of those
that are 0 but for a few values they go along with the cosines; N n / pi at worst. Doubles round part of
the dither away where scale max|V| is 2^57 or more: for three senders at most, in moduli of 59 bits and
more. Equal roundings of three are N^2 / 2 in place of N / 2, which leaves 9.5 sigma.

The modulus is the shortest that holds a value in the fewest bits; what is left of it goes to the scale.

Source: CKKS (ASIACRYPT 2017), Sec. 3.2 and 3.3; error of a coefficient: SEAL 4.1, `sample_poly_cbd`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from flhe.coding.digits import Digits
from flhe.errors import ConfigError
from flhe.schemes.presets import SealPreset
from flhe.schemes.seal_sizes import LARGEST, MIN_BITS, SealSizes, shortest

VARIANCE = 11.0
"""Of a coefficient's error and rounding, at most."""

TAIL = 10.0
"""Standard deviations that a slot's error may have."""

FLOATS = 2.0**-48
"""Error of the transforms in double precision, of the largest sum."""

ROOM = 0.25
"""Steps of the grid that a slot may be off: half of what would change a value."""

MAX_WIDTH = 52
"""Bits of a slot's sum, sign included: doubles hold such integers."""


@dataclass(frozen=True, slots=True)
class CkksSizes(SealSizes):
    """Sizes of one ring, checked.

    Parameters
    ----------
    n : int
        Dimension; a ciphertext has n / 2 slots.
    bits : int
        Of the modulus, and of a residue on the wire.
    cohort : int
        N, vectors that are added at most.
    bound : int
        Largest absolute value in one vector.
    width, per : int
        Bits of one value's sum, and values in a slot.
    """

    n: int
    bits: int
    cohort: int
    bound: int
    width: int
    per: int

    def __post_init__(self) -> None:
        if self.cohort * 2 * self.bound >> self.width or self.width * self.per > MAX_WIDTH:
            raise ConfigError(f"CkksSizes: {self.per} sums of {self.width} bits have no room")
        if self.scale_bits < 0 or self.residual(self.cohort) >= ROOM:
            raise ConfigError(
                f"CkksSizes(bits={self.bits}): the noise of {self.cohort} ciphertexts reaches a "
                "quarter of a step; use a longer modulus, fewer bits or a smaller cohort"
            )

    @property
    def digits(self) -> Digits:
        """How values lie in a slot."""
        return Digits(self.width, self.per, self.bound)

    @property
    def largest(self) -> int:
        """Largest absolute value of one sender's slot."""
        return self.digits.largest

    @property
    def scale_bits(self) -> int:
        """Its logarithm; negative when even 1 is too large."""
        room = (self.q / 2 - self.cohort * LARGEST) / (self.cohort * self.largest)
        return math.floor(math.log2(room)) if room >= 1 else -1

    @property
    def scale(self) -> float:
        """Units of a coefficient in a step of the grid: the largest power of two that fits."""
        return 2.0**self.scale_bits

    def sigma(self, count: int) -> float:
        """Standard deviation of a slot's error in a sum of `count`, in steps of the grid, at most."""
        return math.sqrt(count * VARIANCE * self.n / 2) / self.scale

    def residual(self, count: int) -> float:
        """Largest distance of a slot from the grid in a sum of `count`, in steps of it."""
        return TAIL * self.sigma(count) + FLOATS * count * self.largest


@functools.lru_cache(maxsize=256)
def sizes_for(preset: SealPreset, cohort: int, bits: int) -> CkksSizes:
    """What a sum of `cohort` vectors of `bits`-bit values takes in the ring of `preset`.

    Raises ConfigError: not even one value fits in a slot.
    """
    bound = (1 << (bits - 1)) - 1
    width = (2 * bound * cohort).bit_length()
    found: list[CkksSizes] = []
    for per in range(1, MAX_WIDTH // width + 1):
        for length in range(MIN_BITS, preset.log_q + 1):
            try:
                found.append(CkksSizes(preset.dimension, length, cohort, bound, width, per))
            except ConfigError:
                continue
            break
    return shortest(found, preset, cohort, bits)
