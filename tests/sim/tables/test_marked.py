"""A number keeps the weakest mark of what it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.tables.result import (
    LEGEND,
    MARKS,
    PAPERS,
    Marked,
    counted,
    projected,
    published,
    weakest,
)

OURS = st.sampled_from([mark for mark in MARKS if mark not in PAPERS])
VALUES = st.floats(0.1, 1e6)
NUMBERS = st.builds(Marked, VALUES, OURS)


@given(NUMBERS, NUMBERS)
def test_arithmetic_is_that_of_numbers_and_marks_only_weaken(a: Marked, b: Marked) -> None:
    for made, value in (
        (a + b, a.value + b.value),
        (a - b, a.value - b.value),
        (a * b, a.value * b.value),
        (a / b, a.value / b.value),
    ):
        assert made.value == value
        assert MARKS.index(made.mark) == max(MARKS.index(a.mark), MARKS.index(b.mark))


@given(NUMBERS, VALUES)
def test_a_bare_factor_leaves_the_mark(a: Marked, factor: float) -> None:
    assert (a * factor).mark == (factor * a).mark == (a / factor).mark == a.mark
    assert (factor * a).value == a.value * factor
    assert sum([a, a], a).value == pytest.approx(3 * a.value)


@given(NUMBERS)
def test_a_papers_number_never_mixes_with_ours(a: Marked) -> None:
    with pytest.raises(ConfigError, match="do not mix"):
        _ = a / published(2.0)
    with pytest.raises(ConfigError, match="do not mix"):
        _ = published(2.0) + a
    made = published(3.0) / published(2.0)
    assert (made.mark, (made + made).mark) == ("derived", "derived")
    assert (published(3.0) * 1024).mark == "published"  # another unit


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_is_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="finite"):
        counted(value)


def test_marks_are_known_and_tell_apart() -> None:
    with pytest.raises(ConfigError, match="choose from"):
        Marked(1.0, "guessed")  # type: ignore[arg-type]
    assert all(f"- *{mark}*: " in LEGEND for mark in MARKS)
    assert weakest("counted", projected(1).mark, "measured") == "projected"
