"""The real deployment, end to end: one command, TLS, three authenticated sites, one of them killed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.app import Context, RecordDict

from flhe.errors import ConfigError
from flhe.mods import records
from flhe.node.checkpoint import open_checkpoint
from flhe.testing import InProcessGrid
from flhe_app.processes import script
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal import contracts
from flhe_lab.rehearsal.app import SITES, VICTIM, Plan
from flhe_lab.rehearsal.contracts import Logged
from flhe_lab.rehearsal.node_secrets import GROUP
from flhe_lab.rehearsal.search import Found
from flhe_lab.rehearsal.traffic import Traffic
from flhe_lab.rehearsal.verdict import MAX_ERROR, Result, Round, expected, senders, wrong

LIMIT_S = 4500
"""Seconds after which it hangs; on a quiet machine of two cores it takes some 170."""

CONTROLS = {
    "initial model, in streams",
    "initial model, whole, over chunks' borders",
    "identities' public keys, raw",
    "SuperNodes' public keys, in base64",
    "an object's id, in hex",
    "heads of ciphertexts",
    "a number of the run config",
}


def rehearsed(place: Path, *words: str) -> dict[str, Any]:
    """The report of a rehearsal in which nothing was wrong."""
    command = [script("flhe"), "rehearse", *words, "--patience", "20", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=place, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["wrong"] == []
    return report


@pytest.mark.sweep
@pytest.mark.timeout(LIMIT_S + 20)
def test_flashe_and_sash_over_tls_with_a_node_that_is_killed(tmp_path: Path) -> None:
    report = rehearsed(tmp_path, "--scheme", "flashe", "--scheme", "sash", "--rounds", "3")
    others = [site for i, site in enumerate(SITES) if i != VICTIM]
    assert [result["scheme"] for result in report["results"]] == ["flashe", "sash"]
    for result in report["results"]:
        assert result["status"] == "finished:completed"
        assert [each["number"] for each in result["rounds"]] == [1, 2, 3]
        whole, without, again = (each["sites"] for each in result["rounds"])
        assert whole == again == list(SITES)
        assert set(others) <= set(without)
        assert all(each["error"] < loopback_app.CLIP / 1000 for each in result["rounds"])
    # The one that was killed in its app is out of that round, and it is the same one that came back.
    assert others in [result["rounds"][1]["sites"] for result in report["results"]]
    assert report["killed"] == SITES[VICTIM]
    assert report["starts"] >= 2
    assert report["back_s"] > report["killed_s"] > 0

    traffic = report["traffic"]
    assert traffic["found"] == []
    assert traffic["controls"] == dict.fromkeys(CONTROLS, True)
    assert min(traffic["bytes_up"], traffic["bytes_down"]) > 500_000
    assert traffic["connections"] > 10
    assert traffic["missing"] == []
    least = {**expected(Plan()), "share of a seed": 3}
    assert all(traffic["searched"][kind] >= count for kind, count in least.items())
    assert traffic["searched"]["identity seed"] == traffic["searched"]["SuperNode key"] == 3
    gone = Path(report["scratch"])
    assert not gone.exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(gone) in _words(p)]


@pytest.mark.sweep
@pytest.mark.timeout(LIMIT_S + 20)
def test_a_run_resumed_with_another_learning_rate_shows_in_every_log(tmp_path: Path) -> None:
    report = rehearsed(tmp_path, "--scheme", "flashe", "--no-kill", "--renew")
    [result] = report["results"]
    assert [each["sites"] for each in result["rounds"]] == [list(SITES)] * 3
    shown = [log["rounds"] for log in result["logs"]]
    assert [log["site"] for log in result["logs"]] == list(SITES)
    (_, first, one), (_, second, two), (_, third, _) = shown[0]
    assert shown == [shown[0]] * 3
    assert first != second == third
    assert one != two


def _words(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())


def test_the_app_itself_reports_notes_and_saves(tmp_path: Path) -> None:
    """Its server and clients without a deployment, up to the sealed model."""
    place = tmp_path / "run"
    place.mkdir()
    (place / loopback_app.GATE).touch()
    config = {"scheme": "sash", "values": 500, "nodes": 3, "rounds": 2}
    config |= {"max-examples": loopback_app.MAX_EXAMPLES, "wait-s": 60.0}
    config |= {"place": str(place), "report": str(place / "report.jsonl")}
    config |= {"lr": 0.5, "resume": False}

    def node(index: int) -> dict[str, object]:
        (tmp_path / f"notes-{index}").mkdir()
        return {"loopback-notes": str(tmp_path / f"notes-{index}")}

    with InProcessGrid(
        loopback_app.client_app(), 3, homes=tmp_path, run_config=config, node_config=node
    ) as grid:
        loopback_app.server_app()(grid, Context(7, 1, {}, RecordDict(), config))  # type: ignore[arg-type]
    events = [json.loads(line) for line in (place / "report.jsonl").read_text().splitlines()]
    assert [each["event"] for each in events if each["event"] != "joined"][-1] == "done"
    assert sum(each["event"] == "round" for each in events) == 2
    before = records.to_numpy(initial(500))["layer-0"].astype(np.float64)
    model = open_checkpoint(place / loopback_app.MODEL, tmp_path / "node-0")
    change = model.masters["layer-0"] - before
    means = [loopback_app.mean("sash", [0, 1, 2], number, 500) for number in (1, 2)]
    assert np.abs(change - sum(means)).max() < 2 * MAX_ERROR
    assert len(list(tmp_path.glob("notes-*/7-*.npz"))) == 6


def test_senders_are_told_by_the_mean_alone() -> None:
    rng = np.random.default_rng(8)
    for group in ((0,), (1, 2), (0, 2), (0, 1, 2)):
        noise = rng.uniform(-1e-7, 1e-7, 500)
        found, error = senders("sash", loopback_app.mean("sash", list(group), 3, 500) + noise, 3, 3)
        assert found == group
        assert error <= 1e-7
    _, error = senders("sash", rng.uniform(-1, 1, 500), 3, 3)
    assert error > loopback_app.CLIP


TRAFFIC = Traffic(20, 900, 10**6, 10**6, 27, expected(Plan()), (), {"it": True})


ROUNDS = (
    Round(1, 9.0, SITES, 1e-7),
    Round(2, 60.0, ("site-a", "site-c"), 1e-7),
    Round(3, 9.0, SITES, 1e-7),
)


def log(site: str, contracts: str, epochs: str = "pqq") -> Logged:
    """One that shows these contracts and epochs of rounds 1, 2, 3."""
    return Logged(site, tuple(zip((1, 2, 3), contracts, epochs, strict=False)))


SAME = tuple(log(site, "aaa", "ppp") for site in SITES)
RENEWED = tuple(log(site, "abb") for site in SITES)


def results(*changed: Round, rounds: int = 3) -> tuple[Result, ...]:
    """Of two runs, the second of which has other rounds."""
    new = {each.number: each for each in (*ROUNDS, *changed)}
    runs = {"flashe": ROUNDS, "sash": tuple(new.values())[:rounds]}
    return tuple(Result(name, "finished:completed", 60.0, run, SAME) for name, run in runs.items())


GROUP_KEY = Found("group key", "array 1", 2)


@pytest.mark.parametrize(
    ("found", "traffic", "said"),
    [
        (results(), {"found": (GROUP_KEY,)}, "must never travel"),
        (results(), {"controls": {"it": False}}, "verdict is worth nothing"),
        (results(), {"searched": {**TRAFFIC.searched, GROUP: 1}}, "no group key was collected"),
        (results(), {"missing": ("group key of member 1a",)}, "group key of member 1a"),
        (results(rounds=2), {}, "2 of 3 rounds"),
        (results(Round(1, 9.0, SITES, 1e-3)), {}, "round 1: the model is 0.001 off"),
        (results(Round(3, 9.0, ("site-a", "site-c"), 1e-7)), {}, "round 3: without site-b"),
        (results(Round(2, 9.0, ("site-a", "site-b"), 1e-7)), {}, "round 2: without site-c"),
    ],
)
def test_each_thing_that_is_wrong_is_said_and_nothing_else(
    found: tuple[Result, ...], traffic: dict[str, Any], said: str
) -> None:
    assert list(wrong(Plan(), results(), TRAFFIC)) == []
    (what,) = wrong(Plan(), found, replace(TRAFFIC, **traffic))
    assert said in what


def test_where_nobody_is_killed_all_have_to_be_there() -> None:
    plan = Plan(kill=False)
    assert len(list(wrong(plan, results(), replace(TRAFFIC, searched=expected(plan))))) == 2


def test_a_contract_that_changed_is_in_every_log() -> None:
    plan = Plan(renew=True)
    assert list(contracts.wrong(plan, "flashe", RENEWED)) == []
    assert list(contracts.wrong(Plan(), "flashe", SAME)) == []
    away = (RENEWED[0], Logged("site-b", ((1, "a", "p"), (3, "b", "q"))), RENEWED[2])
    assert list(contracts.wrong(plan, "flashe", away)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (log("site-b", "acc"), "1 contracts first and 2 after that"),
        (log("site-b", "aab"), "1 contracts first and 2 after that"),
        (log("site-b", "a"), "the log of site-b does not show all contracts"),
        (log("site-b", ""), "the log of site-b does not show all contracts"),
        (log("site-b", "abb", "ppq"), "one epoch under both contracts"),
    ],
)
def test_a_log_that_shows_something_else_is_named(changed: Logged, said: str) -> None:
    logs = (RENEWED[0], changed, RENEWED[2])
    assert any(said in w for w in contracts.wrong(Plan(renew=True), "flashe", logs))


def test_one_contract_under_two_rates_is_named() -> None:
    logs = tuple(log(site, "aaa") for site in SITES)
    assert list(contracts.wrong(Plan(renew=True), "flashe", logs)) == [
        "flashe: logs show one contract under two learning rates"
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"schemes": ()},
        {"schemes": ("flashe", "flashe")},
        {"schemes": ("none",)},
        {"rounds": 2},
        {"rounds": 1, "kill": False, "renew": True},
        {"rounds": 0, "kill": False},
        {"values": 10},
        {"patience": 0.0},
        {"patience": float("inf")},
    ],
)
def test_a_plan_that_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Plan(**bad)
