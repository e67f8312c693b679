"""Mask streams F(j, .): which ones a sum has, their lanes, and which masking is cheaper.

A mask is one value of a stream F(j, .): making them is what FLASHE costs. A dense round takes, for each
value and each of the (1 - d) N clients that survive, in expectation            (FLASHE, Theorem 2)

    double    2 (-N d**2 + (N - 1) d + 2)        2 to encrypt, 2 for each run of survivors to open
    single    -N d + N + 1                       1 to encrypt, 1 for each survivor to open

In a sparse round every coordinate has senders of its own, which the server counts before anybody
encrypts                                                                 (FLASHE, Alg. 1, line 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.prg import BLOCK, CHUNK, Stream
from flhe.schemes.shell import windows

Mode = Literal["double", "single"]
"""A masking that vectors are under: what an adaptive round comes down to."""

Bitmap = tuple[int, NDArray[np.uint64]]
"""Rank of a sender, and words: bit d % 64 of word d // 64 says that it sends coordinate d."""

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


def expected(masking: Mode, members: int, dropout: float) -> float:
    """Masks that a surviving client makes for one value of a dense round (FLASHE, Theorem 2).

    N `members`, 2 or more, of whom a share d, 0 to 1, does not upload; ConfigError for others.
    """
    if members < 2:
        raise ConfigError(f"masks among members={members}: must be 2 or more")
    if not 0 <= dropout <= 1:
        raise ConfigError(f"masks under dropout={dropout}: must be 0 to 1")
    if masking == "single":
        return -members * dropout + members + 1
    return 2 * (-members * dropout**2 + (members - 1) * dropout + 2)


def cheaper(single: float, double: float) -> Mode:
    """The masking that takes fewer masks; double on a tie, whose opening grows with runs only."""
    return "single" if single < double else "double"


def for_dropout(members: int, dropout: float) -> Mode:
    """The cheaper masking of a dense round; see `expected`."""
    return cheaper(expected("single", members, dropout), expected("double", members, dropout))


def for_supports(bitmaps: Sequence[Bitmap], extras: int, readers: int) -> tuple[Mode, int, int]:
    """The cheaper masking of a sparse round, and the masks that all clients make, single and double.

    Bitmaps are by ascending rank, all of one length; bits beyond the last coordinate are zero. Every
    sender sends `extras` beside its coordinates; `readers` open the sum.
    """
    sent = starts = 0
    before: Bitmap = (-2, np.empty(0, np.uint64))
    for rank, words in bitmaps:
        sent += extras + _ones(words)
        # A sender starts a run where the rank before it does not send.
        if before[0] == rank - 1:
            starts += _ones(words & ~before[1])
        else:
            starts += extras + _ones(words)
        before = rank, words
    single, double = sent + readers * sent, 2 * sent + readers * 2 * starts
    return cheaper(single, double), single, double


def _ones(words: NDArray[np.uint64]) -> int:
    return int(np.bitwise_count(words).sum(dtype=np.int64))
