"""HEStrategy: FedAvg's numbers out of sums that it cannot read, whoever drops out or lies."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError, FlheError, MisfitError, QuorumError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.sealed import Sealed
from flhe.strategies import HEStrategy, flashe_fedavg
from flhe.strategies.grid import StreamGrid
from flhe.strategies.report import RoundReport
from flhe.training.model import Model
from flhe.training.terms import Terms
from flhe.wire import canonical
from tests.strategies.puppets import (
    COUNTS,
    Fate,
    Node,
    Puppets,
    Reference,
    initial,
    new_node,
    start_arrays,
)

pytestmark = pytest.mark.usefixtures("quick")

MAX = 64


@dataclasses.dataclass
class Outcome:
    result: Result
    reports: list[RoundReport]
    strategy: HEStrategy


def run(grid: Puppets, rounds: int = 3, start: Any = None, **how: Any) -> Outcome:
    """A whole run; `how` goes to the strategy."""
    reports: list[RoundReport] = []
    how = {"max_examples": MAX, "on_round": reports.append, **how}
    strategy = flashe_fedavg(**how)
    try:
        result = strategy.start(grid, initial(), num_rounds=rounds, **(start or {}))
    finally:
        grid.close()
    return Outcome(result, reports, strategy)


def failed(grid: Puppets, rounds: int = 2, **how: Any) -> str:
    """The text of the QuorumError that a run ends with."""
    with pytest.raises(QuorumError) as caught:
        run(grid, rounds, **how)
    return str(caught.value)


def tolerance(
    partitions: Sequence[int], rounds: int, weighted: bool = True, bits: int = 16
) -> float:
    """One quantization step a client, in units of the weighted mean, for each round."""
    weight = sum(COUNTS[p] for p in partitions) / MAX if weighted else len(partitions)
    step = 1 / (2 ** (bits - 1) - 1)
    return rounds * (len(partitions) * step / weight) + 1e-5


def close(model: Model, reference: Reference, atol: float) -> None:
    for name, expected in reference.masters.items():
        got = model.masters[name]
        assert got.shape == expected.shape
        if expected.dtype.kind == "f":
            slack = 1e-3 if name == "half" else 0.0
            np.testing.assert_allclose(got, expected, atol=atol + slack, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=name)


def same(grid: Puppets, members: Iterable[int]) -> Model:
    """The model that all of them hold, to the bit."""
    models = [grid.model(i) for i in members]
    assert len({b"".join(m.chunks()) for m in models}) == 1
    return models[0]


def equal_weights() -> dict[int, float]:
    return dict.fromkeys(range(6), 1)


# --- the numbers ---


@pytest.mark.parametrize("masking", ["double", "single"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("size", [3, 6])
def test_it_is_fedavg_up_to_quantization(
    tmp_path: Path, size: int, weighted: bool, masking: Any
) -> None:
    grid = Puppets(tmp_path, size)
    done = run(grid, 4, weighted=weighted, masking=masking)
    reference = Reference(dict(enumerate(COUNTS)) if weighted else equal_weights())
    for _ in range(4):
        reference.round(range(size))
    model = same(grid, range(size))
    close(model, reference, tolerance(range(size), 4, weighted))
    assert model.round == 4
    assert [r.survivors for r in done.reports] == [size] * 4


def test_many_bits_come_closer(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    run(grid, 2, bits=24)
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(2):
        reference.round(range(3))
    masters = grid.model(0).masters
    np.testing.assert_allclose(masters["w"], reference.masters["w"], atol=2e-6, rtol=0)


def test_weights_matter(tmp_path: Path) -> None:
    """A comparison that any mean would pass proves nothing."""
    weighted, equal = Reference(dict(enumerate(COUNTS))), Reference(equal_weights())
    for reference in (weighted, equal):
        reference.round(range(3))
    apart = np.abs(weighted.masters["w"] - equal.masters["w"]).max()
    assert apart > 20 * tolerance(range(3), 4)
    assert tolerance(range(3), 4, False) < apart / 20


@pytest.mark.parametrize("shape", [(), (1,), (0,), (20_000,)])
def test_models_of_one_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    app = new_node()
    app.trained = lambda arrays, p: {
        n: np.asarray(a + np.float32(0.1 * p)) for n, a in arrays.items()
    }
    grid = Puppets(tmp_path, 3, app)
    strategy = flashe_fedavg(max_examples=MAX, weighted=False)
    strategy.start(grid, records.from_numpy({"x": np.zeros(shape, np.float32)}), num_rounds=2)
    grid.close()
    np.testing.assert_allclose(same(grid, range(3)).masters["x"], np.full(shape, 0.2), atol=3e-4)


def test_training_metrics_are_weighted_means(tmp_path: Path) -> None:
    app = new_node()
    app.metrics = lambda p: {"train_loss": 1.0 + p, "train_acc": 0.1 * p, "patients": 4711.0}
    grid = Puppets(tmp_path, 4, app)
    done = run(grid, 2)
    loss = np.average([1.0 + p for p in range(4)], weights=COUNTS[:4])
    for number in (1, 2):
        told = done.result.train_metrics_clientapp[number]
        assert told["train_loss"] == pytest.approx(loss, rel=5e-3)
        assert told["train_acc"] == pytest.approx(
            np.average([0.1 * p for p in range(4)], weights=COUNTS[:4]), rel=5e-3
        )
        assert set(told) == {"train_loss", "train_acc"}


def test_training_metrics_without_evaluation(tmp_path: Path) -> None:
    done = run(Puppets(tmp_path, 3), 3, fraction_evaluate=0.0)
    assert sorted(done.result.train_metrics_clientapp) == [1, 2, 3]


def test_own_names_for_arrays_weights_and_config(tmp_path: Path) -> None:
    seen: list[set[str]] = []
    app = Node(HEMod(), lambda m, c, after: translate(m, c, after, seen))
    grid = Puppets(tmp_path, 3, app)
    run(grid, 2, arrayrecord_key="weights", configrecord_key="settings", weighted_by_key="n")
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(2):
        reference.round(range(3))
    close(same(grid, range(3)), reference, tolerance(range(3), 2))
    assert seen
    assert all(names == {"weights", "settings"} for names in seen)


def translate(message: Message, context: Any, after: Any, seen: list[set[str]]) -> Message:
    """An app of other names, out of the one that we have."""
    seen.append(set(message.content))
    message.content = RecordDict(
        {"arrays": message.content["weights"], "config": message.content["settings"]}
    )
    reply: Message = after(message, context)
    told = reply.content["metrics"]
    told["n"] = told.pop("num-examples")  # type: ignore[union-attr, arg-type]
    return reply


def test_the_apps_config_arrives(tmp_path: Path) -> None:
    app = new_node()
    run(Puppets(tmp_path, 3, app), 2, {"train_config": ConfigRecord({"lr": 0.5})})
    assert [(c["lr"], c["server-round"]) for c in app.configs] == [(0.5, 1)] * 3 + [(0.5, 2)] * 3


# --- FedAvg's own arguments ---


def test_every_argument_of_fedavg_is_taken() -> None:
    values: dict[str, Any] = {
        "fraction_train": 0.75,
        "fraction_evaluate": 0.5,
        "min_train_nodes": 3,
        "min_evaluate_nodes": 1,
        "min_available_nodes": 4,
        "weighted_by_key": "n",
        "arrayrecord_key": "a",
        "configrecord_key": "c",
        "train_metrics_aggr_fn": lambda contents, key: MetricRecord(),
        "evaluate_metrics_aggr_fn": lambda contents, key: MetricRecord(),
    }
    parameters = set(inspect.signature(FedAvg.__init__).parameters) - {"self"}
    assert parameters == set(values)
    for build in (flashe_fedavg, HEStrategy):
        strategy = build(**values)
        assert isinstance(strategy, FedAvg)
        for name, value in values.items():
            assert getattr(strategy, name) == value
        assert (strategy.terms.arrays_key, strategy.terms.weight_key) == ("a", "n")
        for name, value in values.items():
            build(**{name: value})


def test_arguments_of_the_preset_are_terms() -> None:
    how: dict[str, Any] = {
        "bits": 12,
        "clip": {"*": 0.5},
        "max_examples": 77,
        "weighted": False,
        "masking": "single",
        "train_metrics": ("loss",),
    }
    terms = flashe_fedavg(**how).terms
    assert terms == Terms("flashe", 12, {"*": 0.5}, 77, False, "single", ("loss",))
    assert flashe_fedavg().terms == Terms()


@pytest.mark.parametrize(
    "how",
    [
        {"bits": 1},
        {"bits": 33},
        {"clip": 0.0},
        {"max_examples": 0},
        {"masking": "triple"},
        {"min_replies": 1},
        {"round_timeout": 0},
        {"round_timeout": math.inf},
        {"stage_timeout": -1},
        {"connect_timeout": math.nan},
        {"train_metrics": ("a", "a")},
    ],
)
def test_what_cannot_work_is_refused_at_construction(how: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, MisfitError)):
        flashe_fedavg(**how)


def test_an_argument_that_nobody_has() -> None:
    with pytest.raises(TypeError):
        flashe_fedavg(fraction_fit=0.5)


def test_own_aggregation_of_evaluations(tmp_path: Path) -> None:
    given_: list[int] = []

    def largest(contents: list[RecordDict], key: str) -> MetricRecord:
        given_.append(len(contents))
        told = [c["metrics"]["loss"] for c in contents]
        return MetricRecord({"loss": max(told)})  # type: ignore[type-var]

    done = run(Puppets(tmp_path, 3), 1, evaluate_metrics_aggr_fn=largest)
    assert given_ == [3]
    assert done.result.evaluate_metrics_clientapp[1]["loss"] == 2.5


def test_own_aggregation_of_training_metrics_is_not_ignored_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server never sees single training metrics, so it cannot call this: it must say so."""
    called: list[int] = []

    def mine(contents: list[RecordDict], key: str) -> MetricRecord:
        called.append(len(contents))
        return MetricRecord({"train_loss": -1.0})

    run(Puppets(tmp_path, 3), 1, train_metrics_aggr_fn=mine)
    assert called or "train_metrics_aggr_fn" in caplog.text


