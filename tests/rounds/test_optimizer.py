"""Server optimizers: Flower's results, the same bits whatever the blocks, nothing read by halves."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.keys import canonical
from flhe.rounds import blockwise
from flhe.rounds.blockwise import TINY
from flhe.rounds.optimizer import DEFAULTS, ServerOptimizer

COUNTS = (40, 10, 25)
LENGTH = 50

DIGESTS = {
    "fedavg": "760d7544ec9e412f",
    "fedavgm": "7674898629c2b78d",
    "fedadagrad": "e0aef20d9084e89b",
    "fedadam": "d238d9271fc30823",
    "fedyogi": "93cd2d53e9ba90be",
}

UNIT = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(1e-30, 1e30)
RANGES = {"eta": POSITIVE, "tau": POSITIVE, "momentum": UNIT, "beta_1": UNIT, "beta_2": UNIT}
OPTIMIZERS = st.sampled_from(sorted(DEFAULTS)).flatmap(
    lambda name: st.builds(
        ServerOptimizer,
        st.just(name),
        **{key: st.none() | RANGES[key] for key in DEFAULTS[name]},
    )
)
VECTORS = arrays.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


class Nodes(Grid):
    """A grid of three nodes that are never asked."""

    run = None
    set_run = create_message = push_messages = pull_messages = send_and_receive = None

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3]


def trained(model: NDArray[np.float64], node: int, round_: int) -> NDArray[np.float64]:
    """What a node makes of a model: a step towards a place that drifts; some values stay."""
    index = np.arange(model.size)
    place = np.cos(index + 3 * node) * 10.0 ** -(index % 7) + 0.01 * round_
    return model + np.where(index % 5 == 0, 0.0, 0.25) * (place - model)


def flower_round(strategy: FedAvg, round_: int, model: NDArray[np.float64]) -> NDArray[np.float64]:
    """One round of Flower's own strategy, through its two entries."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    record = ArrayRecord({"w": Array(model)})
    asked = list(strategy.configure_train(round_, record, ConfigRecord(), Nodes()))
    assert len(asked) == 3
    replies = []
    for message in asked:
        node = message.metadata.dst_node_id - 1
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(trained(model, node, round_))}),
                "metrics": MetricRecord({"num-examples": COUNTS[node]}),
            }
        )
        replies.append(Message(content, reply_to=message))
    aggregated, _ = strategy.aggregate_train(round_, replies)
    assert aggregated is not None
    out: NDArray[np.float64] = aggregated["w"].numpy()
    return out


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (FedAvg(), ServerOptimizer()),
        (FedAvgM(), ServerOptimizer("fedavgm")),
        (
            FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
            ServerOptimizer("fedavgm", eta=0.5, momentum=0.9),
        ),
        (FedAvgM(server_learning_rate=0.5), ServerOptimizer("fedavgm", eta=0.5)),
        (FedAdagrad(), ServerOptimizer("fedadagrad")),
        (FedAdagrad(eta=0.03, tau=1e-2), ServerOptimizer("fedadagrad", eta=0.03, tau=1e-2)),
        (FedAdam(), ServerOptimizer("fedadam")),
        (
            FedAdam(eta=0.03, beta_1=0.5, beta_2=0.9, tau=1e-2),
            ServerOptimizer("fedadam", eta=0.03, beta_1=0.5, beta_2=0.9, tau=1e-2),
        ),
        (FedYogi(), ServerOptimizer("fedyogi")),
        (
            FedYogi(eta=0.03, beta_1=0.5, beta_2=0.9, tau=1e-2),
            ServerOptimizer("fedyogi", eta=0.03, beta_1=0.5, beta_2=0.9, tau=1e-2),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ServerOptimizer) else "",
)
def test_ten_rounds_give_what_flower_gives(strategy: FedAvg, optimizer: ServerOptimizer) -> None:
    theirs = ours = np.sin(np.arange(LENGTH, dtype=np.float64))
    moments = optimizer.init(LENGTH)
    for round_ in range(1, 11):
        theirs = flower_round(strategy, round_, theirs)
        updates = [trained(ours, node, round_) - ours for node in range(3)]
        mean = np.average(updates, axis=0, weights=COUNTS).astype(np.float32)
        change, moments = optimizer.step(mean, moments, round_)
        ours = ours + change
        assert np.abs(ours - theirs).max() < 1e-6


