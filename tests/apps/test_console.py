"""What `flhe run` shows of its rounds: the selection round, a killed node, no accuracy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flhe.errors import ConfigError, FlheError
from flhe_app import flower_run, run_dir
from flhe_app.console import RoundDisplay, plot, round_table
from flhe_app.flower_run import FlowerRun
from flhe_app.outcome import Outcome, labelled
from flhe_app.run_command import How
from flhe_app.settings import Settings

SELECTS = Settings("fedml-he", num_rounds=2, select=0.1)
RECORDS = Settings("flashe", algorithm="fedsgd", noise_multiplier=1.5, sampling=0.2)


def event(number: int, accuracy: float | None = 0.75, loss: float | None = 0.5) -> dict[str, Any]:
    cost = {"bytes_up": 7, "bytes_down": 9, "crypto_s": 0.25, "round_s": 1.5, "survivors": 5}
    return {"event": "round", "round": number, "accuracy": accuracy, "loss": loss, **cost}


def rounds(settings: Settings) -> list[dict[str, Any]]:
    return [labelled(event(i), settings) for i in range(1, settings.total_rounds + 1)]


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def shown(console: Console, *tables: Any) -> str:
    for table in tables:
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_selection_round_is_labelled_and_has_no_accuracy() -> None:
    first, *others = rounds(SELECTS)
    assert (first["kind"], first["accuracy"], first["loss"]) == ("selection", None, None)
    assert [(r["kind"], r["accuracy"]) for r in others] == [("training", 0.75)] * 2
    for unmapped in (Settings(), Settings("fedml-he", select=0.1, rule="random")):
        assert [r["kind"] for r in rounds(unmapped)] == ["training"] * unmapped.num_rounds
    for known, accuracy in ((1, None), (3, 0.75)):
        outcome = Outcome.earlier(rounds(SELECTS)[:known])
        assert outcome.to_json(SELECTS)["final_accuracy"] == accuracy


def test_an_accuracy_that_comes_late_is_in_the_table() -> None:
    """An evaluation from which a node drops out is opened after its round's report."""
    outcome = Outcome.earlier([labelled(event(1, None, None), Settings()), *rounds(SELECTS)[1:]])
    scores = {str(n): {"accuracy": 0.25, "loss": 2.5} for n in (1, 2)}
    outcome.read({"event": "done", "sealed_model": None, "scores": scores})
    assert [(r["accuracy"], r["loss"]) for r in outcome.rounds] == [(0.25, 2.5), *[(0.75, 0.5)] * 2]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_names_the_selection_round(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, _environ={})
    for report, says in zip(
        (*rounds(SELECTS)[:2], labelled(event(1, None, None), Settings())),
        ("selection round", "accuracy 0.7500, loss 0.5000", "accuracy -, loss -"),
        strict=True,
    ):
        before = len(shown(console))
        with RoundDisplay(console, SELECTS) as display:  # a terminal's is drawn last
            display.round(report)
        assert says in shown(console)[before:]
    before = len(shown(console))
    with RoundDisplay(console, SELECTS) as display:
        display.say("waiting for 5 nodes")
    assert "waiting for 5 nodes" in shown(console)[before:]


def test_the_table_names_the_selection_round_and_fits_a_terminal_of_80() -> None:
    text = shown(plain(), round_table(SELECTS, rounds(SELECTS), 4_000_000))
    first, second = (
        line.split() for line in text.splitlines() if line.split()[:1] in (["1"], ["2"])
    )
    assert (first[1:3], second[1:3]) == (["selection", "-"], ["0.7500", "0.5000"])
    assert "selection round trains nothing" in " ".join(text.split())
    big = {"bytes_up": 123_456_789, "bytes_down": 999_999_999, "crypto_s": 12.345, "survivors": 100}
    one = labelled({**event(100, None, 12.3456), **big, "round_s": 123.4}, Settings())
    text = shown(plain(), round_table(Settings(), [one], 4_000_000))
    assert "selection" not in text
    assert "…" not in text
    assert Outcome.earlier([one]).to_json(Settings())["final_accuracy"] is None


def test_a_killed_node_is_shown_in_each_round_from_its_death_on() -> None:
    console = plain()
    with RoundDisplay(console, Settings(kill=2)) as display:
        for number in (1, 2, 3):
            display.round(labelled(event(number), Settings()))
    killed = ["one node killed for good in round 2" in line for line in shown(console).splitlines()]
    assert killed == [False, True, True]


def test_a_run_shows_passes_on_and_keeps_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_run, "POLL_S", 0.0)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    console, copy = plain(), tmp_path / "copy"
    with run_dir.created(SELECTS) as made, RoundDisplay(console, SELECTS) as display:
        run = FlowerRun(made, tmp_path, How(report_path=str(copy)), console)
        run._display = display
        events = ({"event": "joined"}, event(1), event(2), {"event": "warning", "text": "x"})
        made.report.write_text("".join(json.dumps(each) + "\n" for each in events))
        run._tick()
    assert shown(console).splitlines() == [
        "training on 5 nodes; a new installation compiles first",
        "round 1/3: selection round, 5 nodes, 1.5 s",
        "round 2/3: accuracy 0.7500, loss 0.5000, 5 nodes, 1.5 s",
    ]
    _, *passed, _ = [json.loads(line) for line in copy.read_text().splitlines()]
    assert passed == [{"event": "round", **known} for known in run._outcome.rounds]
    assert [each["kind"] for each in passed] == ["selection", "training"]
    monkeypatch.setattr(flower_run, "SIMULATION_S", -1.0)
    going: Any = SimpleNamespace(poll=lambda: None, pid=0, runs_below=lambda *_: False)
    with pytest.raises(FlheError, match="Flower said nothing for -1 s"):
        run._follow(going, going, going)


def test_the_table_and_the_picture_have_epsilon(tmp_path: Path) -> None:
    reports = [{**r, "epsilon": 0.25 * r["round"], "delta": 1e-5} for r in rounds(RECORDS)]
    said = shown(plain(120), round_table(RECORDS, reports, 1000))
    assert "Epsilon at delta 1e-05, of all rounds so far" in " ".join(said.split())
    assert "1.25" in said
    assert "Epsilon" not in shown(plain(120), round_table(Settings(), rounds(Settings()), 1000))
    infinite = [{**report, "epsilon": None} for report in reports]  # JSON has no infinity
    assert "∞" in shown(plain(120), round_table(RECORDS, infinite, 1000))
    assert "0.00124" in shown(
        plain(120), round_table(RECORDS, [{**reports[0], "epsilon": 0.001231}], 9)
    )
    for name in ("run.svg", "run.png"):
        plot(tmp_path / name, "digits", reports)
        assert (tmp_path / name).stat().st_size > 1000
    plot(tmp_path / "plain.svg", "digits", [event(1), event(2)])
    assert "epsilon" not in (tmp_path / "plain.svg").read_text()
    plot(tmp_path / "lost.svg", "digits", [event(1), event(2), event(3, None)])
    assert "75.0% after 2 rounds" in (tmp_path / "lost.svg").read_text()
    plot(tmp_path / "none.svg", "digits", [event(1, None)])
    with pytest.raises(ConfigError, match="the picture cannot be written"):
        plot(tmp_path / "run.txt", "digits", reports)
