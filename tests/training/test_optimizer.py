"""Optimizers: the same bits always, nothing read by halves; Flower's results, and PyTorch's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.training import optimizer
from flhe.training.optimizer import RULES, TINY, Optimizer

LENGTH = 50

DIGESTS = {
    "fedavg": "760d7544ec9e412f",
    "fedavgm": "7674898629c2b78d",
    "fedadagrad": "e0aef20d9084e89b",
    "fedadam": "d238d9271fc30823",
    "fedyogi": "93cd2d53e9ba90be",
    "sgd": "0e7191dcf3d1c084",
    "adam": "98f41d78cbfb027d",
    "rmsprop": "6b88a4688922e59c",
}
DEFAULTS = {name: rule.defaults for name, rule in RULES.items()}

UNIT = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(1e-15, 1e30)
RANGES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("eta", "tau", "lr", "eps"), POSITIVE),
    **dict.fromkeys(("momentum", "beta_1", "beta_2", "alpha"), UNIT),
    "betas": st.tuples(UNIT, UNIT),
    "decay": st.floats(0, 1e3),
}
OPTIMIZERS: st.SearchStrategy[Optimizer] = st.sampled_from(sorted(DEFAULTS)).flatmap(
    lambda name: st.builds(
        Optimizer,
        st.just(name),
        **{key: st.none() | RANGES[key] for key in DEFAULTS[name]},
    )
)
VECTORS = arrays.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def made(name: str, momentum: float, **more: Any) -> Optimizer:
    """One with momentum, where its rule has any."""
    own = {"momentum": momentum} if "momentum" in DEFAULTS[name] else {}
    return Optimizer(name, **own, **more)  # type: ignore[arg-type]


def change_of(model: NDArray[np.float64], round_: int) -> NDArray[np.float32]:
    """A step towards a place that drifts; some values stay."""
    index = np.arange(model.size)
    place = np.cos(index + 3 * round_) * 10.0 ** -(index % 7) + 0.01 * round_
    return np.where(index % 5 == 0, 0.0, 0.25 * (place - model)).astype(np.float32)


def flower_round(
    strategy: FedAvg, round_: int, model: NDArray[np.float64], mean: NDArray[np.float32]
) -> NDArray[np.float64]:
    """One round of Flower's own strategy, of one node that moves a model by the mean change."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    nodes = Mock(get_node_ids=lambda: [1, 2])
    strategy.configure_train(round_, ArrayRecord({"w": Array(model)}), ConfigRecord(), nodes)
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(model + mean)}), "metrics": metrics})
    aggregated, _ = strategy.aggregate_train(round_, [Message(content, 1, "train")])
    assert aggregated is not None
    out: NDArray[np.float64] = aggregated["w"].numpy()
    return out


HOW: dict[str, Any] = {"eta": 0.03, "beta_1": 0.5, "beta_2": 0.9, "tau": 1e-2}


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (
            FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
            Optimizer("fedavgm", eta=0.5, momentum=0.9),
        ),
        (FedAdagrad(eta=0.03, tau=1e-2), Optimizer("fedadagrad", eta=0.03, tau=1e-2)),
        (FedAdam(**HOW), Optimizer("fedadam", **HOW)),
        (FedYogi(), Optimizer("fedyogi")),
        (FedYogi(**HOW), Optimizer("fedyogi", **HOW)),
    ],
    ids=lambda value: value.name if isinstance(value, Optimizer) else "",
)
def test_ten_rounds_give_what_flower_gives(strategy: FedAvg, optimizer: Optimizer) -> None:
    theirs = ours = np.sin(np.arange(LENGTH, dtype=np.float64))
    moments = optimizer.init(LENGTH)
    for round_ in range(1, 11):
        theirs = flower_round(strategy, round_, theirs, change_of(theirs, round_))
        change, moments = optimizer.step(change_of(ours, round_), moments, round_)
        ours = ours + change
        assert np.abs(ours - theirs).max() < 1e-6


def test_the_same_bits_as_ever() -> None:
    """Any machine, any release: members of one federation may differ in both."""
    more: dict[str, Any] = {name: {"decay": 1e-6} for name in RULES if RULES[name].gradients}
    digests = {}
    for name in DEFAULTS:
        one = made(name, 0.5 if name == "rmsprop" else 0.9, **more.get(name, {}))
        what = "step" if one.gradients else "round"
        moments = one.init(1000)
        hasher = hashlib.sha256()
        for number in range(1, 6):
            noise = hashlib.shake_256(f"{what} {number}".encode()).digest(4000)
            mean = (np.frombuffer(noise, "<i4") / 2.0**34).astype(np.float32)
            change, moments = one.step(mean, moments, number)
            for vector in (change, *moments.values()):
                hasher.update(vector.astype("<f4").tobytes())
        digests[name] = hasher.hexdigest()[:16]
    assert digests == DIGESTS


