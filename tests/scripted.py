"""A Prg whose words are written down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import Stream


class Scripted:
    """Words of 64 bits, a function of stream and place; it keeps which streams were asked for."""

    name = "scripted"

    def __init__(self, word: Callable[[int, int], int]) -> None:
        self.word = word
        self.asked: set[int] = set()

    def stream(self, key: bytes, number: int, block: int = 0) -> Stream:
        self.asked.add(number)
        return _Stream(lambda i: self.word(number, i), 2 * block)


class _Stream:
    def __init__(self, word: Callable[[int], int], at: int) -> None:
        self.word, self.at = word, at

    def into(self, out: NDArray[np.uint8], nbytes: int) -> None:
        assert nbytes % 8 == 0
        assert out.size >= nbytes + 16
        count = nbytes // 8
        made = np.array([self.word(self.at + i) for i in range(count)], np.uint64)
        out[:nbytes] = made.view(np.uint8)
        self.at += count
