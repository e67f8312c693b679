"""Clip: cut every value at a clipping threshold alpha, and scale it to [-1, 1].

One alpha for all layers or one a layer. Scaling here, rather than in `Quantize`, lets each layer use
its own threshold while everything behind works on one range.

Source: BatchCrypt, Sec. 4.2, and FLASHE, Sec. 5.2 (clipping threshold alpha); here alpha is fixed.
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.flatten import Layout
from flhe.errors import ConfigError, MisfitError, RangeError
from flhe.spaces import Reals, Space

logger = logging.getLogger("flhe")

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30
"""Beyond these 1 / alpha leaves float32's normal range, and values would silently become zero."""

WARN_CLIPPED = 0.01
ABORT_CLIPPED = 0.5
"""Fractions of clipped values above which we warn, and above which we refuse."""

AT_ALPHA = np.float32(1 + 2**-22)
"""What alpha / alpha may come to in float32: a value at the threshold is not beyond it."""

Segments = tuple[tuple[int, int, float], ...]
"""(start, stop, alpha) for each run of the vector."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Clip to [-alpha, alpha], then divide by alpha.

    Parameters
    ----------
    bound : float or mapping of str to float
        alpha, in the update's own units. A mapping gives alpha by layer name; `*` and `?` match as
        in file names, the first match counts, and a layer that nothing matches is refused.
    """

    bound: float | Mapping[str, float] = 1.0

    def __post_init__(self) -> None:
        for name, alpha in self._items():
            if not MIN_ALPHA <= alpha <= MAX_ALPHA:  # false for NaN
                raise ConfigError(
                    f"Clip({name}: {alpha}): alpha must lie between {MIN_ALPHA} and {MAX_ALPHA}"
                )

    def _items(self) -> list[tuple[str, float]]:
        if isinstance(self.bound, Mapping):
            return [(name, float(alpha)) for name, alpha in self.bound.items()]
        return [("*", float(self.bound))]

    def parameters(self) -> dict[str, Any]:
        """Thresholds as exact text."""
        return {"name": "clip", "bound": [[name, alpha.hex()] for name, alpha in self._items()]}

    def init(self, layout: Layout) -> State:
        """Shared state: the segments, neighbours of one alpha merged."""
        segments: list[tuple[int, int, float]] = []
        for name, start, stop in layout.segments():
            matches = (a for pattern, a in self._items() if fnmatch.fnmatchcase(name, pattern))
            alpha = next(matches, None)
            if alpha is None:
                raise ConfigError(f"Clip: no threshold for layer {name!r}; add it or a '*'")
            if segments and segments[-1][2] == alpha:
                segments[-1] = (segments[-1][0], stop, alpha)
            else:
                segments.append((start, stop, alpha))
        return State(shared=tuple(segments))

    def out(self, space: Space) -> Reals:
        """Reals within 1, whatever came in."""
        if not isinstance(space, Reals):
            raise MisfitError(f"Clip takes reals, got {space}; put it before Quantize")
        return Reals(1.0)

    def lanes(self, extras: int) -> int:
        """Extras pass unchanged."""
        return extras

    def error(self, layout: Layout, count: int, inner: float = 0.0) -> float:
        """What float32 loses in scaling, times alpha; what lies beyond alpha is cut on purpose."""
        alpha = max((a for _, _, a in self.init(layout).shared), default=0.0)
        return alpha * (inner + count * 2.0**-22)

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """float32 in, float32 within [-1, 1] out, shape (length,).

        Raises
        ------
        RangeError
            NaN or infinity, or more than half of the values beyond alpha.
        """
        x = plain.values
        if not np.all(np.isfinite(x)):
            raise_not_finite()
        out = np.empty_like(x, np.float32)
        clipped = 0
        for start, stop, alpha in state.shared:
            with np.errstate(over="ignore"):  # infinity is beyond alpha too, and clipped
                scaled = x[start:stop] * np.float32(1 / alpha)
            clipped += int(np.count_nonzero(np.abs(scaled) > AT_ALPHA))
            np.clip(scaled, -1, 1, out=out[start:stop])
        check_clipped(clipped, x.size)
        return plain._replace(values=out), state

    def decode(
        self,
        total: Plain,
        senders: Sequence[int],
        state: State,
    ) -> tuple[Plain, State]:
        """Multiply by alpha."""
        out: NDArray[Any] = np.empty_like(total.values)
        for start, stop, alpha in state.shared:
            np.multiply(total.values[start:stop], alpha, out=out[start:stop])
        return total._replace(values=out), state


def raise_not_finite() -> None:
    """Refuse NaN and infinity: coercing them would send a wrong update without a word."""
    raise RangeError("the update holds NaN or infinity; lower the learning rate or clip gradients")


def check_clipped(clipped: int, size: int) -> None:
    """Warn above 1% of clipped values, refuse above 50%; the fraction itself is not told."""
    if size and clipped > ABORT_CLIPPED * size:
        raise RangeError(
            "more than half of the update lies beyond the clipping threshold; raise it"
        )
    if size and clipped > WARN_CLIPPED * size:
        logger.warning("more than 1% of the update was clipped; raise the clipping threshold")
