"""How large CKKS's modulus, scale and slots are, for one preset, cohort and precision.

A slot carries the integer V = sum over k of v_k 2^(width k) of `per` values, as a real times the scale.
Sums of N of them open to the nearest integer. That is their sum, exactly, because

    q / 2  >  N max|V| scale + N 22                 no coefficient wraps: none exceeds the largest slot
    1 / 4  >  10 sigma / scale + 2^-48 N max|V|     no slot is off by half a step, nor by a quarter

    sigma^2 = N (10.5 + 1 / 2) n / 2

is the variance of a slot's error at most. A coefficient's error is centred binomial of variance 10.5
(at most 21), and the real part of a slot weighs n of them with cosines whose squares add up to n / 2.
Its rounding is random, as `flhe.schemes.fedml_he.adder.Dither` makes it: of mean 0 whatever
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

import math
from dataclasses import dataclass
from typing import Any

from flhe.schemes.seal_sizes import LARGEST, SealSizes

VARIANCE = 11.0
"""Of a coefficient's error and rounding, at most."""

TAIL = 10.0
"""Standard deviations that a slot's error may have."""

FLOATS = 2.0**-48
"""Error of the transforms in double precision, of the largest sum."""

ROOM = 0.25
"""Steps of the grid that a slot may be off: half of what would change a value."""


@dataclass(frozen=True, slots=True)
class CkksSizes(SealSizes):
    """Sizes of one ring, as for `SealSizes`; a ciphertext has n / 2 slots."""

    WIDEST = 52  # sign included: doubles hold such integers

    def parameters(self) -> dict[str, Any]:
        """What else is public: the scale."""
        return {"scale_bits": self.scale_bits}

    @property
    def fits(self) -> bool:
        """Whether the noise of `cohort` ciphertexts stays below a quarter of a step."""
        return self.scale_bits >= 0 and self.residual(self.cohort) < ROOM

    @property
    def scale_bits(self) -> int:
        """Its logarithm; negative when even 1 is too large."""
        room = (self.q / 2 - self.cohort * LARGEST) / (self.cohort * self.digits.largest)
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
        return TAIL * self.sigma(count) + FLOATS * count * self.digits.largest
