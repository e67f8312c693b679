"""Slots: exact for every cohort and width, and a digit that nobody can have sent is told by its
sign."""

from __future__ import annotations

from typing import Any

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.slots import MAX_WIDTH, Slots
from flhe.errors import ConfigError, ProtocolError


def batched(values: list[int], width: int, per: int) -> list[int]:
    """The law itself: sum of v_k 2^(L k), batch by batch."""
    return [
        sum(v << (width * k) for k, v in enumerate(values[at : at + per]))
        for at in range(0, len(values), per)
    ]


def digits(number: int, width: int, count: int) -> list[int]:
    """Balanced digits by long division."""
    out = []
    for _ in range(count):
        digit = (number + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))
        out.append(digit)
        number = (number - digit) >> width
    assert number == 0
    return out


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 1024),
    st.integers(2, 32),
    st.integers(60, 4095),
    st.integers(0, 300),
    st.randoms(),
)
def test_a_batch_is_what_the_law_says(
    cohort: int, bits: int, capacity: int, length: int, random: Any
) -> None:
    bound = (1 << (bits - 1)) - 1
    slots = Slots(bound, cohort, capacity)
    values = [random.randint(-bound, bound) for _ in range(length)]
    packed = slots.pack(np.array(values, np.int32))
    assert [int(number) for number in packed] == batched(values, slots.width, slots.per)
    assert all(abs(number) < 1 << (capacity - 2) for number in packed)
    assert slots.unpack(packed, length, 1).tolist() == values
    for number, at in zip(packed, range(0, length, slots.per), strict=True):
        part = values[at : at + slots.per]
        assert digits(int(number), slots.width, len(part)) == part


@pytest.mark.parametrize("capacity", [2047, 3071])
@pytest.mark.parametrize("bits", range(2, 25))
def test_sums_of_extremes_are_exact_for_every_cohort(bits: int, capacity: int) -> None:
    """All N senders at the same border, where N needs another bit, and in between."""
    bound = (1 << (bits - 1)) - 1
    edges = {(1 << k) + d for k in range(1, 11) for d in (-1, 0, 1)}
    for cohort in sorted({*edges, *range(2, 1024, 67)} - {0, 1, 1025}):
        slots = Slots(bound, cohort, capacity)
        assert slots.width <= bits + (cohort - 1).bit_length() + 1
        length = slots.per + 1
        lanes = np.full(length, bound, np.int32)
        lanes[1::2] = -bound
        lanes[2::5] = 0
        (one, two) = slots.pack(lanes)
        top = slots.unpack([one * cohort, two * cohort], length, cohort)
        assert np.array_equal(top, lanes.astype(np.int64) * cohort)
        flipped = slots.unpack([-one * cohort, -two * cohort], length, cohort)
        assert np.array_equal(flipped, -lanes.astype(np.int64) * cohort)


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("place", [0, 5, 96])
def test_one_more_than_senders_can_have_is_an_overflow_with_a_sign(place: int, by: int) -> None:
    slots = Slots(32767, 9, 2047)
    lanes = np.full(97, by * 32767, np.int32)
    total = [9 * number + (by << (slots.width * place)) for number in slots.pack(lanes)]
    with pytest.raises(ProtocolError, match=f"1 {'positive' if by > 0 else 'negative'}: 9 vectors"):
        slots.unpack(total, 97, 9)


def test_overflows_of_both_signs_are_counted() -> None:
    slots = Slots(7, 4, 2047)
    width = slots.width
    total = slots.pack(np.zeros(10, np.int32))
    total[0] += (8 << width) - (9 << 3 * width) + (15 << 5 * width)
    with pytest.raises(ProtocolError, match="2 positive and 1 negative: 1 vectors"):
        slots.unpack(total, 10, 1)
    assert slots.unpack(total, 10, 4).tolist() == [0, 8, 0, -9, 0, 15, 0, 0, 0, 0]


def test_numbers_beyond_all_slots_overflow() -> None:
    slots = Slots(32767, 9, 2047)
    for number, sign in ((1 << 2046, "positive"), (-(1 << 2046), "negative")):
        with pytest.raises(ProtocolError, match=f"1 {sign}"):
            slots.unpack([gmpy2.mpz(number)], 97, 9)


def test_slots_beyond_the_last_value_must_be_empty() -> None:
    slots = Slots(32767, 9, 2047)
    total = slots.pack(np.ones(96, np.int32))
    assert slots.unpack(total, 96, 9).tolist() == [1] * 96
    total[0] += 1 << (slots.width * 96)
    with pytest.raises(ProtocolError, match="1 slots beyond the last value are not empty"):
        slots.unpack(total, 96, 9)


def test_wrong_counts_are_refused() -> None:
    slots = Slots(100, 4, 2047)
    total = slots.pack(np.ones(3, np.int32))
    for count in (0, 5, -1):
        with pytest.raises(ProtocolError, match="slots have room for 1 to 4"):
            slots.unpack(total, 3, count)
    with pytest.raises(ProtocolError, match="2 batches, 3 values take 1"):
        slots.unpack([*total, *total], 3, 1)


@pytest.mark.parametrize(
    ("bound", "cohort", "capacity"), [(0, 3, 99), (1, 0, 99), (1 << 55, 2, 4000), (100, 2, 9)]
)
def test_what_cannot_work_is_refused(bound: int, cohort: int, capacity: int) -> None:
    with pytest.raises(ConfigError):
        Slots(bound, cohort, capacity)


def test_the_widest_that_there_is() -> None:
    bound = (1 << 53) - 1
    slots = Slots(bound, 2, 2047)
    assert slots.width == MAX_WIDTH
    lanes = np.array([bound, -bound, 1], np.int64)
    assert slots.unpack([2 * n for n in slots.pack(lanes)], 3, 2).tolist() == (2 * lanes).tolist()
