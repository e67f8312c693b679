"""Dither: what makes SEAL's roundings random."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import AesCtr, FieldElements, drawn
from flhe.schemes.fedml_he.sizes import CkksSizes
from flhe.wire.secret import Random

DITHER_BITS = 32
"""Of one coefficient of dither: its mean is 0 exactly, and its rounding is biased by 2^-32 at most."""


@dataclass(frozen=True, slots=True)
class Dither:
    """Noise of less than a unit, which makes SEAL's rounding of coefficients random.

    SEAL rounds x + d, with d uniform in [-1/2, 1/2), to one of the integers next to x, and to x in the
    mean, whatever x is. d is a polynomial of real slots: coefficient n - i is the negative of
    coefficient i, and coefficient n / 2 is 0. `flhe.schemes.fedml_he.sizes` rests on it. d is made of
    `words`, uniform below 2^32.
    """

    sizes: CkksSizes
    words: FieldElements = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, random: Random) -> Dither:
        """Dither for one vector, under a fresh key: streams of two vectors never meet."""
        return cls(sizes, FieldElements(AesCtr(), drawn(random, 32), 1 << DITHER_BITS))

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
