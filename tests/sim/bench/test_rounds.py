"""`flhe bench --round`: the same work for everybody, in turns, and what each round took."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from flhe.errors import ConfigError, FlheError
from flhe.strategies.overhead import PHASES
from flhe.strategies.report import RoundReport
from flhe_lab.bench import deployed, table
from flhe_lab.bench.laps import Lap, Row, contenders, in_turns
from flhe_lab.bench.turns import Times
from tests.provision.site import bad, run

rounds = pytest.importorskip("flhe_lab.bench.rounds")
pytest.importorskip("sklearn")


def bench(*words: str) -> dict[str, Any]:
    result = run("bench", "--round", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- in one process ---


def test_all_do_the_same_work_and_every_second_has_a_place() -> None:
    small = ("--task", "digits", "--cohort", "3", "--images", "20", "--repeats", "1")
    found = bench("sash", "flashe", *small)
    assert found["setting"] == {"task": "digits", "clients": 3, "images": 20, "repeats": 1}
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["plain", "sash", "flashe"]
    for row in rows.values():
        [lap] = row["rounds"]  # the first one does not count
        assert set(lap["phases"]) <= set(PHASES)
        assert min(lap["phases"].values()) >= 0
        assert sum(lap["phases"].values()) == pytest.approx(lap["seconds"])
        assert 0 < lap["train_s"] < lap["seconds"]
        assert 0 < lap["evaluate_s"] < lap["seconds"]
        assert lap["cpu_s"] > 0
        assert row["apps_s"]["min"] + row["outside_s"]["min"] == pytest.approx(lap["seconds"])
        # The same images in the same order: what differs is rounding.
        assert lap["loss"] == pytest.approx(rows["plain"]["rounds"][0]["loss"], abs=0.02)
    assert rows["plain"]["ratio"]["min"] == rows["plain"]["ratio"]["apart"] == 1
    assert {"encrypt", "open"} <= rows["flashe"]["phases_s"].keys()
    assert "masking" in rows["sash"]["phases_s"]
    assert "encrypt" not in rows["plain"]["phases_s"]


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
    assert made.turn().seconds < 0.4
    assert began == [1, 2]
    made.end()
    assert began == [1, 2]
    assert not made._thread.is_alive()


def test_a_run_that_fails_or_never_began_ends() -> None:
    def work(on_round: Callable[[RoundReport], None]) -> None:
        raise FlheError("it broke")

    failing = rounds.Turns("x", 3, work)
    with pytest.raises(FlheError, match="it broke"):
        failing.turn()
    failing.end()
    never = rounds.Turns("x", 3, work)
    never.end()
    assert not [t for t in threading.enumerate() if t.name == "server-x"]


def test_a_round_without_a_client_means_nothing() -> None:
    made = rounds.Turns("x", 4, lambda on_round: on_round(report(1)))
    with pytest.raises(FlheError, match="round 1: 3 of 4 clients"):
        made.turn()
    made.end()


# --- laps, rows and tables ---


def test_ratios_tell_a_schemes_cost_from_noise_in_training() -> None:
    def row(name: str, *seconds: tuple[float, float]) -> Row:
        laps = (Lap(whole, {"train": whole}, own, 0.0, whole) for whole, own in seconds)
        return Row(name, tuple(laps))

    plain = row("plain", (10.0, 9.0), (12.0, 11.0), (10.5, 9.5))
    ours = row("flashe", (12.0, 10.5), (10.5, 9.25), (11.0, 9.5))
    assert ours.seconds == Times(10.5, 11.0)
    assert ours.known("outside_s") == Times(1.25, 1.5)
    over = ours.over(plain)
    assert over["min"] == pytest.approx(1.05)
    assert over["median"] == over["cpu"] == pytest.approx(11 / 10.5)
    assert over["apart"] == pytest.approx(1 + 0.5 / 10.5)
    unknown = Row("flashe", (Lap(3.0, {}),))
    assert unknown.over(unknown) == {"min": 1.0, "median": 1.0, "cpu": None, "apart": None}


def test_a_wait_is_taken_from_what_the_server_does_besides() -> None:
    lap = Lap.of(9.0, [("train", 3.0), ("other", 6.0)], 5.5)
    assert (lap.seconds, lap.phases) == (3.5, {"train": 3.0, "other": 0.5})


def test_the_first_of_each_does_not_count() -> None:
    seen: list[str] = []

    def one(name: str) -> Callable[[], Lap]:
        def turn() -> Lap:
            seen.append(name)
            return Lap(float(len(seen)), {})

        return turn

    rows = in_turns({"a": one("a"), "b": one("b")}, 2, lambda *_: None)
    assert seen == ["a", "b"] * 3
    assert [[lap.seconds for lap in row.laps] for row in rows] == [[3.0, 5.0], [4.0, 6.0]]


def test_tables_fit_a_terminal_of_80() -> None:
    laps = tuple(Lap(99.99, {"train": 90.0, "masking": 9.99}, 88.0, 1.0, 99.99) for _ in range(2))
    rows = [Row(name, laps) for name in ("plain", "flashe", "sash")]
    console = Console(file=io.StringIO(), width=80)
    setting = rounds.Setting("digits")
    console.print(table.round_table(rows, rounds.title(setting), rounds.CAPTION))
    console.print(table.phases(rows))
    console.print(table.round_table([Row("plain", (Lap(2.0, {}),))], "a deployment", "x"))
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
        ("--round --threads 1", "--threads means nothing"),
        ("--round --dropouts 1", "--dropouts means nothing"),
        ("--round --patience 2", "use it with --round --deployed"),
        ("--round --deployed --cohort 4", "--cohort means nothing with --round --deployed"),
        ("--round --deployed --images 4", "use it with --round"),
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


def test_plain_comes_first_and_each_once() -> None:
    assert contenders(["sash", "plain", "sash"]) == ("plain", "sash")
    with pytest.raises(ConfigError, match="must be at least 1"):
        in_turns({}, 0)


# --- deployed ---


@pytest.mark.sweep
@pytest.mark.timeout(4520)
def test_rounds_of_a_real_deployment() -> None:
    found = bench("--deployed", "--values", "5000", "--repeats", "1", "--patience", "20")
    assert [row["name"] for row in found["rows"]] == ["plain", "flashe", "sash"]
    for row in found["rows"]:
        [lap] = row["rounds"]
        assert sum(lap["phases"].values()) == pytest.approx(lap["seconds"])
        assert row["apps_s"] is None
        assert lap["phases"]["evaluate"] > 0


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
