"""All tables at once, and docs/results.md, which is what they make of the measurements beside it."""

from __future__ import annotations

import csv
import io
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe_lab.tables import headlines, runner, sash_times
from flhe_lab.tables.batchcrypt import ROUNDS, steps
from flhe_lab.tables.command import sections
from flhe_lab.tables.result import MARKS, PAPERS, Result, to_markdown
from flhe_lab.tables.table import Plan, Section

# --- a quick run fills what a full one fills; notes say what is so of the papers ---

QUICK, FULL = Plan(quick=True), Plan(quick=False)
DOCS = Path(__file__).parents[3] / "docs"
FOLDER = DOCS / "results"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
MEASURED = {p.stem: json.loads(p.read_text("utf-8")) for p in FOLDER.glob("measured/*.json")}
STORED = {stem: document["data"] for stem, document in MEASURED.items()}


def kind(key: str) -> str:
    """A step's key without sizes."""
    return re.sub(r"(?<=-)\d{3,}(?=-|$)", "", key)


def quickly(section: Section) -> dict[str, Any]:
    """What a quick run's steps would leave, of what full ones have left, whatever its size."""
    found = {}
    for step in section.steps(QUICK):
        ways = (str, kind, lambda key: re.sub(r"(-[\d.]*)+$", "", kind(key)))
        like = (STORED[key] for way in ways for key in sorted(STORED) if way(key) == way(step.key))
        found[step.key] = next(like)
    return found


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_a_quick_run_has_the_same_tables(section: Section) -> None:
    results = section.report(QUICK, quickly(section))
    assert results
    for result in results:
        assert (FOLDER / f"{result.name}.md").exists()
        assert to_markdown(result).count("<sup>") == len(result.entries)


def test_steps_are_shared() -> None:
    for plan in (QUICK, FULL):
        assert len(runner.steps_of(list(ROUNDS.values()), plan)) == len(steps(plan))
        assert len(steps(plan)) == (
            2 if plan.quick else 6
        )  # costs and training, of one model or three
        keys = {step.key for step in sash_times.SECTIONS[0].steps(plan)}
        assert sash_times.ratio_step(plan).key in keys
    assert next(section.name for section in sections(["sash"])) == "sash-figure-3"
    with pytest.raises(ConfigError, match="'none': choose from headlines"):
        sections(["none"])


def test_a_ratio_that_does_not_hold_says_so() -> None:
    (section,) = headlines.SECTIONS
    point = sash_times.ratio_step(FULL).key
    slow = {**STORED[point]["SASH"], "client": 1e3}
    for sash, said in ((STORED[point]["SASH"], "holds"), (slow, "does NOT hold")):
        (result,) = section.report(FULL, STORED | {point: {**STORED[point], "SASH": sash}})
        (line_,) = (e for e in result.entries if "Flower" in e.row and e.group == "ours")
        assert line_.who.endswith(said)


# --- docs/results.md is what the sections make of the measurements beside it, and nothing else ---


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Result], Path]:
    """All results and their pages, made again of what is kept; no picture is drawn."""
    place = tmp_path_factory.mktemp("again")
    (place / "results").mkdir()
    (place / "results" / "measured").symlink_to(FOLDER / "measured")
    for name in ("cifar10.npz", "tinyshakespeare.txt"):  # which learning curves were made with
        (place / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "draw", lambda _result, path: path.touch())
        plan = Plan(quick=False, data_dir=str(place))
        made = runner.run(sections(), plan, place, redraw=True)
    return list(made.results), place


def rows(text: str) -> list[tuple[dict[str, str], float]]:
    """Lines of a CSV file, each with its number apart."""
    found = list(csv.DictReader(io.StringIO(text)))
    return [(line, float(line.pop("value"))) for line in found]


def test_the_page_is_made_of_the_measurements_beside_it(again: tuple[list[Result], Path]) -> None:
    """Run `flhe tables --full --redraw --out docs` where it is not."""
    _, place = again
    assert (place / "results.md").read_text(encoding="utf-8") == PAGE
    made, kept = (
        {path.name: path for path in at.glob("*.*")} for at in (place / "results", FOLDER)
    )
    assert made.keys() == kept.keys()
    for name in kept:
        now, was = (files[name].read_text(encoding="utf-8") for files in (made, kept))
        if name.endswith(".md"):
            assert now == was, name
        elif name.endswith(".csv"):
            for (line, number), (other, before) in zip(rows(now), rows(was), strict=True):
                assert line == other, name
                assert number == pytest.approx(before, rel=1e-6), name


def test_no_mark_is_a_unit(again: tuple[list[Result], Path]) -> None:
    for result in again[0]:
        # As read in a table, where a lone letter behind a number is a unit: "2 s" are seconds.
        assert not re.search(r"[0-9] ([a-zA-Z]{1,2}|†) \|", to_markdown(result)), result.name
    units = {entry.unit.split()[0] for result in again[0] for entry in result.entries if entry.unit}
    assert {"s", "MB"} <= units
    assert units.isdisjoint(MARKS)


def test_the_headlines_hold() -> None:
    table = (FOLDER / "headlines.md").read_text(encoding="utf-8")
    assert table.count("holds") >= 13
    assert "NOT" not in table


def test_pages_that_quote_one_ratio_of_sash_quote_both() -> None:
    rows_ = [r for r in (FOLDER / "headlines.md").read_text().splitlines() if "like for like" in r]
    fair, other = (re.search(r"\| ([0-9.,]+) <sup>", row)[1] for row in rows_)
    assert ["Python" in row for row in rows_] == [False, True]
    pages = [*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md"), *DOCS.glob("schemes/*.md")]
    quoting = [page for page in (*pages, DOCS.parent / "README.md") if fair in page.read_text()]
    assert DOCS / "schemes" / "sash.md" in quoting
    assert quoting == [
        page for page in (*pages, DOCS.parent / "README.md") if other in page.read_text()
    ]


def test_what_is_computed_of_a_papers_numbers_is_derived(again: tuple[list[Result], Path]) -> None:
    marks = {
        (result.name, entry.what, entry.who): entry.number.mark
        for result in again[0]
        for entry in result.entries
        if entry.group == "paper"
    }
    assert set(marks.values()) == set(PAPERS)
    sizes = [mark for (name, what, _), mark in marks.items() if what == "size of a value"]
    assert sizes == ["derived"] * 8
    for name, what, who, mark in (
        ("flashe-table-2", "size", "FLASHE", "published"),
        ("batchcrypt-figure-7", "iteration", "FATE", "published"),
        ("batchcrypt-figure-7", "iteration", "BatchCrypt", "derived"),
        ("batchcrypt-figure-7", "iteration, to BatchCrypt", "FATE", "published"),
        ("flashe-figure-7", "iteration", "FLASHE", "derived"),
        ("batchcrypt-figure-11", "total", "FATE", "derived"),
        ("batchcrypt-table-4", "accuracy", "FATE", "published"),
        ("flashe-table-4", "time, to plain", "FLASHE", "derived"),
    ):
        assert marks[name, what, who] == mark


def test_every_name_in_the_page_on_fedml_he_exists() -> None:
    text = (DOCS / "fedml_he.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(flhe(?:\.\w+)+)`", text))
    assert len(names) > 15
    for name in names:
        pkgutil.resolve_name(name)
