"""Laplace noise, on a grid, for values that leave a client in clear.

    y = cut(round(cut(x) / g) * g + round(Z / g) * g),    Z ~ Lap(b),  cut to [-alpha, alpha]

in the update's own units, g the largest power of two up to b / 1024. Values are put on the grid
inside [-alpha, alpha], so two updates differ by at most 2 alpha there too. The probabilities for
one value differ by a factor of at most exp(2 alpha / b). Cutting again and rounding to float32
reveal nothing more.

The grid is needed because a floating-point Laplace sample, added to a float, leaves a pattern of
low bits. That pattern often reveals the noiseless value (Mironov, 2012). Here an integer is added
to an integer, exactly: the noise is that of the exact mechanism, rounded. A grid step's probability
is off by a factor of at most 1 +- 2**-34, and magnitudes end at 44 b, beyond which lie 2**-64.

Source: FedML-HE, Algorithm 1 and Sec. 3.2; Mironov, "On significance of the least significant bits
for differential privacy", 2012; a grid against that: Google, "Secure noise generation", 2020.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.aciq import AT_ALPHA, MAX_ALPHA, MIN_ALPHA
from flhe.coding.flatten import raise_not_finite
from flhe.coding.squares import Segments
from flhe.errors import ConfigError
from flhe.math.prg import drawn, words
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

GRID_BITS = 10
"""The scale is 2**GRID_BITS to 2**(GRID_BITS + 1) steps of the grid."""

MAX_STEPS = 1 << 50
"""Maximum threshold, in steps of the grid: sums with noise stay exact in float64."""

Scope = Literal["clear", "all"]


@dataclass(frozen=True, slots=True)
class Laplace(Record):
    """Laplace noise on a client's update.

    Parameters
    ----------
    scale : float
        b, in the update's own units, 1e-30 to 1e30. The variance is 2 b^2.
    scope : "clear" or "all"
        Values with noise: those sent in clear, or all parameters (Algorithm 1), also those that
        only readers of the sum see.
    """

    FORM = Form("noise", row=True, error=ConfigError)

    scale: float
    scope: Scope = "clear"

    def _validate(self) -> None:
        if not MIN_ALPHA <= self.scale <= MAX_ALPHA:
            raise ConfigError(
                f"Laplace(scale={self.scale}): the scale must be {MIN_ALPHA} to {MAX_ALPHA}; leave "
                "Laplace out for no noise"
            )

    @property
    def grid(self) -> float:
        """g: a power of two."""
        return math.ldexp(1.0, math.frexp(self.scale)[1] - 1 - GRID_BITS)

    def add(
        self,
        values: NDArray[np.float32],
        alpha: float | Segments,
        random: Random = secrets.token_bytes,
        *,
        spare: NDArray[np.uint32] | None = None,
    ) -> int:
        """Cut `values` and add noise to them, in place, under a fresh key.

        Returns the number of values that lay beyond their threshold before, those to spare
        included. The number is secret, for `Clip.warn_clipped`.

        Raises ConfigError: runs that leave a value without a threshold; a threshold too large for
        the scale; RangeError: NaN or infinity.

        `alpha` is the clipping threshold, or runs (start, stop, alpha) that cover all values,
        float32 (length,). Values at the ascending coordinates `spare` stay unchanged: those that
        will be encrypted, if the scope is "clear".
        """
        runs = self._runs(values.size, alpha)
        key = drawn(random, 32)
        kept = None if spare is None else values[spare]
        beyond = sum(self._add(values[a:b], threshold, key, a) for a, b, threshold in runs)
        if spare is not None:
            values[spare] = kept
        return beyond

    def _runs(self, size: int, alpha: float | Segments) -> Segments:
        """Return runs of one threshold; checked before any value is changed."""
        runs = ((0, size, float(alpha)),) if isinstance(alpha, int | float) else alpha
        ends = [0, *(stop for _, stop, _ in runs)]
        if [first for first, _, _ in runs] != ends[:-1] or ends[-1] != size:
            raise ConfigError(
                f"Laplace: runs of thresholds do not cover {size} values, each once and in order"
            )
        most = MAX_STEPS * self.grid
        for _, _, threshold in runs:
            if not MIN_ALPHA <= threshold <= min(most, MAX_ALPHA):
                raise ConfigError(
                    f"Laplace(scale={self.scale}): a clipping threshold of {threshold:g}; it must be "
                    f"{MIN_ALPHA} to {min(most, MAX_ALPHA):g}, without it no noise suffices"
                )
        return runs

    def _add(self, values: NDArray[np.float32], alpha: float, key: bytes, start: int) -> int:
        from flhe.math import sampling_kernels

        steps, most = self.scale / self.grid, float(math.floor(alpha / self.grid))
        edge = alpha * float(AT_ALPHA)
        beyond = 0
        # Fixed counter block. Safe because the key is fresh for this vector, and every value has
        # its own block: no block makes two samples.
        for at, pairs in words(key, 2 * start, 2 * values.size):
            part = values[at // 2 : (at + pairs.size) // 2]
            if not np.all(np.isfinite(part)):
                raise_not_finite()
            beyond += sampling_kernels.add(pairs, part, alpha, edge, self.grid, steps, most)
        return beyond
