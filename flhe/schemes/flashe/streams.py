"""Mask streams F(j, .): which of them a set of senders leaves in a sum, and their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import BLOCK, CHUNK, Stream
from flhe.schemes.shell import windows

Mode = Literal["double", "single"]
"""A masking that vectors are under: what an adaptive round comes down to."""

Terms = tuple[list[int], list[int]]
"""Streams that are added, and those that are taken away."""


def telescoped(senders: Iterable[int], mode: Mode) -> Terms:
    """Streams that `senders` added in total, and streams that they took away."""
    present = sorted(senders)
    if mode == "single":
        return present, []
    inside = set(present)
    plus = [j for j in present if j - 1 not in inside]
    minus = [j + 1 for j in present if j + 1 not in inside]
    return plus, minus


def masks(
    key: bytes, lane: Any, terms: Terms, start: int, stop: int
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Read the sum of streams forwards, modulo 2**lane, from any lane that starts a block.

    Yields first and last place, and the lanes between, which the next step overwrites.
    """
    size = np.dtype(lane).itemsize
    added, taken = ([Stream(key, j, start * size // BLOCK) for j in part] for part in terms)
    one, two = np.empty(CHUNK + BLOCK, np.uint8), np.empty(CHUNK + BLOCK, np.uint8)
    for at, end in windows(start, stop, CHUNK // size):
        nbytes = (end - at) * size
        total: NDArray[Any] = one[:nbytes].view(lane)
        lanes: NDArray[Any] = two[:nbytes].view(lane)
        if not added:
            total[:] = 0
        for i, stream in enumerate(added):
            stream.into(two if i else one, nbytes)
            if i:
                np.add(total, lanes, out=total)
        for stream in taken:
            stream.into(two, nbytes)
            np.subtract(total, lanes, out=total)
        yield at, end, total
