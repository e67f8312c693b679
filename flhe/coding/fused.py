"""Clip, Weigh and Quantize in one pass, and the same backwards.

Encoding gives the very integers that the three codecs give one after the other, for the same rounding
values; decoding differs from them by at most the last bit of a float32, because the three factors are
multiplied first. Tests hold both to the separate codecs.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.clip import AT_ALPHA, Clip, raise_not_finite
from flhe.coding.quantize import Quantize
from flhe.coding.squares import Layers, Segments
from flhe.coding.weigh import Weigh
from flhe.math.buffers import empty
from flhe.math.prg import PIECE


def encode(
    clip: Clip,
    weigh: Weigh,
    quantize: Quantize,
    plain: Plain,
    shared: Layers,
) -> Plain:
    """float32 in, `quantize.dtype` out, shape (length,); raises what the three codecs raise."""
    x = plain.values
    parts = (x[at : at + PIECE] for at in range(0, x.size, PIECE))
    encoded = encode_parts(clip, weigh, quantize, parts, x.size, plain.extras, shared, plain.coords)
    return plain._replace(values=encoded.values, extras=encoded.extras)


def encode_parts(
    clip: Clip,
    weigh: Weigh,
    quantize: Quantize,
    parts: Iterable[NDArray[np.float32]],
    length: int,
    extras: NDArray[Any],
    shared: Layers,
    coords: NDArray[np.uint32] | None = None,
) -> Plain:
    """As `encode`, for a vector of `length` that comes in parts of at most PIECE, in order."""
    from flhe.math import kernels

    segments = clip.segments(shared, coords)
    excess = clip.excess(extras)
    tally = clip.tally(shared, coords, excess)
    out = empty(length, quantize.dtype)
    weight = weigh.factor(Plain(out, extras))
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
    clip.check_clipped(outside, length, excess)
    extras = np.concatenate([extras, clip.told(tally, shared)])
    return Plain(out, quantize.split(extras), coords)


def decode(
    clip: Clip,
    weigh: Weigh,
    quantize: Quantize,
    total: Plain,
    senders: Sequence[int],
    shared: Layers,
    *,
    reuse: bool = False,
) -> tuple[Plain, Layers]:
    """Integers in, float32 weighted mean out; raises what the three codecs raise.

    With `reuse`, 32-bit integers make room for the mean: `total.values` is overwritten.
    """
    from flhe.math import kernels

    if total.extras.size:
        quantize.check_sum(int(np.abs(total.extras.astype(np.int64)).max()), len(senders))
    extras = quantize.join(total.extras)
    factor = weigh.mean_factor(total._replace(extras=extras), senders) * quantize.step
    segments = clip.segments(shared, total.coords)
    extras, shared = clip.after(extras, len(senders), shared)
    reuse = reuse and total.values.dtype == np.int32 and total.values.flags.c_contiguous
    out = total.values.view(np.float32) if reuse else empty(total.values.size, np.float32)
    scratch = np.empty(PIECE if reuse else 0, np.float32)
    bound = len(senders) * quantize.levels
    for start, stop, alpha in _parts(segments):
        # The kernel gets memory of its own: it would be slow on one that it reads and writes.
        target = scratch[: stop - start] if reuse else out[start:stop]
        if kernels.dequantize(total.values[start:stop], factor * alpha, bound, target):
            quantize.check_sum(bound + 1, len(senders))
        if reuse:
            out[start:stop] = target
    return total._replace(values=out, extras=extras), shared


def _parts(segments: Segments) -> Iterator[tuple[int, int, float]]:
    """Segments cut into pieces that stay in cache."""
    for start, stop, alpha in segments:
        for at in range(start, stop, PIECE):
            yield at, min(at + PIECE, stop), alpha


def _within(segments: Segments, start: int, stop: int) -> Iterator[tuple[int, int, float]]:
    """What of [start, stop) lies in which segment."""
    first = bisect.bisect_right(segments, start, key=lambda segment: segment[1])
    for begin, end, alpha in itertools.islice(segments, first, None):
        if begin >= stop:
            return
        yield max(begin, start), min(end, stop), alpha