def test_the_same_bits_as_ever() -> None:
    """Any machine, any release: members of one federation may differ in both."""
    digests = {}
    for name in DEFAULTS:
        optimizer = ServerOptimizer(name, **({"momentum": 0.9} if name == "fedavgm" else {}))  # type: ignore[arg-type]
        moments = optimizer.init(1000)
        hasher = hashlib.sha256()
        for round_ in range(1, 6):
            noise = hashlib.shake_256(f"round {round_}".encode()).digest(4000)
            mean = (np.frombuffer(noise, "<i4") / 2.0**34).astype(np.float32)
            change, moments = optimizer.step(mean, moments, round_)
            for vector in (change, *moments.values()):
                hasher.update(vector.astype("<f4").tobytes())
        digests[name] = hasher.hexdigest()[:16]
    assert digests == DIGESTS


@given(OPTIMIZERS, st.data())
def test_blocks_do_not_matter_and_inputs_stay(optimizer: ServerOptimizer, data: Any) -> None:
    mean = data.draw(VECTORS)
    block, round_ = data.draw(st.integers(1, 41)), data.draw(st.integers(1, 10**9))
    moments = optimizer.step(mean[::-1].copy(), optimizer.init(mean.size), round_)[1]
    before = {name: vector.copy() for name, vector in {**moments, "mean": mean}.items()}
    change, after = optimizer.step(mean, moments, round_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "BLOCK", block)
        again, after_again = optimizer.step(mean, moments, round_)
        assert all(np.array_equal(v, before[n]) for n, v in {**moments, "mean": mean}.items())
        out, _ = optimizer.step(mean, moments, round_, out=mean)
    assert out is mean
    for one, other in (
        (change, again),
        (change, out),
        *((after[n], after_again[n]) for n in after),
    ):
        assert one.tobytes() == other.tobytes()
        assert one.dtype == np.float32
        assert np.all(np.isfinite(one))
    if optimizer.name != "fedavg":
        for vector in (change, *after.values()):
            assert np.all((vector == 0) | (np.abs(vector) >= TINY))  # none that may be flushed


@given(OPTIMIZERS)
def test_nothing_learned_changes_nothing(optimizer: ServerOptimizer) -> None:
    moments = optimizer.init(5)
    assert tuple(moments) == optimizer.moments
    for round_ in (1, 2, 3):
        change, moments = optimizer.step(np.zeros(5, np.float32), moments, round_)
        for vector in (change, *moments.values()):
            assert np.all(vector == 0)


@pytest.mark.parametrize("name", [n for n in DEFAULTS if n != "fedavg"])
def test_a_processor_that_flushes_small_numbers_gives_the_same(name: Any) -> None:
    torch = pytest.importorskip("torch")
    optimizer = ServerOptimizer(name, eta=1e-3, **({"momentum": 0.5} if name == "fedavgm" else {}))
    mean = np.float32(2) ** -np.arange(0, 149, dtype=np.float32)  # down to the least subnormal

    def rounds() -> list[bytes]:
        moments, seen = optimizer.init(mean.size), []
        for round_ in range(1, 60):
            given = mean if round_ == 1 else np.zeros_like(mean)
            change, moments = optimizer.step(given, moments, round_)
            seen += [change.tobytes(), *(v.tobytes() for v in moments.values())]
        return seen

    gradual = rounds()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        assert rounds() == gradual
    finally:
        torch.set_flush_denormal(False)


def test_fedavg_costs_nothing() -> None:
    mean = np.ones(3, np.float32)
    change, moments = ServerOptimizer().step(mean, {}, 1)
    assert change is mean
    assert moments == {}


def test_out_of_its_own_is_used() -> None:
    mean, out = np.ones(3, np.float32), np.zeros(3, np.float32)
    change, _ = ServerOptimizer("fedavgm", eta=0.5).step(mean, {}, 1, out=out)
    assert change is out
    assert change.tolist() == [0.5] * 3
    assert mean.tolist() == [1.0] * 3


def test_moments_by_name() -> None:
    assert ServerOptimizer().moments == ()
    assert ServerOptimizer("fedavgm").moments == ()
    assert ServerOptimizer("fedavgm", momentum=0.9).moments == ("momentum",)
    assert ServerOptimizer("fedadagrad").moments == ("v",)
    assert ServerOptimizer("fedadam").moments == ServerOptimizer("fedyogi").moments == ("m", "v")


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 11, 1000, 10**12])
def test_powers(exponent: int) -> None:
    assert math.isclose(blockwise.power(0.99, exponent), 0.99**exponent, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "sgd"}, "use one of fedavg, fedavgm"),
        ({"name": None}, "use one of"),
        ({"name": ["fedavg"]}, "use one of"),
        ({"eta": 0.1}, "fedavg has no eta, leave it out"),
        ({"name": "fedavgm", "tau": 0.1}, "fedavgm has no tau"),
        ({"name": "fedadagrad", "beta_1": 0.9}, "fedadagrad has no beta_1"),
        ({"name": "fedadam", "momentum": 0.9}, "fedadam has no momentum"),
        ({"name": "fedadam", "eta": 0}, "eta=0.: must lie between"),
        ({"name": "fedadam", "eta": math.inf}, "eta=inf"),
        ({"name": "fedadam", "tau": 0.0}, "tau=0.0"),
        ({"name": "fedadam", "tau": math.nan}, "tau=nan"),
        ({"name": "fedyogi", "beta_1": 1.0}, "beta_1=1.0.: must be at least 0"),
        ({"name": "fedyogi", "beta_2": -0.1}, "beta_2=-0.1"),
        ({"name": "fedyogi", "beta_2": math.nan}, "beta_2=nan"),
        ({"name": "fedavgm", "momentum": True}, "must be a number"),
        ({"name": "fedavgm", "momentum": "0.9"}, "must be a number"),
    ],
    ids=str,
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerOptimizer(**arguments)


