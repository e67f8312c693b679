"""`flhe bench --round`: the same work for everybody, in turns, and what each round took."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from flhe.errors import FlheError
from flhe.strategies.overhead import PHASES
from flhe.strategies.report import RoundReport
from flhe_lab.bench import deployed, table
from flhe_lab.bench.contender import Contender, Laps
from flhe_lab.bench.laps import lap, ratios
from flhe_lab.bench.turns import Measured, Times, measure
from tests.provision.site import bad, run

rounds = pytest.importorskip("flhe_lab.bench.rounds")
pytest.importorskip("sklearn")


def bench(*words: str) -> dict[str, Any]:
    result = run("bench", "--round", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def medians(row: dict[str, Any]) -> dict[str, float]:
    """Seconds of one counted round, by phase; those that are of no one phase apart."""
    return {what: times["median"] for what, times in row["seconds"].items()}


# --- in one process ---


def test_all_do_the_same_work_and_every_second_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: dict[tuple[str, int], float] = {}
    hand_over = rounds.Turns._finished

    def finished(self: Any, report: RoundReport) -> None:
        losses[self.name, report.round] = report.loss or 0.0
        hand_over(self, report)

    monkeypatch.setattr(rounds.Turns, "_finished", finished)
    small = ("--task", "digits", "--cohort", "3", "--images", "20", "--repeats", "1")
    found = bench("sash", "plain", "flashe", "sash", *small)
    assert found["setting"] == {"task": "digits", "clients": 3, "images": 20, "repeats": 1}
    rows = {row["name"]: medians(row) for row in found["rows"]}
    assert list(rows) == ["plain", "sash", "flashe"]
    for name, row in rows.items():
        phases = {what: row[what] for what in PHASES if what in row}
        assert set(row) - set(phases) == {"round", "apps", "processor", "besides"}
        assert min(phases.values()) >= 0
        assert sum(phases.values()) == pytest.approx(row["round"])
        assert min(row["apps"], row["besides"], row["processor"]) > 0
        assert row["apps"] + row["besides"] == pytest.approx(row["round"])
        # The same images in the same order: what differs is rounding.
        assert losses[name, 2] == pytest.approx(losses["plain", 2], abs=0.02)
    assert found["rows"][0]["ratio"]["min"] == found["rows"][0]["ratio"]["apart"] == 1
    assert {"encrypt", "open"} <= rows["flashe"].keys()
    assert "masking" in rows["sash"]
    assert "encrypt" not in rows["plain"]


def report(number: int, wall_s: float = 0.0) -> RoundReport:
    return RoundReport(number, None, None, 0, 0, 0.0, 0.0, 3, wall_s=wall_s)


def test_a_run_works_in_its_turn_only_and_waits_are_not_its_own() -> None:
    began: list[int] = []

    def work(on_round: Callable[[RoundReport], None]) -> None:
        last = time.perf_counter()
        for number in (1, 2, 3):
            began.append(number)
            now = time.perf_counter()
            on_round(report(number, now - last))
            last = now

    made = rounds.Turns("x", 3, work)
    assert began == []
    made.turn()
    time.sleep(0.5)
    assert began == [1]
    assert made.turn()["round"] < 0.4
    assert began == [1, 2]
    made.end()
    assert began == [1, 2]
    assert not made._thread.is_alive()


def test_a_run_that_fails_or_never_began_ends_and_a_round_without_a_client_means_nothing() -> None:
    def work(on_round: Callable[[RoundReport], None]) -> None:
        raise FlheError("it broke")

    for clients, runs, says in (
        (3, work, "it broke"),
        (4, lambda on_round: on_round(report(1)), "round 1: 3 of 4 clients"),
    ):
        made = rounds.Turns("x", clients, runs)
        with pytest.raises(FlheError, match=says):
            made.turn()
        made.end()
    never = rounds.Turns("x", 3, work)
    never.end()
    assert not [t for t in threading.enumerate() if t.name == "server-x"]


# --- laps, rows and tables ---


def row_of(name: str, *laps: dict[str, float]) -> Measured:
    """What turns with these seconds come to; the first one does not count."""
    seconds = iter([laps[0], *laps])
    found = measure([Contender(name, {"round": lambda: Laps(next(seconds))})], len(laps))
    return found[name]


def test_ratios_tell_a_schemes_cost_from_noise_in_training() -> None:
    def row(name: str, *seconds: tuple[float, float]) -> Measured:
        return row_of(
            name,
            *({"round": r, "apps": a, "processor": r, "besides": r - a} for r, a in seconds),
        )

    plain = row("plain", (10.0, 9.0), (12.0, 11.0), (10.5, 9.5))
    ours = row("flashe", (12.0, 10.5), (10.5, 9.25), (11.0, 9.5))
    assert ours.times["round"] == Times(10.5, 11.0)
    assert ours.times["besides"] == Times(1.25, 1.5)
    over = ratios(ours, plain)
    assert over["min"] == pytest.approx(1.05)
    assert over["median"] == over["processor"] == pytest.approx(11 / 10.5)
    assert over["apart"] == pytest.approx(1 + 0.5 / 10.5)
    unknown = row_of("flashe", {"round": 3.0}, {"round": 3.0, "masking": 1.0})
    assert ratios(unknown, unknown) == {"min": 1.0, "median": 1.0}
    assert unknown.times["masking"] == Times(0.0, 0.5)  # a round that lacks it took none


def test_a_wait_is_taken_from_what_the_server_does_besides() -> None:
    found = lap(9.0, [("train", 3.0), ("other", 6.0)], 5.5)
    assert found == {"round": 3.5, "train": 3.0, "other": 0.5}


def test_tables_fit_a_terminal_of_80() -> None:
    known = {"processor": 99.99, "apps": 89.0, "besides": 10.99}
    row = row_of("x", {"round": 99.99, "train": 90.0, "masking": 9.99, **known})
    rows = dict.fromkeys(("plain", "flashe", "sash"), row)
    console = Console(file=io.StringIO(), width=80)
    setting = rounds.Setting("digits")
    rows["flashe"] = replace(row)
    console.print(table.round_table(rows, rounds.title(setting), rounds.CAPTION))
    console.print(table.phases(rows))
    console.print(
        table.round_table({"plain": row_of("plain", {"round": 2.0})}, "a deployment", "x")
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert {"99.99", "89.00", "10.99", "1.000x", "38,282", "masking"} <= set(
        text.replace("(", " ").split()
    )


# --- what cannot be asked for ---


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--deployed", "add --round"),
        ("--round --peers", "--peers means nothing with --round: leave it out"),
        ("--round --values 5", "use it without --round or with --round --deployed"),
        ("--round --patience 2", "use it with --round --deployed"),
        ("--round --deployed --cohort 4", "--cohort means nothing with --round --deployed"),
        ("--images 5", "--images means nothing without --round"),
        ("--round rot13", "unknown scheme 'rot13'"),
        ("--round --deployed rot13", "unknown scheme 'rot13'"),
        ("--round --task mnist", "--task 'mnist': choose from digits"),
        ("--round --cohort 2", "--cohort 2: must be at least 3"),
        ("--round --images 0", "--images 0"),
        ("--round --repeats 0", "--repeats 0"),
        ("--round --deployed --repeats 0", "must be 1 or more"),
        ("--round --deployed --patience 0", "must be positive"),
        ("--memory --round", "choose one"),
        ("--memory --repeats 3", "--repeats means nothing"),
        ("bfg --memory", "choose from"),
        ("rot13", "unknown scheme"),
        ("--values 0", "--values 0"),
        ("--cohort 1", "--cohort 1"),
        ("--cohort 5 --dropouts 4", "two clients must remain"),
        ("--threads 0", "--threads 0"),
    ],
)
def test_a_bad_combination_is_refused_with_a_mend(words: str, says: str) -> None:
    assert says in bad("bench", *words.split())


# --- deployed ---


@pytest.mark.sweep
@pytest.mark.timeout(4520)
def test_rounds_of_a_real_deployment() -> None:
    found = bench("--deployed", "--values", "5000", "--repeats", "1", "--patience", "20")
    assert [row["name"] for row in found["rows"]] == ["plain", "flashe", "sash"]
    for row in map(medians, found["rows"]):
        assert sum(row[what] for what in PHASES if what in row) == pytest.approx(row["round"])
        assert "apps" not in row
        assert row["evaluate"] > 0


def test_a_server_waits_for_its_turn(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app without a deployment: a federation in one process."""
    from flwr.app import Context, RecordDict

    from flhe.testing import InProcessGrid

    monkeypatch.setattr(deployed, "SITES", ("a", "b", "c"))
    place, log = tmp_path / "run", tmp_path / "report.jsonl"
    place.mkdir()
    for number in (2, 3):
        (place / f"turn-{number}").touch()
    config = {"scheme": "flashe", "values": 200, "rounds": 3, "wait-s": 0.2}
    config |= {"place": str(place), "report": str(log)}
    with InProcessGrid(deployed.client_app(), 3, homes=tmp_path, run_config=config) as grid:
        context = Context(7, 1, {}, RecordDict(), config)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"waited 0\.2 s for turn-4"):
            deployed.server_app()(grid, context)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names == ["round", "waited"] * 2 + ["round", "failed"]
