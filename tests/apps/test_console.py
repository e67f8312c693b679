"""What `flhe run` shows of its rounds: the selection round, a killed node, no accuracy."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flhe_app import flower_run
from flhe_app.console import RoundDisplay, round_table
from flhe_app.flower_run import FlowerRun, How
from flhe_app.outcome import Outcome, Tail, labelled
from flhe_app.settings import Settings

SELECTS = Settings("fedml-he", num_rounds=2, select=0.1)


def event(number: int, accuracy: float | None = 0.75, loss: float | None = 0.5) -> dict[str, Any]:
    cost = {"bytes_up": 7, "bytes_down": 9, "crypto_s": 0.25, "round_s": 1.5, "survivors": 5}
    return {"event": "round", "round": number, "accuracy": accuracy, "loss": loss, **cost}


def rounds(settings: Settings) -> list[dict[str, Any]]:
    return [labelled(event(i), settings) for i in range(1, settings.total_rounds + 1)]


@pytest.fixture(params=["pipe", "terminal"])
def console(request: pytest.FixtureRequest) -> Console:
    terminal = request.param == "terminal"
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, _environ={})


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_selection_round_is_labelled_and_has_no_accuracy() -> None:
    first, *others = rounds(SELECTS)
    assert (first["kind"], first["accuracy"], first["loss"]) == ("selection", None, None)
    assert [(r["kind"], r["accuracy"]) for r in others] == [("training", 0.75)] * 2
    for unmapped in (Settings(), Settings("fedml-he", select=0.1, rule="random")):
        assert [r["kind"] for r in rounds(unmapped)] == ["training"] * unmapped.num_rounds
    other = {"event": "start", "model_bytes": 1}
    assert labelled(other, SELECTS) == other
    for known, accuracy in ((1, None), (3, 0.75)):
        outcome = Outcome.earlier(rounds(SELECTS)[:known])
        assert outcome.to_json(SELECTS)["final_accuracy"] == accuracy


def test_the_display_names_the_selection_round(console: Console) -> None:
    first, second, _ = rounds(SELECTS)
    with RoundDisplay(console, SELECTS.total_rounds) as display:  # a terminal is drawn at its end
        display.round(first)
    assert "selection round" in shown(console)
    assert "accuracy" not in shown(console)
    with RoundDisplay(console, SELECTS.total_rounds) as display:
        display.round(second)
    assert "accuracy 0.7500, loss 0.5000" in shown(console)


def test_the_table_names_the_selection_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(round_table(SELECTS, rounds(SELECTS), 4_000_000))
    first, second = (
        line for line in shown(console).splitlines() if line.split()[:1] in (["1"], ["2"])
    )
    assert first.split()[1:3] == ["selection", "-"]
    assert second.split()[1:3] == ["0.7500", "0.5000"]
    assert "selection round trains nothing" in " ".join(shown(console).split())
    usual = Console(file=io.StringIO(), width=80)
    usual.print(round_table(Settings(), rounds(Settings()), 4_000_000))
    assert "selection" not in shown(usual)


def test_the_table_fits_a_terminal_of_80() -> None:
    big = {"bytes_up": 123_456_789, "bytes_down": 999_999_999, "crypto_s": 12.345, "survivors": 100}
    one = labelled({**event(100, 0.98765, 12.3456), **big, "round_s": 123.4}, Settings())
    console = Console(file=io.StringIO(), width=80)
    console.print(round_table(Settings(), [one], 4_000_000))
    assert "…" not in shown(console)


def test_a_round_without_accuracy_is_shown(console: Console) -> None:
    settings = Settings(num_rounds=2)
    reports = [labelled(event(1, None, None), settings), labelled(event(2, None), settings)]
    with RoundDisplay(console, 2) as display:
        display.round(reports[0])
    assert "accuracy -, loss -" in shown(console)
    console.print(round_table(settings, reports, 0))
    row = next(line for line in shown(console).splitlines() if line.split()[:1] == ["2"])
    assert row.split()[1:3] == ["-", "0.5000"]
    assert Outcome.earlier(reports).to_json(settings)["final_accuracy"] is None


@pytest.mark.parametrize(
    ("kill", "earlier", "said"), [(0, 0, None), (2, 0, 2), (2, 1, 2), (2, 2, 3)]
)
def test_a_killed_node_is_shown_once(
    kill: int, earlier: int, said: int | None, console: Console
) -> None:
    """Where a run is resumed, the node dies again in its next training."""
    run = FlowerRun.__new__(FlowerRun)
    run._settings, run._kills = Settings(kill=kill), bool(kill)
    with RoundDisplay(console, 5) as run._display:
        for number in range(earlier + 1, 6):
            run._say_killed(number)
    assert shown(console).count("killed") == bool(kill)
    assert not kill or f"round {said}: one node was killed, for good" in shown(console)


def test_a_run_shows_passes_on_and_keeps_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_run, "POLL_S", 0.0)
    console = Console(file=io.StringIO(), width=80)
    report, copy = tmp_path / "report", tmp_path / "copy"
    report.write_text("".join(json.dumps(event(number)) + "\n" for number in (1, 2)))
    run = FlowerRun.__new__(FlowerRun)
    run._console, run._settings, run._kills = console, replace(SELECTS, kill=2), True
    run._tails, run._outcome = (Tail(report), Tail(tmp_path / "log")), Outcome()
    run._copy, run._how, run._deadline = run._own(copy), How(), math.inf
    with RoundDisplay(console, 3) as run._display:
        run._tick()
    assert shown(console).splitlines() == [
        "round 1/3: selection round, 5 nodes, 1.5 s",
        "round 2/3: accuracy 0.7500, loss 0.5000, 5 nodes, 1.5 s",
        "round 2: one node was killed, for good (--kill)",
    ]
    passed = [json.loads(line) for line in copy.read_text().splitlines()]
    assert passed == [{"event": "round", **known} for known in run._outcome.rounds]
    assert [each["kind"] for each in passed] == ["selection", "training"]
