"""The paper's own batches: what they get right, what they get wrong, and that they say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe_lab.papers.batchcrypt import PaperBatch, Reader

READERS: tuple[Reader, ...] = ("text", "program")


def added(layout: PaperBatch, rows: list[list[int]]) -> tuple[list[int], list[bool]]:
    batches = [layout.encode(np.array(row, np.int64)) for row in rows]
    sums, saturated = layout.decode(sum(batches), len(rows[0]))
    return sums.tolist(), saturated.tolist()


@pytest.mark.parametrize("reader", READERS)
def test_the_papers_example(reader: Reader) -> None:
    """Fig. 3b: -1 + (-126) and 1 + (-7), seven bits a value."""
    layout = PaperBatch(7, reader=reader)
    first = layout.encode(np.array([1, -1]))
    assert f"{first:022b}" == "0011111111100000000001"
    assert added(layout, [[-1, 1], [-126, -7]]) == ([-127, -6], [False, False])


@given(st.integers(1, 20), st.sampled_from(READERS), st.data())
def test_two_clients_get_sums_or_saturation_on_the_right_side(
    bits: int, reader: Reader, data: Any
) -> None:
    layout = PaperBatch(bits, reader=reader)
    value = st.integers(-layout.largest, layout.largest)
    pairs = data.draw(st.lists(st.tuples(value, value), min_size=1, max_size=9))
    sums, saturated = added(layout, [[a for a, _ in pairs], [b for _, b in pairs]])
    for (a, b), found, full in zip(pairs, sums, saturated, strict=True):
        # -2^r needs no second sign bit, so it is no overflow.
        assert full == (not -layout.largest - 1 <= a + b <= layout.largest)
        assert found == (layout.largest * (1 if a + b > 0 else -1) if full else a + b)
