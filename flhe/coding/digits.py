"""Several values in one integer: digits that are balanced, so that sums of either sign come apart.

V = sum over k of v_k 2^(width k)              sums of V hold the sums of the v_k, each in its place
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Digits:
    """How `per` values of at most `bound` lie in an integer, `width` bits each, sign included."""

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
