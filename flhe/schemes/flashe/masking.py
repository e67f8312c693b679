"""Mask streams F(j, .): the streams in a sum, and the cheaper masking.

A mask is one value of a stream F(j, .), and making masks is FLASHE's cost. In a dense round each of
the (1 - d) N surviving clients makes, for each value, in expectation            (FLASHE, Theorem 2)

    double    2 (-N d**2 + (N - 1) d + 2)        2 to encrypt, 2 for each run of survivors to open
    single    -N d + N + 1                       1 to encrypt, 1 for each survivor to open

In a sparse round every coordinate has its own senders, which the server counts before the clients
encrypt                                                                 (FLASHE, Alg. 1, line 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flhe.math.keystream import Terms

Mode = Literal["double", "single"]
"""A masking of vectors; adaptive masking chooses one of them each round."""

Bitmap = tuple[int, NDArray[np.uint64]]
"""Rank of a sender, and words: bit d % 64 of word d // 64 is set if it sends coordinate d."""


def telescoped(senders: Iterable[int], mode: Mode) -> Terms:
    """Return the streams that `senders` added in total, and those that they subtracted."""
    present = sorted(senders)
    if mode == "single":
        return present, []
    inside = set(present)
    plus = [j for j in present if j - 1 not in inside]
    minus = [j + 1 for j in present if j + 1 not in inside]
    return plus, minus


def expected(masking: Mode, members: int, dropout: float) -> float:
    """Return the masks that a surviving client makes for one dense value (FLASHE, Theorem 2).

    Of N `members`, 2 or more, a share d, 0 to 1, does not upload.
    """
    if masking == "single":
        return -members * dropout + members + 1
    return 2 * (-members * dropout**2 + (members - 1) * dropout + 2)


def cheaper(single: float, double: float) -> Mode:
    """Return the masking with fewer masks; double on a tie, since opening it grows with runs only."""
    return "single" if single < double else "double"


def for_dropout(members: int, dropout: float) -> Mode:
    """Return the cheaper masking of a dense round; see `expected`."""
    return cheaper(expected("single", members, dropout), expected("double", members, dropout))


def for_supports(bitmaps: Sequence[Bitmap], extras: int, readers: int) -> tuple[Mode, int, int]:
    """Return the cheaper masking of a sparse round, and all clients' masks, single and double.

    Bitmaps are by ascending rank, all of one length; bits beyond the last coordinate are zero.
    Every sender sends `extras` beside its coordinates; `readers` open the sum.
    """
    sent = starts = 0
    before: Bitmap = (-2, np.empty(0, np.uint64))
    for rank, words in bitmaps:
        sent += extras + _ones(words)
        # A sender starts a run if the rank before it does not send.
        if before[0] == rank - 1:
            starts += _ones(words & ~before[1])
        else:
            starts += extras + _ones(words)
        before = rank, words
    single, double = sent + readers * sent, 2 * sent + readers * 2 * starts
    return cheaper(single, double), single, double


def _ones(words: NDArray[np.uint64]) -> int:
    return int(np.bitwise_count(words).sum(dtype=np.int64))
