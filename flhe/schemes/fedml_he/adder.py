"""FedmlHeAdder: values as reals in the slots of CKKS, encrypted by TenSEAL under a shared key.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

How vectors are cut, sent and opened is in `flhe.schemes.seal_adder`. Members share s: with the server,
any one of them reads single updates.

Values are integers on the codec's grid. The noise of a sum stays below a quarter of a step, so rounding
gives the sum exactly, on every machine, and takes off the noise: nothing of what is opened depends on s
or on an error, which is how decrypted CKKS values otherwise give the key away (Li and Micciancio,
EUROCRYPT 2021). A slot that lies off the grid says that a sum is not its senders'.

A slot carries the integer V = sum over k of v_k 2^(width k) of `per` values, as a real times the scale.
Sums of N of them open to the nearest integer. That is their sum, exactly, because

    q / 2  >  N max|V| scale + N 22                 no coefficient wraps: none exceeds the largest slot
    1 / 4  >  10 sigma / scale + 2^-48 N max|V|     no slot is off by half a step, nor by a quarter

    sigma^2 = N (10.5 + 1 / 2) n / 2

is the variance of a slot's error at most. A coefficient's error is centred binomial of variance 10.5
(at most 21), and the real part of a slot weighs n of them with cosines whose squares add up to n / 2.
Its rounding is random, as `Dither` makes it: of mean 0 whatever the vectors, in an interval of length
1, independent of other senders' and of all other coefficients' but one. Slots are real, so coefficient
n - i is the negative of coefficient i, and so is its rounding: n / 2 of them count twice, (n - 1) / 4
in all. All is sub-Gaussian with these parameters, so a slot is off by 10 sigma with odds of 2^-71
(Hoeffding). The other term is the transforms in double precision, and slots as doubles, where the
largest error that was measured is 8 2^-53 of the largest value: four times that are allowed for.

Without dither roundings would be a function of the vector: of equal vectors they add up, and of those
that are 0 but for a few values they go along with the cosines; N n / pi at worst. Doubles round part of
the dither away where scale max|V| is 2^57 or more: for three senders at most, in moduli of 59 bits and
more. Equal roundings of three are N^2 / 2 in place of N / 2, which leaves 9.5 sigma.

The modulus is the shortest that holds a value in the fewest bits; what is left of it goes to the scale.

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

    def slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """To the nearest integer, where the noise of so many explains the rest."""
        nearest = np.rint(opened)
        residual = np.abs(np.subtract(opened, nearest, out=opened)).max()
        return nearest.astype(np.int64), bool(residual <= self.residual(senders))


DITHER_BITS = 32
"""Of one coefficient of dither: its mean is 0 exactly, and its rounding is biased by 2^-32 at most."""


@dataclass(frozen=True, slots=True)
class Dither:
    """Noise of less than a unit, which makes SEAL's rounding of coefficients random.

    SEAL rounds x + d, with d uniform in [-1/2, 1/2), to one of the integers next to x, and to x in the
    mean, whatever x is. d is a polynomial of real slots: coefficient n - i is the negative of
    coefficient i, and coefficient n / 2 is 0. The proof rests on it. d is made of
    `words`, uniform below 2^32.
    """

    sizes: CkksSizes
    words: FieldElements = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, random: Random) -> Dither:
        """Dither for one vector, under a fresh key: streams of two vectors never meet."""
        return cls(sizes, FieldElements(drawn(random, 32), 1 << DITHER_BITS))

    def blocks(self, first: int, count: int) -> NDArray[np.float64]:
        """Slots of blocks from `first` on: (count * n / 2,), in grid steps."""
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
    """What makes an FFT one at odd powers of a 2 n-th root of unity, and where in it slots are.

    Slot j is the value at the 3^j-th power, as SEAL has it.
    """
    powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)], np.int64)
    return np.exp(-1j * np.pi / n * np.arange(n)), (powers - 1) // 2


@dataclass(slots=True)
class FedmlHeSealer(SealSealer):
    """One client's side; parameters as for `SealSealer`, and `random`: dither is drawn from it."""

    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """With dither, which makes roundings random."""
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
