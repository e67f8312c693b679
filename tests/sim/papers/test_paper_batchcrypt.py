"""The paper's own batches: what they get right, what they get wrong, and that they say so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.papers.batchcrypt import PaperBatch, Reader, WrongSumsWarning
from flhe_lab.papers.corrections.wrong_sums import OURS, balanced, compare, inputs

READERS: tuple[Reader, ...] = ("text", "program")


def paper(cohort: int, bits: int = 16, **others: Any) -> PaperBatch:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WrongSumsWarning)
        return PaperBatch(cohort, bits, **others)


def added(layout: PaperBatch, rows: list[list[int]]) -> tuple[list[int], list[bool]]:
    batches = [layout.encode(np.array(row, np.int64)) for row in rows]
    sums, saturated = layout.decode(sum(batches), len(rows[0]))
    return sums.tolist(), saturated.tolist()


def test_it_says_what_it_is() -> None:
    with pytest.warns(WrongSumsWarning, match="for comparison only"):
        PaperBatch(2)


@pytest.mark.parametrize("reader", READERS)
def test_the_papers_example(reader: Reader) -> None:
    """Fig. 3b: -1 + (-126) and 1 + (-7), seven bits a value."""
    layout = paper(2, 7, reader=reader)
    first = layout.encode(np.array([1, -1]))
    assert f"{first:022b}" == "0011111111100000000001"
    assert added(layout, [[-1, 1], [-126, -7]]) == ([-127, -6], [False, False])


@given(st.integers(1, 20), st.integers(0, 4), st.data())
def test_a_batch_is_its_slots_written_side_by_side(bits: int, padding: int, data: Any) -> None:
    layout = paper(2, bits, padding=padding)
    value = st.integers(-layout.largest, layout.largest)
    values = data.draw(st.lists(value, min_size=1, max_size=9))
    # Two's complement written by another rule: all ones minus one less than the magnitude.
    fields = [v if v >= 0 else 2 ** (bits + 2) - 1 - (abs(v) - 1) for v in values]
    text = "".join("0" * padding + f"{field:0{bits + 2}b}" for field in reversed(fields))
    assert layout.encode(np.array(values, np.int64)) == int(text, 2)
    assert layout.slot_bits * len(values) == len(text)
    assert added(layout, [values]) == (values, [False] * len(values))


@given(st.integers(1, 20), st.sampled_from(READERS), st.data())
def test_two_clients_get_sums_or_saturation_on_the_right_side(
    bits: int, reader: Reader, data: Any
) -> None:
    layout = paper(2, bits, reader=reader)
    value = st.integers(-layout.largest, layout.largest)
    pairs = data.draw(st.lists(st.tuples(value, value), min_size=1, max_size=9))
    sums, saturated = added(layout, [[a for a, _ in pairs], [b for _, b in pairs]])
    for (a, b), found, full in zip(pairs, sums, saturated, strict=True):
        # -2^r needs no second sign bit, so it is no overflow.
        assert full == (not -layout.largest - 1 <= a + b <= layout.largest)
        assert found == (layout.largest * (1 if a + b > 0 else -1) if full else a + b)


@given(st.integers(3, 4), st.data())
def test_the_text_holds_to_four_clients_if_sums_are_within_range(cohort: int, data: Any) -> None:
    layout = paper(cohort, 8)
    value = st.integers(-(layout.largest // cohort), layout.largest // cohort)
    rows = [
        data.draw(st.lists(value, min_size=6, max_size=6), label=f"client {j}")
        for j in range(cohort)
    ]
    exact = [sum(column) for column in zip(*rows, strict=True)]
    assert added(layout, rows) == (exact, [False] * 6)


def test_carries_of_five_clients_run_into_the_neighbour() -> None:
    sums, saturated = added(paper(5), [[-1, -1, -1]] * 5)
    assert (sums, saturated) == ([-5, -4, -4], [False] * 3)


def test_overflow_of_three_clients_takes_the_other_sign() -> None:
    layout = paper(3)
    most = layout.largest
    assert added(layout, [[most, -most]] * 3) == ([-most, most], [True, True])
    # Of ten it comes round to where two are.
    assert added(paper(10), [[most]] * 10)[0] == [most]


def test_the_program_takes_two_carries_for_overflow() -> None:
    rows = [[-1], [-1], [5]]
    assert added(paper(3), rows) == ([3], [False])
    assert added(paper(3, reader="program"), rows) == ([-65535], [True])


def test_shares_of_wrong_sums() -> None:
    """What the design says of the authors' program, and that ours has none."""
    found = {(c.inputs, c.cohort, c.layout): c for c in compare(batches=10)}
    for (name, cohort, layout), cell in found.items():
        if layout == OURS:
            assert (cell.wrong, cell.saturated, cell.worst) == (0, 0, 0)
        elif cohort == 2:
            assert cell.wrong == 0, name
    program = "paper, as its program"
    scaled, drawn = "Gaussian, scaled in advance", "Gaussian, clipped at 5.83 sigma"
    for name in (scaled, drawn):
        assert 0.15 < found[name, 3, program].wrong < 0.25
        assert 0.7 < found[name, 9, program].wrong < 0.9
        assert 0.75 < found[name, 10, program].wrong < 0.95
    text = found[scaled, 9, "paper, as its text"]
    assert 0.5 < text.wrong < 0.8
    assert 1 <= text.worst <= 2
    assert found[scaled, 9, program].worst > 65535


@given(st.integers(2, 40), st.integers(1, 24), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_ours_is_exact(cohort: int, bits: int, start: int) -> None:
    largest = (1 << bits) - 1
    rng = np.random.default_rng(start)
    values = rng.choice(np.array([-largest, 0, largest, 1, -1]), (cohort, 150))
    assert balanced(values, bits).tolist() == values.sum(axis=0).tolist()


def test_quantizing_clips_is_symmetric_and_scales_in_advance() -> None:
    layout = paper(9, 4)
    x = np.array([-3.0, -2.0, -1.0, 0.0, 0.1, 1.0, 2.0, 5.0])
    assert layout.quantize(x, 2.0).tolist() == [-15, -15, -8, 0, 1, 8, 15, 15]
    scaled = layout.quantize(x, 2.0, advance=True)
    assert scaled.tolist() == [-2, -2, -1, 0, 0, 1, 2, 2]
    assert 9 * int(scaled.max()) >= layout.largest  # rounding up nine times may still exceed it


def test_batch_sizes() -> None:
    """Sec. 6.3 and 6.4: 100 values of 16 bits, 50 of 32 and 200 of 8 under 2048 bits."""
    assert paper(9, 16).slots(2048) == 102
    assert paper(9, 32).slots(2048) >= 50
    assert paper(9, 8).slots(2048) == 170
    assert paper(9, 7).slots(2048) == 186


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cohort": 1}, "2 clients or more"),
        ({"bits": 33}, "1 to 32 bits"),
        ({"padding": -1}, "0 to 16 zeros"),
        ({"reader": "nobody"}, "'text' or 'program'"),
        ({"reader": "program", "padding": 3}, "built for 2"),
    ],
)
def test_what_cannot_work_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PaperBatch(**{"cohort": 2, **changed})
    with pytest.raises(ConfigError, match="beyond 15"):
        paper(2, 4).encode(np.array([16]))


def test_inputs_are_within_range() -> None:
    for name, values in inputs(9, 500, 6).items():
        assert values.shape == (9, 500), name
        assert int(np.abs(values).max()) <= 63, name
