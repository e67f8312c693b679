"""HEStrategy: FedAvg's numbers out of sums that it cannot read, whoever drops out."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import FlasheFedAvg, SashFedAvg
from flhe.strategies.grid import StreamGrid
from flhe.strategies.report import RoundReport
from flhe.training.model import Model
from tests.strategies.puppets import Node, Puppets, fail_once, initial, play, refused, same
from tests.strategies.reference import (
    COUNTS,
    MAX,
    Reference,
    close,
    start_arrays,
    tolerance,
)

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int = 3, start: Any = None, **how: Any) -> Result:
    return play(FlasheFedAvg, grid, rounds, start=start, **how)[1]


failed = partial(refused, FlasheFedAvg)


# --- the numbers ---


@pytest.mark.parametrize("shape", [(), (1,), (0,), (20_000,)])
def test_models_of_one_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    grid = Puppets(tmp_path, 3)
    grid.app.trained = lambda arrays, p: {"x": np.asarray(arrays["x"] + np.float32(0.1 * p))}
    start = {"initial_arrays": records.from_numpy({"x": np.zeros(shape, np.float32)})}
    run(grid, 2, start, weighted=False)
    np.testing.assert_allclose(same(grid, range(3)).masters["x"], np.full(shape, 0.2), atol=3e-4)


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


# --- FedAvg's own arguments ---


@pytest.mark.parametrize("name", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_own_aggregation_of_metrics_is_not_ignored_silently(
    name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server never sees one member's metrics, so it cannot call this: it must say so."""
    FlasheFedAvg(**{name: lambda contents, key: MetricRecord()})
    assert f"{name} is not called" in caplog.text


ODD = {"fine": np.zeros(2), "mask": np.zeros(2, bool)}


@pytest.mark.parametrize(
    ("make", "start", "why"),
    [
        (FlasheFedAvg, {"evaluate_fn": print}, r"would see ciphertext.*@app\.evaluate.*flhe open"),
        (
            partial(SashFedAvg, unmask="clients"),
            {"evaluate_fn": print},
            "evaluate_fn would see ciphertext",
        ),
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


def test_it_waits_for_nodes_that_are_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Puppets(tmp_path, 3)
    answers = iter([[100], [100, 101]])
    monkeypatch.setattr(grid, "get_node_ids", lambda: next(answers, [100, 101, 102]))
    run(grid, 1, min_available_nodes=3)
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
    assert re.match(said, failed(grid, **how))


# --- metrics ---


LOSS = float(np.average([0.5, 1.5, 2.5], weights=COUNTS[:3]))


@pytest.mark.parametrize(
    ("config", "loss", "accuracy"),
    [
        ([{}] * 3, LOSS, LOSS),
        ([{"flhe-metrics": "none"}] * 3, None, None),
    ],
    ids=["all", "nobody tells"],
)
def test_evaluations_are_weighted_means(
    tmp_path: Path, config: list[dict[str, Any]], loss: float | None, accuracy: float | None
) -> None:
    grid = Puppets(tmp_path, 3, config=lambda i: config[i])
    grid.app.evaluated = lambda p: {"loss": 0.5 + p, "accuracy": 0.5 + p}
    done = run(grid, 1)
    (report,) = grid.reports
    if loss is None:
        assert (report.loss, report.accuracy) == (None, None)
    else:
        assert (report.loss, report.accuracy) == pytest.approx((loss, accuracy), rel=5e-3)
    told = {"loss": loss, "accuracy": accuracy}
    known = {n: pytest.approx(v, rel=5e-3) for n, v in told.items() if v is not None}
    assert dict(done.evaluate_metrics_clientapp.get(1, {})) == known


# --- what it costs ---


def test_reports_are_plausible(tmp_path: Path) -> None:
    """An update and its sum go each way once; what is beside them is small."""
    grid = Puppets(tmp_path, 4)
    strategy, _ = play(FlasheFedAvg, grid, 3)
    layout = Model.initial(start_arrays()).layout
    update = strategy.terms.for_cohort(4).nbytes(strategy.terms.lanes(layout))
    first, *later = grid.reports
    assert first.bytes_down > 4 * update + 4 * sum(len(a.data) for a in initial().values())
    assert all(4 * update < r.bytes_down < 4 * update + 8000 for r in later)
    for number, report in enumerate(grid.reports, 1):
        assert (report.round, report.survivors, report.accuracy) == (number, 4, None)
        assert 4 * update < report.bytes_up < 4 * update + 8000 + (number == 1) * 20_000
        assert 0 < report.crypto_s < report.round_s
        assert report.loss == pytest.approx(
            float(np.average([0.5, 1.5, 2.5, 3.5], weights=COUNTS[:4])), rel=5e-3
        )
        assert set(report.to_json()) == {f.name for f in dataclasses.fields(RoundReport)}


def test_what_a_strategy_is_set_to_between_rounds_counts(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 5)
    grid.away = lambda round_: {102, 103, 104} if round_ > 1 else set()
    strategy = grid.timed(FlasheFedAvg(max_examples=MAX, min_replies=4, connect_timeout=1.0))

    def lowered() -> None:
        strategy.settings = dataclasses.replace(strategy.settings, min_replies=2)
        strategy.min_train_nodes = 2

    grid.before[2] = lowered
    strategy.start(grid, initial(), num_rounds=3)
    grid.close()
    assert strategy._fed is not None
    assert strategy._fed.ledger.round == 3


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


def test_nodes_that_lack_the_same_share_one_content(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    run(grid, 2)
    rounds = [content for _, stage, content in grid.sent if stage == "round"]
    # In the second round one of them is sent what all found of the model, too.
    assert len({id(content) for content in rounds}) == 3


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
    failed = fail_once(grid, "checkpoint", 1, 2)
    run(grid, 1, checkpoint_every=1, fraction_evaluate=0.0)
    *before, sealer = grid.stages("checkpoint")
    assert before == failed
    assert sealer not in (synced := grid.stages("sync"))
    assert len(synced) == 3
    same(grid, range(5))
