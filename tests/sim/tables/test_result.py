"""A number keeps its weakest mark, and a result says the same in CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.tables.chart import Chart, draw
from flhe_lab.tables.result import (
    LEGEND,
    MARKS,
    PAPERS,
    Entry,
    Marked,
    Result,
    counted,
    derived,
    measured,
    projected,
    published,
    ratios,
    sampled,
    short,
    to_csv,
    to_markdown,
    weakest,
)

# --- a number keeps the weakest mark of what it is made of ---

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
    for number in (a, published(3.0)):  # another unit
        marks = [made.mark for made in (number * factor, factor * number, number / factor)]
        assert marks == [number.mark] * 3
    assert (factor * a).value == a.value * factor
    assert sum([a, a], a).value == pytest.approx(3 * a.value)


@given(NUMBERS)
def test_a_papers_number_never_mixes_with_ours(a: Marked) -> None:
    for mixed in (lambda: a / published(2.0), lambda: published(2.0) + a):
        with pytest.raises(ConfigError, match="do not mix"):
            mixed()
    made = published(3.0) / published(2.0)
    assert (made.mark, (made + made).mark) == ("derived", "derived")


def test_marks_are_known_and_tell_apart() -> None:
    assert all(f"- *{mark}*: " in LEGEND for mark in MARKS)
    assert weakest("counted", projected(1).mark, "measured") == "projected"


# --- what a result says is the same in CSV and Markdown, and no number goes without its mark ---

ENTRIES = (
    Entry("CNN", "ours", "ours", "time", "s", measured(2.0), 1.0),
    Entry("CNN", "phe", "peer", "time", "s", sampled(8.0), 1.0),
    Entry("CNN", "Pai", "paper", "time", "s", published(20.0), 1.0),
    Entry("CNN", "FLASHE", "paper", "time", "s", derived(5.0), 1.0),
    Entry("GRU", "ours", "ours", "time", "s", projected(1.0), 2.0),
    Entry("GRU", "ours", "ours", "size", "MB", counted(0.25), 2.0),
)


def result(**changes: object) -> Result:
    fields = {"name": "x", "source": "P, Table 1", "title": "t", "entries": ENTRIES} | changes
    return Result(**fields)  # type: ignore[arg-type]


def test_csv_has_a_line_and_a_mark_for_each_number() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(result()))))
    assert [(line["row"], line["who"], float(line["value"]), line["mark"]) for line in lines] == [
        (e.row, e.who, e.number.value, e.number.mark) for e in ENTRIES
    ]


def test_markdown_has_a_line_for_each_row_and_who_and_a_word_behind_each_number() -> None:
    lines = to_markdown(result()).splitlines()
    assert lines[0] == "|  |  | time, s | size, MB |"
    assert lines[2] == "| CNN | ours | 2 <sup>measured</sup> |  |"
    assert lines[4] == "|  | *paper:* Pai | 20 <sup>published</sup> |  |"
    assert lines[-1] == "| GRU | ours | 1 <sup>projected</sup> | 0.25 <sup>counted</sup> |"
    shown = " ".join(lines[2:])
    for mark in MARKS:
        assert f" <sup>{mark}</sup> " in shown


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: counted(float("nan")), "finite"),
        (lambda: counted(float("inf")), "finite"),
        (lambda: Marked(1.0, "guessed"), "choose from"),  # type: ignore[arg-type]
        (lambda: result(entries=(*ENTRIES, ENTRIES[0])), "two entries"),
        (lambda: result(entries=()), "no entries"),
        (lambda: Entry("CNN", "Pai", "paper", "time", "s", measured(1.0)), "published"),
        (lambda: Entry("CNN", "ours", "ours", "time", "s", published(1.0)), "published"),
    ],
)
def test_what_no_table_says(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_ratios_are_to_ones_own_kind() -> None:
    found = {(e.row, e.who): e.number for e in ratios(ENTRIES, "time", "ours")}
    assert found[("CNN", "phe")] == sampled(4.0)
    assert ("CNN", "Pai") not in found  # the paper has nobody of that name
    theirs = {e.who: e.number.value for e in ratios(ENTRIES, "time", "FLASHE")}
    assert theirs == {"Pai": 4.0, "FLASHE": 1.0}
    told = Entry("CNN", "Pai", "paper", "time, to FLASHE", "x", published(3.9), 1.0)
    assert "Pai" not in {e.who for e in ratios((*ENTRIES, told), "time", "FLASHE")}


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1234567, "1,234,567"), (1234.5, "1,234"), (123.45, "123.5"), (1.234, "1.23")],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert short(value) == said


@pytest.mark.parametrize(
    "chart",
    [
        Chart("lines", ("time",), "What to see.", log=True, log_x=True, xlabel="clients"),
        Chart("dots", ("time", "size"), "What to see.", log=True),
        Chart("dots", ("size",), "What to see."),
        Chart("bars", ("time",), "What to see.", log=True),
    ],
)
def test_each_kind_of_chart_is_drawn(chart: Chart, tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    draw(result(chart=chart), path)
    assert "What to see." in path.read_text()
