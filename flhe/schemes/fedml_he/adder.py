"""FedmlHeAdder: values as reals in the slots of CKKS, encrypted by TenSEAL under a shared key.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

`flhe.schemes.seal_adder` cuts, sends and opens vectors. Members share s: any one of them can read
single updates if it colludes with the server.

Values are integers on the codec's grid. The noise of a sum stays below a quarter of a step, so
rounding gives the exact sum on every machine, and removes the noise. The opened values thus depend
on neither s nor an error. Decrypted CKKS values with noise would reveal the key (Li and Micciancio,
EUROCRYPT 2021). A slot off the grid shows that a sum does not match its senders.

A slot carries the integer V = sum over k of v_k 2^(width k) of `per` values, as a real times the
scale. Sums of N of them open to the nearest integer. That is their sum, exactly, because

    q / 2  >  N max|V| scale + N 22                 no coefficient wraps: none exceeds the largest slot
    1 / 4  >  10 sigma / scale + 2^-48 N max|V|     no slot is off by half a step, nor by a quarter

    sigma^2 = N (10.5 + 1 / 2) n / 2

bounds the variance of a slot's error. A coefficient's error is centred binomial of variance 10.5
(at most 21). The real part of a slot weighs n of them with cosines whose squares add up to n / 2.
`Dither` makes its rounding random: of mean 0 for every vector, in an interval of length 1,
independent of other senders' and of all other coefficients' but one. Slots are real, so coefficient
n - i is the negative of coefficient i, and so is its rounding: n / 2 of them count twice, (n - 1) /
4 in all. All is sub-Gaussian with these parameters, so a slot is off by 10 sigma with odds of 2^-71
(Hoeffding). The other term bounds the errors of transforms and slots in double precision. The
largest measured error is 8 2^-53 of the largest value; the bound allows four times that.

Without dither, roundings would be a function of the vector: those of equal vectors add up. In
vectors with few non-zero values they correlate with the cosines; N n / pi at worst. Doubles round
part of the dither away if scale max|V| is 2^57 or more: for three senders at most, in moduli of 59
bits and more. Equal roundings of three are N^2 / 2 in place of N / 2, which leaves 9.5 sigma.

The modulus is the shortest that holds a value in the fewest bits; its remaining bits go to the
scale.

Source: FedML-HE, Algorithm 1 and Sec. 2.3, without selection, which is the codec's; CKKS (ASIACRYPT
2017), Sec. 3.2 and 3.3; error of a coefficient: SEAL 4.1, `sample_poly_cbd`; docs/protocol.md.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import FieldElements, drawn
from flhe.schemes.seal_adder import SealAdder, SealSealer
from flhe.schemes.seal_sizes import LARGEST, SealSizes
from flhe.wire.secret import Random

VARIANCE = 11.0
"""Bound on the variance of a coefficient's error and rounding."""

TAIL = 10.0
"""Standard deviations that a slot's error may have."""

FLOATS = 2.0**-48
"""Error of the transforms in double precision, relative to the largest sum."""

ROOM = 0.25
"""Steps of the grid by which a slot may be off: half of what would change a value."""


@dataclass(frozen=True, slots=True)
class CkksSizes(SealSizes):
    """Sizes of one ring, as for `SealSizes`; a ciphertext has n / 2 slots."""

    WIDEST = 52  # sign included: doubles hold such integers

    def parameters(self) -> dict[str, Any]:
        """Return the other public parameters: the scale."""
        return {"scale_bits": self.scale_bits}

    @property
    def fits(self) -> bool:
        """True if the noise of `cohort` ciphertexts stays below a quarter of a step."""
        return self.scale_bits >= 0 and self.residual(self.cohort) < ROOM

    @property
    def scale_bits(self) -> int:
        """Logarithm of the scale; negative if even a scale of 1 is too large."""
        room = (self.q / 2 - self.cohort * LARGEST) / (self.cohort * self.digits.largest)
        return math.floor(math.log2(room)) if room >= 1 else -1

    @property
    def scale(self) -> float:
        """Units of a coefficient in a step of the grid: the largest power of two that fits."""
        return 2.0**self.scale_bits

    def sigma(self, count: int) -> float:
        """Return a bound on a slot's standard deviation in a sum of `count`, in grid steps."""
        return math.sqrt(count * VARIANCE * self.n / 2) / self.scale

    def residual(self, count: int) -> float:
        """Return the largest error of a slot in a sum of `count`, in grid steps."""
        return TAIL * self.sigma(count) + FLOATS * count * self.digits.largest

    def slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """Return the nearest integers, and whether the noise of `senders` explains the rest."""
        nearest = np.rint(opened)
        residual = np.abs(np.subtract(opened, nearest, out=opened)).max()
        return nearest.astype(np.int64), bool(residual <= self.residual(senders))


DITHER_BITS = 32
"""Bits of one coefficient of dither: its mean is exactly 0, its rounding biased by at most
2^-32."""


@dataclass(frozen=True, slots=True)
class Dither:
    """Noise of less than a unit, which makes SEAL's rounding of coefficients random.

    d is uniform in [-1/2, 1/2). SEAL rounds x + d to one of the integers next to x, and on average
    to x, for every x. d is a polynomial of real slots: coefficient n - i is the negative of
    coefficient i, and coefficient n / 2 is 0. The proof relies on it. d is made of `words`, uniform
    below 2^32.
    """

    sizes: CkksSizes
    words: FieldElements = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, random: Random) -> Dither:
        """Return dither for one vector, under a fresh key: streams of two vectors never meet."""
        return cls(sizes, FieldElements(drawn(random, 32), 1 << DITHER_BITS))

    def blocks(self, first: int, count: int) -> NDArray[np.float64]:
        """Return slots of blocks from `first` on: (count * n / 2,), in grid steps."""
        n = self.sizes.n
        half = (self.words.blocks(first, count, n // 2) + 0.5) / (1 << DITHER_BITS) - 0.5
        d = np.zeros((count, n), np.complex128)
        d[:, : n // 2], d[:, n // 2 + 1 :] = half, -half[:, :0:-1]
        twist, order = _odd_roots(n)
        d *= twist
        slots: NDArray[np.float64] = np.fft.fft(d).real[:, order].reshape(-1)
        return slots / self.sizes.scale


@functools.cache
def _odd_roots(n: int) -> tuple[NDArray[np.complex128], NDArray[np.int64]]:
    """Return the twist for an FFT at odd powers of a 2 n-th root of unity, and its slot indices.

    Slot j is the value at the 3^j-th power, as SEAL has it.
    """
    powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)], np.int64)
    return np.exp(-1j * np.pi / n * np.arange(n)), (powers - 1) // 2


@dataclass(slots=True)
class FedmlHeSealer(SealSealer):
    """One client's sealer; parameters as for `SealSealer`, and `random`, the source of dither."""

    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """Return the function that turns values into slots, with dither for random rounding."""
        sizes = self.adder.sizes
        dither = Dither.of(sizes, self.random)
        return lambda values, first: (
            sizes.digits.join(values) + dither.blocks(first, values.size // sizes.block)
        )


@dataclass(frozen=True, slots=True)
class FedmlHeAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "ckks-a"
    SIZES, SEALER = CkksSizes, FedmlHeSealer
