"""Clip, Weigh and Quantize in one pass, and the same backwards.

Encoding gives the very integers that the three codecs give one after the other, for the same rounding
values; decoding differs from them by at most the last bit of a float32, because the three factors are
multiplied first. Tests hold both to the separate codecs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.clip import AT_ALPHA, Clip, Segments, check_clipped, raise_not_finite
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.math.buffers import empty
from flhe.math.prg import PIECE


def encode(
    clip: Clip,
    weigh: Weigh,
    quantize: Quantize,
    plain: Plain,
    segments: Segments,
) -> Plain:
    """float32 in, `quantize.dtype` out, shape (length,); raises what the three codecs raise."""
    from flhe.math import kernels

    x = plain.values
    weight = weigh.factor(plain)
    out = empty(x.size, quantize.dtype)
    outside = 0
    source = quantize.source()
    for start, stop, alpha in _parts(segments):
        outside += kernels.quantize(
            x[start:stop],
            np.float32(1 / alpha),
            AT_ALPHA,
            weight,
            float(quantize.levels),
            source.next(stop - start),
            quantize.offset,
            out[start:stop],
        )
    if outside and not np.all(np.isfinite(x)):
        raise_not_finite()
    check_clipped(outside, x.size)
    return plain._replace(values=out, extras=quantize.split(plain.extras))


def decode(
    clip: Clip,
    weigh: Weigh,
    quantize: Quantize,
    total: Plain,
    senders: Sequence[int],
    segments: Segments,
) -> Plain:
    """Integers in, float32 weighted mean out; raises what the three codecs raise."""
    from flhe.math import kernels

    if total.extras.size:
        quantize.check_sum(int(np.abs(total.extras.astype(np.int64)).max()), len(senders))
    extras = quantize.join(total.extras)
    factor = weigh.mean_factor(total._replace(extras=extras), senders) * quantize.step
    out = empty(total.values.size, np.float32)
    bound = len(senders) * quantize.levels
    for start, stop, alpha in _parts(segments):
        part = total.values[start:stop]
        if kernels.dequantize(part, factor * alpha, bound, out[start:stop]):
            quantize.check_sum(bound + 1, len(senders))
    return total._replace(values=out, extras=extras)


def _parts(segments: Segments) -> Iterator[tuple[int, int, float]]:
    """Segments cut into pieces that stay in cache."""
    for start, stop, alpha in segments:
        for at in range(start, stop, PIECE):
            yield at, min(at + PIECE, stop), alpha
