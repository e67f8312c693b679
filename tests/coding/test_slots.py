"""Slots: exact for every cohort and width; digits that nobody can have sent are refused."""

from __future__ import annotations

import numpy as np
import pytest

from flhe.coding.slots import Slots
from flhe.errors import ProtocolError


@pytest.mark.parametrize("capacity", [2047, 3071])
@pytest.mark.parametrize("bits", range(2, 25))
def test_sums_of_extremes_are_exact_for_every_cohort(bits: int, capacity: int) -> None:
    """All N senders at the same border, where N needs another bit, and in between."""
    bound = (1 << (bits - 1)) - 1
    edges = {(1 << k) + d for k in range(1, 11) for d in (-1, 0, 1)}
    for cohort in sorted({*edges, *range(2, 1024, 67)} - {0, 1, 1025}):
        slots = Slots(bound, cohort, capacity)
        assert slots.width <= bits + (cohort - 1).bit_length() + 1
        lanes = np.full(slots.per + 1, bound, np.int32)
        lanes[1::2], lanes[2::5] = -bound, 0
        for times in (cohort, -cohort):
            total = [number * times for number in slots.pack(lanes)]
            opened = slots.digits(total, lanes.size, cohort)
            assert np.array_equal(opened, lanes.astype(np.int64) * times)
    bound = (1 << 53) - 1
    widest, lanes = Slots(bound, 2, capacity), np.array([bound, -bound, 1], np.int64)
    assert widest.width == 56
    opened = widest.digits([2 * n for n in widest.pack(lanes)], 3, 2)
    assert opened.tolist() == (2 * lanes).tolist()


def test_what_cannot_have_been_added_is_refused() -> None:
    slots = Slots(7, 4, 2047)
    (total,) = slots.pack(np.zeros(10, np.int32))
    total += sum(digit << at * slots.width for digit, at in ((8, 1), (-9, 3), (15, 5)))
    assert slots.digits([total], 10, 4).tolist() == [0, 8, 0, -9, 0, 15, 0, 0, 0, 0]
    for batches, length, count, says in (
        ([total], 10, 1, "2 positive and 1 negative: 1 vectors"),
        ([total], 5, 4, "1 slots beyond the last value are not empty"),
        *(([total], 10, count, "slots have room for 1 to 4") for count in (0, 5, -1)),
        ([total, total], 10, 1, "2 batches, 10 values take 1"),
    ):
        with pytest.raises(ProtocolError, match=says):
            slots.digits(batches, length, count)