def test_defaults_are_filled_in_and_integers_pass_for_floats() -> None:
    assert ServerOptimizer("fedadam") == ServerOptimizer("fedadam", 0.1, None, 0.9, 0.99, 1e-3)
    assert type(ServerOptimizer("fedavgm", eta=1).eta) is float
    assert ServerOptimizer("fedavgm", momentum=-0.0).parameters() == (
        ServerOptimizer("fedavgm").parameters()
    )


@given(OPTIMIZERS)
def test_parameters_round_trip(optimizer: ServerOptimizer) -> None:
    written = optimizer.parameters()
    read = canonical.loads(canonical.dumps(written), 1 << 10, "test")
    again = ServerOptimizer.from_parameters(read)
    assert again == optimizer
    assert again.parameters() == written
    assert dataclasses.replace(again) == again


BODY = ServerOptimizer("fedadam").parameters()
MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": ["fedavg"],
    "empty": {},
    "name as bytes": {"name": b"fedavg"},
    "name as a list": {"name": ["fedavg"]},
    "unknown": {"name": "sgd"},
    "a field less": {k: v for k, v in BODY.items() if k != "tau"},
    "a field more": {**BODY, "momentum": (0.9).hex()},
    "another's field": {"name": "fedavg", "eta": (0.1).hex()},
    "a number": {**BODY, "eta": 1},
    "null": {**BODY, "eta": None},
    "in words": {**BODY, "eta": "one"},
    "in decimal": {**BODY, "eta": "0.5"},
    "shortened": {**BODY, "eta": "0x1p-1"},
    "too large to be a float": {**BODY, "eta": "0x1p+5000"},
    "out of range": {**BODY, "eta": (0.0).hex()},
    "not a number": {**BODY, "tau": "nan"},
    "infinite": {**BODY, "tau": "inf"},
    "one": {**BODY, "beta_1": (1.0).hex()},
    "minus zero": {**BODY, "beta_1": (-0.0).hex()},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_parameters(name: str) -> None:
    with pytest.raises(ProtocolError, match="server optimizer"):
        ServerOptimizer.from_parameters(MALFORMED[name])


@given(st.data())
def test_any_value_in_any_field_is_refused_or_read_exactly(data: Any) -> None:
    value = data.draw(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.floats().map(float.hex)
        )
    )
    fields = {**BODY, data.draw(st.sampled_from(sorted(BODY))): value}
    try:
        optimizer = ServerOptimizer.from_parameters(fields)
    except ProtocolError:
        return
    assert optimizer.parameters() == fields


FOUR = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("mean", "moments", "round_", "message"),
    [
        (FOUR, {}, 1, "keeps m, v; the model comes with none"),
        (FOUR, {"momentum": FOUR}, 1, "comes with momentum: it was trained with another"),
        (FOUR, {"m": FOUR, "v": FOUR[:3]}, 1, "float32 vectors of one length"),
        (FOUR, {"m": FOUR, "v": FOUR.astype(np.float64)}, 1, "float32 vectors"),
        (FOUR.reshape(2, 2), {"m": FOUR, "v": FOUR}, 1, "float32 vectors"),
        (FOUR.astype(np.float64), {"m": FOUR, "v": FOUR}, 1, "float32 vectors"),
        (FOUR, {"m": FOUR, "v": FOUR}, 0, "round 0, rounds count from 1"),
    ],
)
def test_moments_that_do_not_belong(mean: Any, moments: Any, round_: int, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        ServerOptimizer("fedadam").step(mean, moments, round_)


def test_fedavg_refuses_moments_and_out_must_fit() -> None:
    with pytest.raises(ProtocolError, match="keeps no moments; the model comes with v"):
        ServerOptimizer().step(FOUR, {"v": FOUR}, 1)
    with pytest.raises(ProtocolError, match="float32 vectors"):
        ServerOptimizer("fedavgm").step(FOUR, {}, 1, out=np.zeros(3, np.float32))
