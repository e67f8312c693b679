"""Clip, Weigh and Quantize in one pass, and the same backwards.

Encoding gives the very integers that the three codecs give one after the other, for the same rounding
values; decoding differs from them by at most the last bit of a float32, because the three factors are
multiplied first. Tests hold both to the separate codecs.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.finite import AT_ALPHA, raise_not_finite
from flhe.coding.quantize import Quantize
from flhe.coding.squares import Layers, Segments
from flhe.coding.weigh import Weigh
from flhe.math.buffers import empty
from flhe.math.prg import PIECE

if TYPE_CHECKING:
    from flhe.coding.clip import Clip


@dataclass(frozen=True, slots=True)
class Fused:
    """The three as one step; its state is that of the clipping. It raises what they raise."""

    clip: Clip
    weigh: Weigh
    quantize: Quantize

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """float32 in, `quantize.dtype` out, shape (length,)."""
        x = plain.values
        parts = (x[at : at + PIECE] for at in range(0, x.size, PIECE))
        return self.encode_parts(parts, x.size, plain.extras, state.shared, plain.coords), state

    def encode_parts(
        self,
        parts: Iterable[NDArray[np.float32]],
        length: int,
        extras: NDArray[Any],
        shared: Layers,
        coords: NDArray[np.uint32] | None = None,
    ) -> Plain:
        """As `encode`, for a vector of `length` that comes in parts of at most PIECE, in order."""
        from flhe.math import kernels

        clip, quantize = self.clip, self.quantize
        segments = clip.segments(shared, coords)
        excess = clip.excess(extras)
        tally = clip.tally(shared, coords, excess)
        out = empty(length, quantize.dtype)
        weight = self.weigh.factor(extras)
        outside = at = 0
        source = quantize.source()
        for part in parts:
            beyond = 0
            for start, stop, alpha in _within(segments, at, at + part.size):
                beyond += kernels.quantize(
                    part[start - at : stop - at],
                    np.float32(excess / alpha),
                    AT_ALPHA,
                    weight,
                    float(quantize.levels),
                    source.next(stop - start),
                    quantize.offset,
                    out[start:stop],
                )
            if beyond and not np.all(np.isfinite(part)):
                raise_not_finite()
            if tally is not None:
                tally.add(part)
            outside += beyond
            at += part.size
        clip.warn_clipped(outside, length, excess)
        extras = np.concatenate([extras, clip.told(tally, shared)])
        return Plain(out, quantize.split(extras), coords)

    def decode(
        self, total: Plain, senders: Sequence[int], state: State, *, reuse: bool = False
    ) -> tuple[Plain, State]:
        """Integers in, float32 weighted mean out.

        With `reuse`, 32-bit integers make room for the mean: `total.values` is overwritten.
        """
        from flhe.math import kernels

        clip, quantize = self.clip, self.quantize
        if total.extras.size:
            quantize.check_sum(int(np.abs(total.extras.astype(np.int64)).max()), len(senders))
        extras = quantize.join(total.extras)
        factor = self.weigh.mean_factor(total._replace(extras=extras), senders) * quantize.step
        segments = clip.segments(state.shared, total.coords)
        extras, shared = clip.after(extras, len(senders), state.shared)
        reuse = reuse and total.values.dtype == np.int32 and total.values.flags.c_contiguous
        out = total.values.view(np.float32) if reuse else empty(total.values.size, np.float32)
        scratch = np.empty(PIECE if reuse else 0, np.float32)
        bound = len(senders) * quantize.levels
        for begin, end, alpha in segments:
            for start in range(begin, end, PIECE):  # pieces that stay in cache
                stop = min(start + PIECE, end)
                # The kernel gets memory of its own: it would be slow on one that it reads and writes.
                target = scratch[: stop - start] if reuse else out[start:stop]
                if kernels.dequantize(total.values[start:stop], factor * alpha, bound, target):
                    quantize.check_sum(bound + 1, len(senders))
                if reuse:
                    out[start:stop] = target
        return total._replace(values=out, extras=extras), State(shared)


def _within(segments: Segments, start: int, stop: int) -> Iterator[tuple[int, int, float]]:
    """What of [start, stop) lies in which segment."""
    first = bisect.bisect_right(segments, start, key=lambda segment: segment[1])
    for begin, end, alpha in itertools.islice(segments, first, None):
        if begin >= stop:
            return
        yield max(begin, start), min(end, stop), alpha