@given(OPTIMIZERS, st.data())
def test_blocks_do_not_matter_and_inputs_stay(one: Optimizer, data: Any) -> None:
    mean = data.draw(VECTORS)
    block, number = data.draw(st.integers(1, 41)), data.draw(st.integers(1, 10**9))
    moments = one.step(mean[::-1].copy(), one.init(mean.size), number)[1]
    before = {name: vector.copy() for name, vector in {**moments, "mean": mean}.items()}
    change, after = one.step(mean, moments, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "BLOCK", block)
        again, after_again = one.step(mean, moments, number)
        assert all(np.array_equal(v, before[n]) for n, v in {**moments, "mean": mean}.items())
        out, _ = one.step(mean, moments, number, out=mean)
    assert out is mean
    assert tuple(after) == one.moments
    for ours, other in (
        (change, again),
        (change, out),
        *((after[n], after_again[n]) for n in after),
    ):
        assert ours.tobytes() == other.tobytes()
        assert ours.dtype == np.float32
        assert np.all(np.isfinite(ours))
        if one.name != "fedavg":
            assert np.all((ours == 0) | (np.abs(ours) >= TINY))  # none that may be flushed


@pytest.mark.parametrize("name", [n for n in DEFAULTS if n != "fedavg"])
def test_a_processor_that_flushes_small_numbers_gives_the_same(name: str) -> None:
    one = made(name, 0.5, **({"eta": 1e-3} if "eta" in DEFAULTS[name] else {}))
    mean = np.float32(2) ** -np.arange(0, 149, dtype=np.float32)  # down to the least subnormal

    def steps() -> list[bytes]:
        moments, seen = one.init(mean.size), []
        for number in range(1, 60):
            given = mean if number == 1 else np.zeros_like(mean)
            change, moments = one.step(given, moments, number)
            seen += [change.tobytes(), *(v.tobytes() for v in moments.values())]
        return seen

    gradual = steps()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        assert steps() == gradual
    finally:
        torch.set_flush_denormal(False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "adamw"}, "name must be one of fedavg, fedavgm"),
    ({"eta": 0.1}, "fedavg has no eta, leave it out"),
    ({"name": "fedadam", "eta": 0}, "eta must be a number, 1e-30 to 1e30"),
    ({"name": "fedyogi", "beta_1": 1.0}, "beta_1 must be a number, at least 0 and less"),
    ({"name": "adam", "eps": 0.0}, "eps must be a number, 1e-15 to"),
    ({"name": "adam", "decay": -1e-6}, "decay must be a number, 0 to"),
    ({"name": "adam", "betas": (0.9, 0.9, 0.9)}, "betas must be .a number"),
    ({"name": "adam", "betas": (0.9, 1.0)}, "betas must be .a number, at least 0"),
    ({"name": "rmsprop", "alpha": 1.0}, "alpha must be a number, at least 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=str)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimizer(**arguments)


def test_integers_pass_for_floats_and_lists_for_tuples() -> None:
    assert type(Optimizer("fedavgm", eta=1).eta) is float
    assert Optimizer("sgd", momentum=-0.0).to_bytes() == Optimizer("sgd").to_bytes()
    listed = Optimizer("adam", betas=[0.9, 0.999])  # type: ignore[arg-type]
    assert hash(listed) == hash(Optimizer("adam"))


FOUR = np.zeros(4, np.float32)
DOUBLE = FOUR.astype(np.float64)


@pytest.mark.parametrize("name", ["fedadam", "adam"])
@pytest.mark.parametrize(
    ("mean", "moments", "number", "message"),
    [
        (FOUR, (), 1, "{0} keeps {1}, {2}; the model comes with none"),
        (FOUR, {"momentum": FOUR}, 1, "comes with momentum: it was trained with another"),
        (FOUR, (FOUR, FOUR[:3]), 1, "float32 vectors of one length"),
        (FOUR, (FOUR, DOUBLE), 1, "float32 vectors"),
        (DOUBLE, (FOUR, FOUR), 1, "float32 vectors"),
        (FOUR, (FOUR, FOUR), 0, "steps count from 1, got 0"),
    ],
)
def test_moments_that_do_not_belong(
    name: str, mean: Any, moments: Any, number: int, message: str
) -> None:
    one = Optimizer(name)  # type: ignore[arg-type]
    given = moments if isinstance(moments, dict) else dict(zip(one.moments, moments, strict=False))
    with pytest.raises(ProtocolError, match=message.format(name, *one.moments)):
        one.step(mean, given, number)


def test_fedavg_costs_nothing_refuses_moments_and_out_must_fit() -> None:
    assert Optimizer().step(FOUR, {}, 1) == (FOUR, {})
    with pytest.raises(ProtocolError, match="keeps no moments; the model comes with v"):
        Optimizer().step(FOUR, {"v": FOUR}, 1)
    with pytest.raises(ProtocolError, match="float32 vectors"):
        Optimizer("fedavgm").step(FOUR, {}, 1, out=np.zeros(3, np.float32))


# --- optimizers of gradients, and what is taken over from one of torch ---

STEPS, WEIGHTS = 200, 240
EPSILON = float(np.finfo(np.float32).eps)

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adam, other betas": (torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop, alpha": (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.9, "eps": 1e-5}),
    "rmsprop, momentum": (torch.optim.RMSprop, {"momentum": 0.9}),
}


