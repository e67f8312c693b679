"""HEStrategy: FedAvg's numbers out of sums that it cannot read, and what apps are told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError, QuorumError
from flhe.mods import HEMod, records
from flhe.node import audit
from flhe.node.checkpoint import open_checkpoint
from flhe.node.store import Store
from flhe.strategies import FlasheFedAvg, HEStrategy, SashFedAvg
from flhe.strategies.grid import StreamGrid
from flhe.strategies.ledger import Ledger
from flhe.strategies.report import RoundReport
from tests.strategies.puppets import Log, Node, Puppets, initial, play, refused, same
from tests.strategies.reference import COUNTS, MAX, Reference, close, start_arrays, tolerance

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int = 3, start: Any = None, **how: Any) -> Result:
    return play(FlasheFedAvg, grid, rounds, start=start, **how)[1]


# --- the numbers ---


@pytest.mark.parametrize("evaluate", [1.0, 0.0])
def test_training_metrics_are_weighted_means(tmp_path: Path, evaluate: float) -> None:
    grid = Puppets(tmp_path, 4)
    told = {"train_loss": [1.0, 2.0, 3.0, 4.0], "train_acc": [0.0, 0.1, 0.2, 0.3]}
    own = {**told, "patients": [4711.0] * 4}
    grid.app.metrics = lambda p: {name: each[p] for name, each in own.items()}
    done = run(grid, 2, fraction_evaluate=evaluate)
    means = {name: np.average(each, weights=COUNTS[:4]) for name, each in told.items()}
    found = {round_: dict(m) for round_, m in done.train_metrics_clientapp.items()}
    assert found == dict.fromkeys((1, 2), pytest.approx(means, rel=5e-3))


def test_own_names_for_arrays_weights_and_config(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def translate(message: Message, context: Any, after: Any) -> Message:
        """An app of other names, out of the one that we have."""
        content = message.content
        seen.append(set(content))
        message.content = RecordDict({"arrays": content["weights"], "config": content["settings"]})
        reply: Message = after(message, context)
        metrics = reply.content["metrics"]
        metrics["num_examples"] = metrics.pop("num-examples")
        return reply

    grid = Puppets(tmp_path, 3, Node(HEMod(), translate))
    run(
        grid,
        2,
        arrayrecord_key="weights",
        configrecord_key="settings",
        weighted_by_key="num_examples",
    )
    close(same(grid, range(3)), Reference.of([range(3)] * 2), tolerance(range(3), 2))
    assert seen
    assert all(names == {"weights", "settings"} for names in seen)


ODD = {"fine": np.zeros(2), "mask": np.zeros(2, bool)}


@pytest.mark.parametrize(
    ("make", "start", "why"),
    [
        (FlasheFedAvg, {"evaluate_fn": print}, r"would see ciphertext.*@app\.evaluate.*flhe open"),
        (SashFedAvg, {"initial_arrays": None}, r"give start\(\) initial_arrays"),
        (FlasheFedAvg, {"resume": True}, "resume needs state_dir"),
        (
            FlasheFedAvg,
            {"initial_arrays": records.from_numpy(ODD)},
            "'mask' is bool, which does not average",
        ),
    ],
)
def test_a_start_that_cannot_work_is_refused_with_the_mend(
    tmp_path: Path, make: Any, start: dict[str, Any], why: str
) -> None:
    grid = Puppets(tmp_path, 3)
    with pytest.raises(ConfigError, match=why):
        play(make, grid, 1, start=start)
    assert not grid.sent


# --- who takes part ---


@pytest.mark.parametrize(
    ("how", "trains", "evaluates"),
    [
        ({"fraction_train": 0.7, "fraction_evaluate": 0.5}, 4, 3),
        ({"fraction_evaluate": 0.0}, 6, 0),
        ({"fraction_train": 0.0}, 0, 6),  # of one model, once
    ],
    ids=str,
)
def test_a_fraction_takes_part(
    tmp_path: Path, how: dict[str, float], trains: int, evaluates: int
) -> None:
    grid = Puppets(tmp_path, 6)
    done = run(grid, 3, {"train_config": ConfigRecord({"lr": 0.5})}, **how)
    assert grid.survivors == [trains] * 3
    ran = [kind for kind, _ in grid.app.ran]
    models = 3 if trains else 1
    assert (ran.count("train"), ran.count("evaluate")) == (3 * trains, models * evaluates)
    told = [(c["lr"], c["server-round"]) for c in grid.app.configs]
    assert told == [(0.5, number) for number in (1, 2, 3) for _ in range(trains)]
    path = tmp_path / "model"
    path.write_bytes(b"".join(records.to_pieces(done.arrays)))
    assert open_checkpoint(path, tmp_path).round == (3 if trains else 0)
    if not evaluates:
        assert [(r.accuracy, r.loss) for r in grid.reports] == [(None, None)] * 3
        assert done.evaluate_metrics_clientapp == {}
    if not trains:
        np.testing.assert_array_equal(grid.model(0).masters["w"], start_arrays()["w"])


def test_a_fraction_that_can_never_reach_the_quorum(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 6)
    with pytest.raises(ConfigError, match="samples 2 of 6 members, a round needs 3 updates: raise"):
        run(grid, 1, fraction_train=0.3)
    assert not grid.stages("round")
    grid = Puppets(tmp_path / "b", 6)
    run(grid, 1, fraction_train=0.3, min_train_nodes=3)
    assert grid.survivors == [3]


# --- who drops out ---


ENDS: dict[str, tuple[int, dict[str, Any], dict[str, Any], str]] = {
    "too few connect": (
        3,
        {},
        {"min_available_nodes": 4, "connect_timeout": 0.05},
        r"3 nodes connected within 0.05 s, 4 are needed: start the others",
    ),
    "too few updates": (
        6,
        {"round": {101: "dead", 102: "silent", 103: "dead", 104: "dead"}},
        {},
        r"round 2: 2 updates, 3 needed \(3 nodes, first 101: the node is unavailable.*"
        "node 102: no reply in time",
    ),
    "fewer than min_replies": (
        5,
        {"round": {104: "dead"}},
        {"min_replies": 5},
        r"round 2: 4 updates, 5 needed \(node 104: ",
    ),
    "nobody seals": (
        3,
        {"checkpoint": dict.fromkeys((100, 101, 102), "silent")},
        {},
        r"no member sealed a checkpoint \(3 nodes, first",
    ),
}
"""Nodes, what becomes of them at which stage (of a round: the second), how it is run, what is said."""


@pytest.mark.parametrize(("nodes", "fates", "how", "said"), ENDS.values(), ids=list(ENDS))
def test_a_run_that_cannot_go_on_says_why(
    tmp_path: Path, nodes: int, fates: dict[str, Any], how: dict[str, Any], said: str
) -> None:
    grid = Puppets(tmp_path, nodes)
    grid.fate = lambda n, s, r: None if (s, r) == ("round", 1) else fates.get(s, {}).get(n)
    assert re.match(said, refused(FlasheFedAvg, grid, **how))


# --- what it costs ---


@pytest.mark.parametrize("away", [(), (1, 2, 3)])
def test_sums_are_held_as_long_as_somebody_lacks_them(
    tmp_path: Path, away: tuple[int, ...]
) -> None:
    """And sent once: who has been away gets all that it lacks."""
    grid, held = Puppets(tmp_path, 5), list[int]()
    grid.fate = lambda n, s, r: "dead" if n == 104 and s != "advertise" and r in away else None
    strategy = grid.timed(FlasheFedAvg(max_examples=MAX))
    grid.before = dict.fromkeys(range(2, 8), lambda: held.append(len(strategy._fed.ledger.sums)))
    strategy.start(grid, initial(), num_rounds=6)
    grid.close()
    assert held == ([1, 2, 3, 4, 1, 1] if away else [1] * 6)
    sent = [c for n, s, c in grid.sent if (n, s) == (104, "round")]
    sums = [len(c[records.STAGE].get("sums", ())) for c in sent]  # type: ignore[arg-type, union-attr]
    assert sums == ([0, 1, 2, 3, 0, 0] if away else [0] * 6)
    assert "arrays" in sent[len(away)]
    same(grid, range(5))


def test_every_wait_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    real = StreamGrid.send_and_receive

    def spying(self: StreamGrid, messages: Any, *, timeout: float | None = None) -> Any:
        waits.append(timeout)
        return real(self, messages, timeout=timeout)

    monkeypatch.setattr(StreamGrid, "send_and_receive", spying)
    run(Puppets(tmp_path, 3), 2, round_timeout=50, stage_timeout=20)
    assert waits == [20] * 3 + [50] * 4 + [20] * 2
    waits.clear()
    run(Puppets(tmp_path / "b", 3), 1, {"timeout": 7}, round_timeout=50, stage_timeout=20)
    assert waits == [20] * 3 + [7] * 2 + [20] * 2
    waits.clear()
    run(Puppets(tmp_path / "c", 3), 1, {"timeout": math.inf})
    assert all(wait is not None and wait <= 3600 for wait in waits)


# --- what comes out ---


def test_the_next_member_seals_when_the_first_cannot(tmp_path: Path) -> None:
    """Neither it nor the one that has verified the checkpoint is sent it afterwards."""
    grid = Puppets(tmp_path, 5)
    grid.fate = lambda _node, stage, _round: (
        "dead" if stage == "checkpoint" and len(grid.stages(stage)) <= 2 else None
    )
    run(grid, 1, checkpoint_every=1, fraction_evaluate=0.0)
    *failed, sealer = grid.stages("checkpoint")
    assert len(failed) == 2
    assert sealer not in (synced := grid.stages("sync"))
    assert len(synced) == 3
    same(grid, range(5))


@pytest.mark.parametrize("rekey", [False, True])
@pytest.mark.parametrize("make", [FlasheFedAvg, SashFedAvg], ids=["clients read", "server reads"])
def test_a_server_that_dies_behind_an_evaluation_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, *, rekey: bool
) -> None:
    """In another epoch nobody evaluates that model again: its means are lost, and the run goes on."""
    grid = Puppets(tmp_path, 4)

    def run(*, resume: bool) -> Any:
        strategy = grid.timed(make(max_examples=MAX, clip=8.0, state_dir=tmp_path / "state"))
        if resume and rekey:
            strategy.rekey()
        return strategy.start(grid, initial(), num_rounds=3, resume=resume)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "keep_evaluation", die)
        with pytest.raises(KeyboardInterrupt):
            run(resume=False)
    told = run(resume=True).evaluate_metrics_clientapp
    grid.close()
    assert set(told) == ({2, 3} if rekey else {1, 2, 3})


def test_nobody_is_there_to_evaluate(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, 4)
    grid.drop(2, "evaluate", "dead", range(4))
    _, done = play(FlasheFedAvg, grid, 3)
    assert set(done.evaluate_metrics_clientapp) == {1, 3}
    assert "the evaluation of round 2 is lost: round 2: 0 evaluations, 3 needed" in caplog.text
    assert [report.loss is None for report in grid.reports] == [False, True, False]


@pytest.mark.parametrize("every", [0, 1])
def test_the_teller_was_away(tmp_path: Path, every: int) -> None:
    """It tells what all found of the model that it was handed."""
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, stage, round_: (
        "dead" if (stage, round_) == ("evaluate", 2) and node == 100 + grid.ranked()[0] else None
    )
    _, done = play(FlasheFedAvg, grid, 4, checkpoint_every=every)
    assert set(done.evaluate_metrics_clientapp) == {1, 2, 3, 4}


@pytest.mark.parametrize("code", [1023, 1011])
def test_silence_is_no_vote_against_a_sum(tmp_path: Path, code: int) -> None:
    """One refuses a sum, and what the others say is lost twice: it was void, and the run was over."""
    grid, seen = Puppets(tmp_path, 5), set[tuple[int, str]]()

    def lost(node: int, stage: str, reply: Message) -> Message:
        if grid.asked in (2, 3) and stage in ("evaluate", "sync") and (node, stage) not in seen:
            seen.add((node, stage))
            reply._content = None
            reply._error = Error(code=code if node == 104 else 4, reason="")
        return reply

    grid.forge = lost
    for turn in range(3):
        strategy = grid.timed(FlasheFedAvg(max_examples=MAX, state_dir=tmp_path / "state"))
        try:
            strategy.start(grid, initial(), num_rounds=5, resume=turn > 0)
        except QuorumError:
            continue
        break
    grid.close()
    assert same(grid, range(4)).round == 5


class Adapts(FlasheFedAvg):
    """Says something else in a round than when the run began."""

    calls = 0

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.calls += 1
        config["lr"] = 1.0 + (self.calls == 5)
        return super().configure_train(server_round, arrays, config, grid)


def test_what_is_not_in_the_contract_is_not_sent(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"round 2: configure_train .* all members have signed"):
        play(Adapts, grid)
    assert len(grid.stages("round")) == 3  # of round 1


class StoppedError(Exception):
    """The server is stopped."""


@pytest.mark.parametrize("make", [FlasheFedAvg, lambda **how: SashFedAvg(unmask="clients", **how)])
def test_a_run_stopped_before_its_sum_was_opened_goes_on_under_another_config(
    tmp_path: Path, make: Callable[..., HEStrategy]
) -> None:
    """The config of the run is signed too: nodes opened nothing more, and nobody held the model."""
    how: dict[str, Any] = {"state_dir": tmp_path / "server", "fraction_evaluate": 0.0}

    def stop(report: RoundReport) -> None:
        raise StoppedError

    def nodes(run_id: int, lr: float) -> Puppets:
        grid = Puppets(tmp_path / "nodes", 3, run_id=run_id)
        for context in grid.contexts.values():
            context.run_config = {"lr": lr}
        return grid

    with pytest.raises(StoppedError):
        play(make, nodes(7, 0.5), 3, start={"train_config": {"lr": 0.5}}, on_round=stop, **how)
    again = nodes(8, 0.25)
    play(make, again, 3, start={"train_config": {"lr": 0.25}, "resume": True}, **how)
    assert [config["lr"] for config in again.app.configs] == [0.25] * 6
    assert same(again, range(3)).round == 3
    for home in again.homes:  # and every log shows it
        entries = [e for e in audit.last(Store(home), 99) if e is not None and e.stage == "round"]
        first, *rest = (entry.contract for entry in entries)
        assert first is not None
        assert first not in rest
        assert None not in rest
