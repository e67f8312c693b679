"""Uniform field elements: the definition with another AES, and words that are no use."""

from __future__ import annotations

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe.math.keystream import CHUNK
from flhe.math.prg import FieldElements, random_elements
from flhe.math.ring import Q
from tests.reference.field import elements as by_definition
from tests.reference.wire import word

KEY = bytes(range(32))
ONES = 2**64 - 1


@pytest.mark.parametrize("n", [2048, 2047])
@pytest.mark.parametrize("first", [0, 1])
def test_more_than_one_call_of_aes(first: int, n: int) -> None:
    """Blocks that cross from one call into the next, whole pairs of words or not."""
    elements = FieldElements(KEY)
    count = 2 * CHUNK // (8 * n) + 3
    made = elements.blocks(first, count, n)
    parts = [elements.blocks(first + j, 1, n)[0] for j in range(count)]
    assert np.array_equal(made, np.stack(parts))
    border = CHUNK // 8
    expected = [word(KEY, 0, first * n + border + i) for i in range(-3, 3)]
    assert made.ravel()[border - 3 : border + 3].tolist() == expected


# --- words that are no use ---


@pytest.mark.parametrize("modulus", [2, 3, 1009, 2**40 - 87, 2**63 - 25, 2**63 + 29, Q, ONES])
@pytest.mark.parametrize("first", [0, 3])
def test_elements_of_any_modulus(modulus: int, first: int) -> None:
    """Low bits of words; those that are not below the modulus come from the block's own stream."""
    made = FieldElements(KEY, modulus).blocks(first, 3, 31).tolist()
    assert made == [by_definition(KEY, first + j, 31, modulus) for j in range(3)]


def test_random_elements_draw_again() -> None:
    draws, asked = [[5, Q, 7, ONES], [Q + 1, 6], [8]], []

    def scripted(length: int) -> bytes:
        asked.append(length)
        return np.array(draws[len(asked) - 1], np.uint64).tobytes()

    made = random_elements(4, scripted)
    assert made.tolist() == [5, 8, 7, 6]
    assert asked == [32, 16, 8]
    made[0] = 1  # may be written to, unlike the bytes that it was made of
    assert len({*random_elements(500).tolist(), *random_elements(500).tolist()}) == 1000


def test_a_random_source_that_gives_less_is_refused() -> None:
    with pytest.raises(ConfigError, match="gave 8 bytes, 32 were asked for"):
        random_elements(4, lambda count: bytes(8))
    answers = iter([b"\xff" * 8 * 3, bytes(8)])  # two must be drawn again, or one stood for both
    with pytest.raises(ConfigError, match="gave 8 bytes, 24 were asked for"):
        random_elements(3, lambda count: next(answers))