def test_an_evaluate_fn_is_refused_with_the_mend(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"would see ciphertext.*@app\.evaluate.*flhe open"):
        run(grid, 1, {"evaluate_fn": lambda number, arrays: None})
    assert not grid.sent


def test_a_model_that_does_not_average_is_refused_by_name(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    odd = records.from_numpy({"fine": np.zeros(2), "mask": np.zeros(2, bool)})
    with pytest.raises(ConfigError, match="'mask' is bool, which does not average"):
        flashe_fedavg().start(grid, odd)
    grid.close()
    assert not grid.sent


# --- who takes part ---


def test_a_fraction_trains(tmp_path: Path) -> None:
    app = new_node()
    grid = Puppets(tmp_path, 6, app)
    done = run(grid, 3, fraction_train=0.7, fraction_evaluate=0.5)
    assert [r.survivors for r in done.reports] == [4] * 3
    assert len([p for kind, p in app.ran if kind == "train"]) == 12
    assert len([p for kind, p in app.ran if kind == "evaluate"]) == 9


def test_a_fraction_that_can_never_reach_the_quorum(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 6)
    with pytest.raises(ConfigError, match="samples 2 of 6 members, a round needs 3 updates: raise"):
        run(grid, 1, fraction_train=0.3)
    assert not grid.stages("round")
    grid = Puppets(tmp_path / "b", 6)
    assert run(grid, 1, fraction_train=0.3, min_train_nodes=3).reports[0].survivors == 3


def test_no_evaluation(tmp_path: Path) -> None:
    app = new_node()
    done = run(Puppets(tmp_path, 3, app), 2, fraction_evaluate=0.0)
    assert {kind for kind, _ in app.ran} == {"train"}
    assert [(r.accuracy, r.loss) for r in done.reports] == [(None, None)] * 2
    assert done.result.evaluate_metrics_clientapp == {}


def test_no_training(tmp_path: Path) -> None:
    app = new_node()
    grid = Puppets(tmp_path, 3, app)
    done = run(grid, 2, fraction_train=0.0)
    assert {kind for kind, _ in app.ran} == {"evaluate"}
    assert [r.survivors for r in done.reports] == [0, 0]
    model = same(grid, range(3))
    assert model.round == 0
    np.testing.assert_array_equal(model.masters["w"], start_arrays()["w"])


def test_too_few_nodes_connect(tmp_path: Path) -> None:
    text = failed(Puppets(tmp_path, 3), min_available_nodes=4, connect_timeout=0.05)
    assert text.startswith("3 nodes connected within 0.05 s, 4 are needed: start the others")


def test_it_waits_for_nodes_that_are_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Puppets(tmp_path, 3)
    answers = [[100], [100, 101], [100, 101, 102]]
    monkeypatch.setattr(
        grid, "get_node_ids", lambda: answers.pop(0) if len(answers) > 1 else answers[0]
    )
    assert run(grid, 1, min_available_nodes=3).reports[0].survivors == 3


# --- who drops out ---


FATES: dict[str, Callable[[int, str, int], Fate]] = {
    "dead in round 1": lambda n, s, r: "dead" if (n, s, r) == (104, "round", 1) else None,
    "silent in round 1": lambda n, s, r: "silent" if (n, s, r) == (104, "round", 1) else None,
    "dead in round 2": lambda n, s, r: "dead" if (n, s, r) == (104, "round", 2) else None,
    "silent in round 3": lambda n, s, r: "silent" if (n, s, r) == (104, "round", 3) else None,
    "dead for two rounds": lambda n, s, r: (
        "dead" if n == 104 and s != "advertise" and r in (2, 3) else None
    ),
    "silent for two rounds": lambda n, s, r: "silent" if n == 104 and r in (1, 2) else None,
    "dead while evaluating": lambda n, s, r: "dead" if (n, s, r) == (104, "evaluate", 2) else None,
}
ABSENT = {
    "dead in round 1": {1},
    "silent in round 1": {1},
    "dead in round 2": {2},
    "silent in round 3": {3},
    "dead for two rounds": {2, 3},
    "silent for two rounds": {1, 2},
    "dead while evaluating": set(),
}


@pytest.mark.parametrize("name", FATES)
def test_one_that_comes_back_has_the_same_model(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Puppets(tmp_path, 5)
    grid.fate = FATES[name]
    done = run(grid, 4)
    reference = Reference(dict(enumerate(COUNTS)))
    for number in range(1, 5):
        reference.round([p for p in range(5) if p != 4 or number not in ABSENT[name]])
    model = same(grid, range(5))
    close(model, reference, 4 * tolerance(range(4), 1))
    assert [r.survivors for r in done.reports] == [
        4 if n in ABSENT[name] else 5 for n in range(1, 5)
    ]
    assert "node 104" in caplog.text
    assert ("unavailable" in caplog.text) == ("dead" in name)


def test_one_that_is_gone_for_good(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 5)
    grid.fate = lambda n, s, r: "silent" if n == 104 and s != "advertise" and r else None
    done = run(grid, 3, fraction_evaluate=0.5)
    assert [r.survivors for r in done.reports] == [4] * 3
    same(grid, [0])
    with pytest.raises(FileNotFoundError):
        grid.model(4)


def test_all_but_the_quorum(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 6)
    grid.fate = lambda n, s, r: (
        "dead" if n in (100 + r, 101 + r, 102 + r) and s == "round" else None
    )
    done = run(grid, 3)
    assert [r.survivors for r in done.reports] == [3] * 3
    reference = Reference(dict(enumerate(COUNTS)))
    for number in range(1, 4):
        reference.round([p for p in range(6) if p not in (number, number + 1, number + 2)])
    close(same(grid, range(6)), reference, 0.01)


def test_too_few_updates_end_the_run(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 6)
    fates = {101: "dead", 102: "silent", 103: "dead", 104: "dead"}
    grid.fate = lambda n, s, r: fates.get(n) if (s, r) == ("round", 2) else None  # type: ignore[return-value]
    text = failed(grid, 3)
    assert text.startswith("round 2: 2 updates, 3 needed (")
    assert "3 nodes, first 101: the node is unavailable" in text
    assert "node 102: no reply in time" in text


def test_min_replies(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 5)
    grid.fate = lambda n, s, r: "dead" if n == 104 and s == "round" else None
    assert failed(grid, min_replies=5).startswith("round 1: 4 updates, 5 needed (node 104: ")


def test_an_app_that_fails_is_named_with_its_code(tmp_path: Path) -> None:
    app = new_node()

    def examples(partition: int) -> int:
        if partition == 1:
            raise ValueError("patient 4711")
        return 0 if partition == 2 else 10

    app.examples = examples
    text = failed(Puppets(tmp_path, 4, app))
    assert text.startswith("round 1: 2 updates, 3 needed")
    assert "node 101: flhe/app-failed: the app's own code failed there" in text
    assert "node 102: flhe/examples: its example count cannot be weighed" in text
    assert "4711" not in text


def test_nobody_can_evaluate(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    grid.fate = lambda n, s, r: "dead" if s == "evaluate" else None
    text = failed(grid)
    assert text == "round 1: no evaluations, 1 needed (3 nodes, first 100: the node is unavailable)"


# --- who lies ---


def sealed(reply: Message) -> Sealed:
    header = reply.content[records.REPLY]["header"]
    return records.to_sealed(header, reply.content[records.UPDATE])  # type: ignore[arg-type]


def rewritten(change: Callable[[Sealed], Sealed]) -> Callable[[Message], None]:
    def forge(reply: Message) -> None:
        part = change(sealed(reply))
        reply.content[records.REPLY]["header"] = part.header()  # type: ignore[index]
        reply.content[records.UPDATE] = records.from_sealed(part)

    return forge


def slotted(**changes: Any) -> Callable[[Message], None]:
    return rewritten(
        lambda part: dataclasses.replace(part, slot=dataclasses.replace(part.slot, **changes))
    )


def resigned(reply: Message) -> None:
    record = reply.content[records.REPLY]
    body = canonical.loads(record["envelope"], 2048, "envelope")  # type: ignore[arg-type]
    body["signature"] = altered(body["signature"], 5, 1)
    record["envelope"] = canonical.dumps(body)  # type: ignore[assignment]


def flipped(part: Sealed) -> Sealed:
    data = part.data.copy()
    data[3] ^= 1
    return dataclasses.replace(part, data=data)


def without(name: str) -> Callable[[Message], None]:
    def forge(reply: Message) -> None:
        del reply.content[name]

    return forge


def replaced(name: str, record: Callable[[], Any]) -> Callable[[Message], None]:
    def forge(reply: Message) -> None:
        del reply.content[name]
        reply.content[name] = record()

    return forge


LIES: dict[str, tuple[Callable[[Message], None], str]] = {
    "another's rank": (
        rewritten(lambda p: dataclasses.replace(p, senders=((p.senders[0] + 1) % 5,))),
        "it is another member's",
    ),
    "two ranks": (rewritten(lambda p: dataclasses.replace(p, senders=(0, 1))), "another member's"),
    "a rank beyond": (
        rewritten(lambda p: dataclasses.replace(p, senders=(9,))),
        "another member's",
    ),
    "signature": (resigned, "the signature does not verify"),
    "altered data": (rewritten(flipped), "signed for another payload"),
    "another round": (slotted(round=3), "another round, epoch or parameter set"),
    "another attempt": (slotted(attempt=1), "another round, epoch or parameter set"),
    "another layout": (slotted(layout_hash=bytes(32)), "another round, epoch or parameter set"),
    "another epoch": (slotted(epoch=bytes(16)), "another round, epoch or parameter set"),
    "another run": (slotted(run_id=8), "another round, epoch or parameter set"),
    "another history": (slotted(history=bytes(32)), "its model has drifted"),
    "longer": (rewritten(lambda p: dataclasses.replace(p, length=p.length + 1)), "another length"),
    "cut": (rewritten(lambda p: dataclasses.replace(p, data=p.data[:-1])), "another payload"),
    "another scheme": (rewritten(lambda p: dataclasses.replace(p, scheme="sash")), ""),
    "no update": (without(records.UPDATE), "the reply holds no encrypted update"),
    "no reply record": (without(records.REPLY), "the reply holds nothing of ours"),
    "a plain record for ours": (
        replaced(records.REPLY, initial),
        "the reply holds nothing of ours",
    ),
    "another mode": (
        rewritten(lambda p: dataclasses.replace(p, mode="single")),
        "masked in another mode than was announced",
    ),
    "plain arrays": (replaced(records.UPDATE, initial), "ciphertext pieces are missing"),
    "a config for arrays": (
        replaced(records.UPDATE, lambda: ConfigRecord({"a": 1})),
        "the reply holds no encrypted update",
    ),
    "an empty reply record": (replaced(records.REPLY, records.reply_record), "field 'told'"),
    "a reply of another version": (
        replaced(records.REPLY, lambda: ConfigRecord({"v": records.PROTOCOL + 1})),
        "another version of flhe's protocol",
    ),
    "garbage": (
        replaced(records.REPLY, lambda: ConfigRecord({"header": b"\xff", "envelope": b""})),
        "",
    ),
    "a huge header": (
        replaced(
            records.REPLY,
            lambda: records.reply_record(
                told=bytes(32), digest=b"x", header=bytes(1 << 20), envelope=b"x"
            ),
        ),
        "at most 65536 are accepted",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_forged_update_is_left_out_and_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    forge, why = LIES[name]
    grid = Puppets(tmp_path, 5)

    def lie(node: int, stage: str, reply: Message) -> Message:
        if (node, stage) == (102, "round") and len(grid.stages("round")) > 5:
            forge(reply)
        return reply

    grid.forge = lie
    done = run(grid, 2)
    assert [r.survivors for r in done.reports] == [5, 4]
    assert f"node 102 is left out: {why}" in caplog.text or why in caplog.text
    assert "node 102 is left out: " in caplog.text
    assert caplog.text.count("is left out") == 1
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(5))
    reference.round([0, 1, 3, 4])
    close(same(grid, range(5)), reference, 2 * tolerance(range(4), 1))


def test_a_stolen_update_does_not_shut_its_owner_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 102 sends what node 100 sent: 102 is left out, and 100 is not."""
    grid = Puppets(tmp_path, 5)

    def lie(node: int, stage: str, reply: Message) -> Message:
        if (node, stage) == (102, "round"):
            stolen = next(r for n, s, r in grid.replies if (n, s) == (100, "round"))
            reply.content = stolen.content
        return reply

    grid.fate = lambda node, stage, round_: None
    order = sorted  # sampling is random; the thief must come second
    original = HEStrategy._sample
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HEStrategy, "_sample", lambda self, *a: order(original(self, *a)))
        grid.forge = lie
        done = run(grid, 1, fraction_evaluate=0.0)
    assert done.reports[0].survivors == 4
    assert "node 102 is left out: the update says that it is another member's" in caplog.text


def test_a_member_shown_another_model_has_drifted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, 5)
    other = {n: np.asarray(a + a.dtype.type(1)) for n, a in start_arrays().items()}

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        if node != 103 or "arrays" not in content:
            return content
        shown = RecordDict(dict(content.items()))
        del shown["arrays"]
        shown["arrays"] = records.from_numpy(other)
        return shown

    grid.rewrite = rewrite
    done = run(grid, 1)
    assert "node 103 is left out: flhe/drift: its model is not the one" in caplog.text
    assert "node 103 has caught up by a checkpoint" in caplog.text
    assert done.reports[0].survivors == 4
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round([0, 1, 2, 4])
    close(same(grid, range(5)), reference, tolerance([0, 1, 2, 4], 1))


ANY = st.one_of(
    st.integers(-9, 9),
    st.binary(max_size=300),
    st.text(max_size=9),
    st.lists(st.binary(), max_size=3),
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Message]:
    """A run's state in the middle of round 1, and a reply that it would take."""
    taken: list[tuple[Any, Message]] = []

    class Stops(HEStrategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            taken.extend((self._fed, reply) for reply in replies)
            raise KeyboardInterrupt

    grid = Puppets(tmp_path_factory.mktemp("honest"), 3)
    with pytest.raises(KeyboardInterrupt):
        Stops(Terms(max_examples=MAX)).start(grid, initial())
    grid.close()
    return taken[0]


@settings(
    max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    header=st.one_of(ANY, st.tuples(st.integers(0, 400), st.integers(1, 255))),
    envelope=st.one_of(ANY, st.tuples(st.integers(0, 700), st.integers(1, 255))),
    which=st.sampled_from(["header", "envelope", "both"]),
)
def test_any_reply_record_is_refused_or_right(
    honest: tuple[Any, Message], header: Any, envelope: Any, which: str
) -> None:
    state, reply = honest
    good = reply.content[records.REPLY]
    record = ConfigRecord(dict(good.items()))
    for name, value in (("header", header), ("envelope", envelope)):
        if which in (name, "both"):
            record[name] = altered(good[name], *value) if isinstance(value, tuple) else value  # type: ignore[arg-type]
    arrays = reply.content[records.UPDATE]  # taking an update in empties its record
    content = RecordDict({records.REPLY: record, records.UPDATE: ArrayRecord(dict(arrays.items()))})
    node = reply.metadata.src_node_id
    with pytest.raises(FlheError):
        state.receive(node, Message(content, reply_to=reply))
    content = RecordDict({records.REPLY: good, records.UPDATE: ArrayRecord(dict(arrays.items()))})
    reply = Message(content, reply_to=reply)
    assert state.receive(node, reply)[0].senders == (state.ledger.agreed.rank(node),)


def altered(data: bytes, at: int, flip: int) -> bytes:
    changed = bytearray(data)
    changed[at % len(changed)] ^= flip
    return bytes(changed)


NONSENSE: dict[str, Callable[[RecordDict], None]] = {
    "crypto-s": lambda c: c[records.REPLY].update({"crypto-s": "long"}),
    "opened": lambda c: c.update({"flhe.opened": ConfigRecord({"round": "one", "missed": 3})}),
    "opened kind": lambda c: c.update({"flhe.opened": MetricRecord({"round": 1})}),
    "means": lambda c: c.update({"flhe.means.1": ConfigRecord({"loss": "x"})}),
    "no record": lambda c: c.pop(records.REPLY),
    "nothing": lambda c: c.clear(),
    "more arrays": lambda c: c.update({"more": initial()}),
    "a list for a number": lambda c: c["metrics"].update({"loss": [1.0, 2.0]}),
    "another name": lambda c: c.update({"odd": c.pop("metrics")}),
    "no weight at all": lambda c: c["metrics"].update({"num-examples": 0}),
    "NaN": lambda c: c["metrics"].update({"loss": float("nan")}),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_one_evaluation_does_not_end_the_run(tmp_path: Path, name: str) -> None:
    grid = Puppets(tmp_path, 4)

    def lie(node: int, stage: str, reply: Message) -> Message:
        if (node, stage) == (102, "evaluate"):
            NONSENSE[name](reply.content)
        return reply

    grid.forge = lie
    assert len(run(grid, 2).reports) == 2


def test_a_weight_that_makes_the_sum_zero_does_not_end_the_run(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3, config=lambda i: {"flhe-counts": True})

    def lie(node: int, stage: str, reply: Message) -> Message:
        if (node, stage) == (102, "evaluate"):
            reply.content["metrics"]["num-examples"] = -sum(COUNTS[:2])
        return reply

    grid.forge = lie
    assert len(run(grid, 1).reports) == 1


# --- metrics ---


def test_evaluations_are_averaged_without_counts(tmp_path: Path) -> None:
    done = run(Puppets(tmp_path, 3), 1)
    assert dict(done.result.evaluate_metrics_clientapp[1]) == {"loss": pytest.approx(1.5)}
    assert done.reports[0].loss == pytest.approx(1.5)


def test_evaluations_are_weighted_where_all_tell_their_counts(tmp_path: Path) -> None:
    done = run(Puppets(tmp_path, 3, config=lambda i: {"flhe-counts": True}), 1)
    loss = np.average([0.5, 1.5, 2.5], weights=COUNTS[:3])
    assert done.reports[0].loss == pytest.approx(loss)


def test_counts_of_some_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = run(Puppets(tmp_path, 3, config=lambda i: {"flhe-counts": i == 1}), 1)
    assert done.reports[0].loss == pytest.approx(1.5)
    assert "only some nodes let leave are left out: ['num-examples']" in caplog.text


def test_metrics_that_only_some_tell_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_node()
    app.evaluated = lambda p: {"loss": 1.0, "accuracy": 0.5}
    allowed = ["loss", "loss,accuracy", "loss,accuracy"]
    grid = Puppets(tmp_path, 3, app, config=lambda i: {"flhe-metrics": allowed[i]})
    done = run(grid, 1)
    assert (done.reports[0].loss, done.reports[0].accuracy) == (1.0, None)
    assert "left out: ['accuracy']" in caplog.text


def test_a_node_that_tells_nothing_does_not_silence_the_others(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3, config=lambda i: {"flhe-metrics": "loss" if i else "none"})
    assert run(grid, 1).reports[0].loss == pytest.approx(2.0)


def test_nobody_tells_anything(tmp_path: Path) -> None:
    done = run(Puppets(tmp_path, 3, config=lambda i: {"flhe-metrics": "none"}), 1)
    assert done.reports[0].loss is None
    assert done.result.evaluate_metrics_clientapp == {}


def test_only_rank_0_is_believed_about_means(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)

    def lie(node: int, stage: str, reply: Message) -> Message:
        if stage == "evaluate" and "flhe.means.1" not in reply.content:
            reply.content["flhe.means.1"] = MetricRecord({"train_loss": -99.0})
        return reply

    grid.forge = lie
    done = run(grid, 2)
    assert all(m["train_loss"] > 0 for m in done.result.train_metrics_clientapp.values())


def test_a_missing_update_is_named_by_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node trained, but its reply came too late."""
    grid = Puppets(tmp_path, 5)

    def lie(node: int, stage: str, reply: Message) -> Message:
        if (node, stage) == (104, "round") and len(grid.stages("round")) <= 5:
            resigned(reply)
        return reply

    grid.forge = lie
    run(grid, 1)
    assert "node 104 reports that its update is missing from the sum" in caplog.text


# --- what it costs ---


def test_reports_are_plausible(tmp_path: Path) -> None:
    size, rounds = 4, 3
    grid = Puppets(tmp_path, size)
    done = run(grid, rounds)
    strategy = done.strategy
    model = Model.initial(start_arrays())
    scheme = strategy.terms.for_cohort(size)
    update = scheme.nbytes(strategy.terms.lanes(model.layout))
    down = sum(len(a.data) for a in initial().values())
    for number, report in enumerate(done.reports, 1):
        assert report.round == number
        assert report.survivors == size
        small = size * 2000
        assert size * update < report.bytes_up < size * update + small + (number == 1) * 20_000
        assert size * update < report.bytes_down
        if number > 1:
            assert report.bytes_down < size * (update + 2000)
        else:
            assert report.bytes_down > size * (down + update)
        assert 0 < report.crypto_s < report.round_s < 60
        assert report.loss == pytest.approx(2.0)
        assert report.accuracy is None
        assert set(report.to_json()) == {f.name for f in dataclasses.fields(RoundReport)}


def test_sums_that_everyone_has_are_dropped(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    held: list[int] = []
    strategy = flashe_fedavg(
        max_examples=MAX, on_round=lambda r: held.append(len(strategy._fed.ledger.sums))
    )
    strategy.start(grid, initial(), num_rounds=5)
    grid.close()
    assert max(held) <= 2
    sums = [len(c[records.STAGE]["sums"]) for _, _, c in grid.sent if "sums" in c[records.STAGE]]  # type: ignore[arg-type, index]
    assert max(sums) == 1


def test_sums_that_one_lacks_are_kept_and_sent_once(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 5)
    grid.fate = lambda n, s, r: "dead" if n == 104 and s != "advertise" and r in (1, 2, 3) else None
    held: list[int] = []
    strategy = flashe_fedavg(
        max_examples=MAX, on_round=lambda r: held.append(len(strategy._fed.ledger.sums))
    )
    strategy.start(grid, initial(), num_rounds=6)
    grid.close()
    assert held[2] == 3
    assert held[-1] <= 2
    caught_up = [c for n, s, c in grid.sent if (n, s) == (104, "round")][3]
    assert len(caught_up[records.STAGE]["sums"]) == 3  # type: ignore[arg-type]
    assert "arrays" in caught_up
    same(grid, range(5))


def test_nodes_that_lack_the_same_share_one_content(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    run(grid, 2)
    rounds = [content for _, stage, content in grid.sent if stage == "round"]
    assert len({id(content) for content in rounds}) == 2


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


def test_the_result_is_sealed_and_opens_for_members_only(tmp_path: Path) -> None:
    grid = Puppets(tmp_path / "one", 3)
    arrays = run(grid, 2).result.arrays
    other = Puppets(tmp_path / "two", 3)
    run(other, 1)
    assert isinstance(arrays, ArrayRecord)
    assert {a.stype for a in arrays.values()} == {records.CHECKPOINT}
    with pytest.raises(ConfigError, match="flhe open"):
        arrays.to_numpy_ndarrays()
    path = tmp_path / "model.flhe"
    path.write_bytes(b"".join(records.to_pieces(arrays)))
    for home in grid.homes:
        opened = open_checkpoint(path, home)
        assert opened.round == 2
        np.testing.assert_array_equal(opened.masters["w"], grid.model(0).masters["w"])
    for home in other.homes:
        with pytest.raises(ConfigError, match="no key of epoch"):
            open_checkpoint(path, home)
    altered_ = bytearray(path.read_bytes())
    altered_[-1] ^= 1
    path.write_bytes(altered_)
    with pytest.raises(FlheError):
        open_checkpoint(path, grid.homes[0])


def test_the_next_member_seals_when_the_first_cannot(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    asked = grid.stages
    grid.fate = lambda n, s, r: "dead" if s == "checkpoint" and len(asked(s)) <= 2 else None
    arrays = run(grid, 1).result.arrays
    assert len(asked("checkpoint")) == 3
    path = tmp_path / "model"
    path.write_bytes(b"".join(records.to_pieces(arrays)))
    assert open_checkpoint(path, grid.homes[0]).round == 1


def test_nobody_seals(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    grid.fate = lambda n, s, r: "silent" if s == "checkpoint" else None
    assert failed(grid, 1).startswith("no member sealed a checkpoint (3 nodes, first")


def test_a_checkpoint_without_evaluation_holds_the_last_round(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    arrays = run(grid, 3, fraction_evaluate=0.0).result.arrays
    path = tmp_path / "model"
    path.write_bytes(b"".join(records.to_pieces(arrays)))
    assert open_checkpoint(path, tmp_path).round == 3


def test_no_array_of_a_result_is_a_plain_one(tmp_path: Path) -> None:
    """Nor of anything that the server keeps or gets: only the initial model was ever readable."""
    grid = Puppets(tmp_path, 3)
    run(grid, 2)
    stypes = {
        array.stype
        for _, _, reply in grid.replies
        for record in reply.content.array_records.values()
        for array in record.values()
    }
    assert stypes == {records.SEALED, records.CHECKPOINT}