def gradient(step: int) -> NDArray[np.float32]:
    """Random gradients, each weight's of a size of its own, 1e-15 to 1e15; a third of them zero."""
    rng = np.random.default_rng(step)
    size = 10.0 ** ((np.arange(WEIGHTS) % 31) - 15)
    values = rng.standard_normal(WEIGHTS) * size
    values[rng.random(WEIGHTS) < 1 / 3] = 0
    values[0] = 0  # never anything
    return values.astype(np.float32)


@pytest.mark.parametrize(("dtype", "decay"), [(torch.float32, 0.01), (torch.float64, 0.0)])
@pytest.mark.parametrize("case", CASES)
def test_200_steps_give_what_torch_gives(case: str, decay: float, dtype: torch.dtype) -> None:
    """To one rounding of float32 in each step, as a share of the way that a weight has gone."""
    kind, options = CASES[case]
    weights = torch.nn.Parameter(torch.linspace(-2, 2, WEIGHTS, dtype=dtype))
    theirs = kind([weights], **options)
    ours = replace(Optimizer.of(theirs), decay=decay)
    rates = torch.optim.lr_scheduler.LambdaLR(theirs, lambda t: 1 / (1 + decay * t))
    model = weights.detach().numpy().copy()
    moments = ours.init(WEIGHTS)
    way = np.abs(model).astype(np.float64)
    for step in range(1, STEPS + 1):
        mean = gradient(step)
        weights.grad = torch.from_numpy(mean).to(dtype)
        theirs.step()
        rates.step()
        change, moments = ours.step(mean, moments, step)
        model = model + change
        way += np.abs(change)
        apart = np.abs(model - weights.detach().numpy())
        assert np.all(apart <= step * EPSILON * way)
    assert model.dtype == weights.detach().numpy().dtype
    assert np.count_nonzero(np.abs(model - np.linspace(-2, 2, WEIGHTS)) > 1e-6) > WEIGHTS / 2
    assert model[0] == -2


def of_torch(kind: Any, **options: Any) -> Any:
    return kind([torch.nn.Parameter(torch.zeros(2))], **options)


def grouped(**second: Any) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    groups[1].update(second)
    return torch.optim.Adam(groups, lr=0.01)


def changed(optimizer: Any, **options: Any) -> Any:
    """As a schedule, or another release of torch, leaves it."""
    optimizer.param_groups[0].update(options)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (of_torch(torch.optim.AdamW), "AdamW.*give a torch.optim.SGD, Adam or RMSprop"),
        (of_torch(torch.optim.Adam, amsgrad=True), "amsgrad=True.*leave it at False"),
        (of_torch(torch.optim.Adam, weight_decay=0.1), "weight_decay=0.1.*leave it at 0"),
        (of_torch(torch.optim.SGD, maximize=True), "maximize=True"),
        (of_torch(torch.optim.Adam, decoupled_weight_decay=True), "decoupled_weight_decay=True"),
        (grouped(lr=0.1), "param groups differ in lr"),
        (grouped(betas=(0.5, 0.5)), "param groups differ in betas"),
        (of_torch(torch.optim.SGD, momentum=1.5), "momentum must be"),
        (
            of_torch(torch.optim.SGD, nesterov=True, momentum=0.9),
            "nesterov=True.*leave it at False",
        ),
        (changed(of_torch(torch.optim.Adam), novelty=None), "novelty=None.*leave it out"),
        (
            changed(of_torch(torch.optim.SGD), initial_lr=0.1),
            "a schedule changes its learning rate",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_like_torchs_is_refused_by_name(optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimizer.of(optimizer)


def test_like_reads_what_would_be_done_now() -> None:
    assert Optimizer.of(of_torch(torch.optim.Adam)) == Optimizer("adam")
    assert Optimizer.of(grouped()) == Optimizer("adam", lr=0.01)
    assert Optimizer.of(grouped(foreach=True)) == Optimizer("adam", lr=0.01)
    theirs = of_torch(torch.optim.RMSprop, alpha=0.9, momentum=0.5)
    like = Optimizer("rmsprop", lr=0.5, alpha=0.9, momentum=0.5)
    assert Optimizer.of(changed(theirs, lr=0.5)) == like  # by hand, after it was made
    assert Optimizer.of(of_torch(torch.optim.Adam, lr=torch.tensor(0.25))).lr == 0.25
