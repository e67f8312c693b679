"""Permutations, a second time: one AES block, one word and one coordinate at a time.

A queue of places that still want a word; a network whose halves take turns.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator

from tests.reference.wire import block, little_read

SMALL = 2**16
"""Below it, a shuffle; from it on, a network."""


def _words(key: bytes, stream: int) -> Iterator[int]:
    for number in itertools.count():
        yield from little_read(block(key, stream, number), 4)


def below(key: bytes, stream: int, bounds: list[int]) -> tuple[list[int], int]:
    """A number below each bound, and how many words were no use: their places queue up again."""
    picked, drawn = [0] * len(bounds), _words(key, stream)
    waiting, useless = deque(range(len(bounds))), 0
    while waiting:
        at, word = waiting.popleft(), next(drawn)
        bound = bounds[at]
        if word >= 2**32 - 2**32 % bound:
            waiting.append(at)
            useless += 1
        else:
            picked[at] = word % bound
    return picked, useless


class Shuffle:
    """All images in a list."""

    def __init__(self, key: bytes, length: int) -> None:
        picks, self.redrawn = below(key, 0, list(range(1, length + 1)))
        self.images = list(range(length))
        for last in reversed(range(1, length)):
            one, other = self.images[last], self.images[picks[last]]
            self.images[last], self.images[picks[last]] = other, one

    def forward(self, d: int) -> int:
        return self.images[d]

    def inverse(self, d: int) -> int:
        return self.images.index(d)


class Network:
    """Twelve rounds, the left half and the right half by turns."""

    def __init__(self, key: bytes, length: int) -> None:
        self.length = length
        a = math.isqrt(length)
        if a * a < length:
            a += 1
        self.sizes = (a, (length + a - 1) // a)
        drawn = [below(key, i, [self.sizes[i % 2]] * self.sizes[1 - i % 2]) for i in range(12)]
        self.tables = [table for table, _ in drawn]
        self.redrawn = sum(useless for _, useless in drawn)

    def once(self, d: int, sign: int) -> int:
        """Through all rounds, or with a sign of -1 back through them; may leave the length."""
        halves = list(divmod(d, self.sizes[1]))
        for i in range(12)[::sign]:
            mine, other = i % 2, 1 - i % 2
            halves[mine] = (halves[mine] + sign * self.tables[i][halves[other]]) % self.sizes[mine]
        return halves[0] * self.sizes[1] + halves[1]

    def walk(self, d: int, sign: int) -> list[int]:
        """Everything that comes after d until one is a coordinate."""
        path = [self.once(d, sign)]
        while path[-1] >= self.length:
            path.append(self.once(path[-1], sign))
        return path

    def forward(self, d: int) -> int:
        return self.walk(d, 1)[-1]

    def inverse(self, d: int) -> int:
        return self.walk(d, -1)[-1]


def permutation(key: bytes, length: int) -> Shuffle | Network:
    return Shuffle(key, length) if length < SMALL else Network(key, length)
