"""A run that stops goes on behind the last measurement that ended; nothing else is taken over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError, FlheError
from flhe_lab.tables.chart import Chart
from flhe_lab.tables.result import LEGEND, Entry, Result, measured
from flhe_lab.tables.runner import Made, run, steps_of
from flhe_lab.tables.store import Store
from flhe_lab.tables.table import Found, Plan, Say, Section, Step

QUICK = Plan(quick=True)


class Counting:
    """A section of `count` steps, which notes what it ran and stops where it is told to."""

    def __init__(
        self, count: int = 3, name: str = "one", stop_at: int = -1, drawn: bool = False
    ) -> None:
        self.ran: list[int] = []
        self.count, self.stop_at = count, stop_at
        self.chart = Chart("bars", ("time",), "What to see.") if drawn else None
        self.section = Section(name, "P", self.steps, self.report)

    def steps(self, _plan: Plan) -> list[Step]:
        return [
            Step(f"step-{i}", lambda say, i=i: self.work(i, say), f"step {i}")
            for i in range(self.count)
        ]

    def work(self, i: int, say: Say) -> dict[str, float]:
        say("at it")
        if i == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append(i)
        return {"seconds": i + 0.5}

    def report(self, _plan: Plan, found: Found) -> Sequence[Result]:
        entries = tuple(
            Entry(f"row {i}", "we", "ours", "time", "s", measured(found[f"step-{i}"]["seconds"]))
            for i in range(self.count)
        )
        name = f"p-{self.section.name}"
        return [Result(name, "P, Table 1", "times", entries, self.chart)]

    def run(self, place: Path, plan: Plan = QUICK, **how: Any) -> Made:
        return run([self.section], plan, place, **how)


def ran(place: Path, count: int, **how: Any) -> list[int]:
    """Which steps of so many are run."""
    counting = Counting(count)
    counting.run(place, **how)
    return counting.ran


def test_what_was_measured_before_a_stop_is_not_measured_again(tmp_path: Path) -> None:
    folder = tmp_path / "results-quick" / "measured"
    folder.mkdir(parents=True)
    (folder / "step-2.part").write_text('{"half"')
    stopped = Counting(stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(tmp_path)
    assert stopped.ran == [0, 1]
    assert not (tmp_path / "results-quick.md").exists()
    again = Counting()
    made = again.run(tmp_path)
    assert (again.ran, made.measured, made.kept) == ([2], 1, 2)
    assert [e.number.value for e in made.results[0].entries] == [0.5, 1.5, 2.5]
    assert not list(folder.glob("*.part"))
    assert ran(tmp_path, 1, fresh=True) == [0]
    assert ran(tmp_path, 3) == []  # the others are not forgotten
    assert ran(tmp_path, 1, plan=Plan(quick=False)) == [0]  # which shares nothing with a quick run


def measured_on(place: Path, step: int, **machine: str) -> None:
    """Have a step been measured on another machine."""
    path = place / "results-quick" / "measured" / f"step-{step}.json"
    document = json.loads(path.read_text())
    document["machine"] |= machine
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(("name", "other"), [("processor", "another one"), ("torch", "0.1")])
def test_measurements_of_another_machine_or_release_are_made_again(
    name: str, other: str, tmp_path: Path
) -> None:
    Counting(1).run(tmp_path)
    measured_on(tmp_path, 0, **{name: other})
    counting = Counting(1)
    assert (counting.run(tmp_path).foreign, counting.ran) == (("step-0",), [0])


def test_a_page_is_drawn_again_of_what_any_machine_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 of 3 measurements are missing, such as step-0"):
        Counting().run(tmp_path, redraw=True)
    Counting(drawn=True).run(tmp_path)
    folder, page = tmp_path / "results-quick", tmp_path / "results-quick.md"
    for i, name in enumerate(("an old one", "an old one", "a borrowed one")):
        measured_on(tmp_path, i, processor=name)
    numbers, kept = (folder / "p-one.csv").read_text(), sorted(folder.rglob("*.json"))
    for path in (page, folder / "p-one.csv", folder / "p-one.svg"):
        path.unlink()
    counting = Counting(drawn=True)
    made = counting.run(tmp_path, redraw=True)
    assert (counting.ran, made.measured, made.foreign) == ([], 0, ())
    assert (folder / "p-one.csv").read_text() == numbers
    assert (folder / "p-one.svg").stat().st_size > 0
    assert sorted(folder.rglob("*.json")) == kept
    text = page.read_text()
    assert "an old one, " in text
    assert "On a borrowed one: step 2." in text
    assert "## What is not repeated" in text


@pytest.mark.parametrize("text", ["", "{}", '{"format": "x", "version": 1, "key": "step-0"}'])
def test_a_foreign_file_is_refused(text: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "step-0.json").write_text(text)
    with pytest.raises(ConfigError, match="remove that file"):
        store.get("step-0")


def test_sections_share_steps_of_one_key_which_mean_one_thing(tmp_path: Path) -> None:
    one, other = Counting(2, "one"), Counting(3, "other")
    run([one.section, other.section], QUICK, tmp_path)
    assert (one.ran, other.ran) == ([0, 1], [2])
    a, b = (
        Section("a", "P", lambda _plan, of=of: [Step("k", lambda _say: 1, of)], lambda _p, _f: [])
        for of in ("this", "that")
    )
    with pytest.raises(FlheError, match="share key"):
        steps_of([a, b], QUICK)
    with pytest.raises(FlheError, match="one name"):
        run([one.section, one.section], QUICK, tmp_path)


def test_the_page_shows_every_number_with_its_mark_and_links_what_it_wrote(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    made = Counting(2, drawn=True).run(tmp_path, progress=lambda *at: told.append(at))
    assert (told[0], told[-1]) == ((0, 2, "step 0"), (1, 2, "step 1: at it"))
    page = made.page.read_text()
    assert LEGEND in page
    assert "| row 1 | we | 1.50 <sup>measured</sup> |" in page
    for ending in ("svg", "csv", "md"):
        assert f"results-quick/p-one.{ending}" in page
        assert (tmp_path / "results-quick" / f"p-one.{ending}").stat().st_size > 0


def test_a_step_that_fails_leaves_all_others(tmp_path: Path) -> None:
    def fail(_say: Say) -> None:
        raise FlheError("nothing to measure\nwith")

    bad = Section("bad", "P", lambda _plan: [Step("bad", fail, "a bad step")], lambda _p, _f: [])
    made = run([bad, Counting(1).section], QUICK, tmp_path)
    assert made.failures == (("a bad step", "nothing to measure with"),)
    assert (made.measured, [result.name for result in made.results]) == (1, ["p-one"])
    assert "Missing, because a measurement failed: bad." in made.page.read_text()


def test_a_part_is_measured_and_all_that_is_there_is_shown(tmp_path: Path) -> None:
    one, other, never = Counting(1, "one"), Counting(3, "other"), Counting(4, "never")
    one.run(tmp_path)
    order = [other.section, one.section, never.section]
    for each in (other, one):
        made = each.run(tmp_path, others=order)
        assert [result.name for result in made.results] == ["p-other", "p-one"]
    assert never.ran == []
