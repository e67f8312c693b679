"""All tables at once: a quick run fills what a full one fills; notes say what is so of the papers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe_lab.tables import headlines, sash_times
from flhe_lab.tables.batchcrypt import (
    ROUNDS,
    steps,
)
from flhe_lab.tables.command import sections
from flhe_lab.tables.evaluation import NAMES
from flhe_lab.tables.result import to_markdown
from flhe_lab.tables.runner import steps_of
from flhe_lab.tables.table import Plan, Section

QUICK, FULL = Plan(quick=True), Plan(quick=False)
FOLDER = Path(__file__).parents[3] / "docs" / "results" / "measured"
STORED = {path.stem: json.loads(path.read_text())["data"] for path in FOLDER.glob("*.json")}


def kind(key: str) -> str:
    """A step's key without sizes."""
    return re.sub(r"(?<=-)\d{3,}(?=-|$)|-quick$", "", key)


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
        full = (FOLDER.parent / f"{result.name}.md").read_text()
        assert "A quick run" not in full
        assert to_markdown(result).count("<sup>") == len(result.entries)
        assert len([note for note in result.notes if note.startswith("A quick run")]) <= 1


def test_models_that_a_quick_run_does_not_measure_are_sampled() -> None:
    for name, at in (("flashe-figure-8", "cnn"), ("batchcrypt-figure-8", "fcn")):
        (section,) = sections([name])
        (quick,) = section.report(QUICK, quickly(section))
        (full,) = section.report(FULL, STORED)
        assert quick.notes[-1].startswith("A quick run measures")
        for a, b in zip(quick.entries, full.entries, strict=True):
            assert (a.row, a.who, a.what) == (b.row, b.who, b.what)
            if a.group == "ours" and "to" not in a.what and b.number.mark == "counted":
                assert a.number.value == pytest.approx(b.number.value, rel=0.02)
                assert (a.number.mark == "counted") == (NAMES[at] in a.row)


def test_steps_are_shared() -> None:
    for plan in (QUICK, FULL):
        assert len(steps_of(list(ROUNDS.values()), plan)) == len(steps(plan))
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
