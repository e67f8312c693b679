"""Federations with differential privacy: what is opened, and what it is said to give away."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe.coding.base import Mechanism
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.laplace import Laplace
from flhe.errors import ConfigError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import HEStrategy, dp_fedavg, dp_fedsgd, save_sealed
from flhe.strategies.report import RoundReport
from flhe.strategies.sealed_result import log_encryption
from flhe.testing import InProcessGrid
from flhe.training.accountant import epsilon
from flhe.training.optimizer import Optimizer

Z, BATCH = 1.0, 50.0
DP: dict[str, Any] = {"noise_multiplier": Z, "fraction_evaluate": 0.0}
OF_RECORDS: dict[str, Any] = {
    **DP,
    "max_grad_norm": 1.0,
    "sampling": 0.1,
    "expected_batch": BATCH,
}


def app(size: int, away: int = 0) -> ClientApp:
    """Sends the same gradient each time; the last nodes' fails."""
    made = ClientApp(mods=[HEMod()])

    @made.train()
    def train(msg: Message, ctx: Context) -> Message:
        config = ctx.node_config
        partition, nodes = (int(str(config[name])) for name in ("partition-id", "num-partitions"))
        if partition >= nodes - away:
            raise RuntimeError("away")
        gradient = np.full(size, 0.5 / math.sqrt(size), np.float32)
        content = {
            "arrays": records.from_numpy({"w": gradient}),
            "metrics": MetricRecord({"num-examples": 1}),
            "privacy": ConfigRecord({"max-norm": 1.0, "sampling": 0.1}),
        }
        return Message(RecordDict(content), reply_to=msg)

    return made


def opened(
    path: Path, strategy: HEStrategy, size: int, nodes: int, *, away: int = 0, rounds: int = 1
) -> np.ndarray:
    """The model after some rounds from zeros."""
    lenient = {"flhe-server-reads": True, "flhe-fresh-keys": False, "flhe-schemes": SCHEMES}
    lenient["flhe-min-bits"] = 0
    path.mkdir(exist_ok=True)
    with InProcessGrid(app(size, away), nodes, homes=path, node_config=lambda _: lenient) as grid:
        start = records.from_numpy({"w": np.zeros(size, np.float32)})
        result = strategy.start(grid, ArrayRecord(dict(start)), num_rounds=rounds)
    if strategy.terms.scheme.reader == "server":
        return np.asarray(result.arrays["w"].numpy(), np.float64)
    save_sealed(result, path / "model")
    return np.asarray(open_checkpoint(path / "model", path / "node-0").masters["w"], np.float64)


SCHEMES = "flashe, sash, esafl, batchcrypt, fedml-he, bfv"


BY_RECORDS = partial(dp_fedsgd, **OF_RECORDS, optimizer=Optimizer("sgd", lr=1.0))
BY_MEMBERS = partial(dp_fedavg, **DP, clipping_norm=0.25)  # half of what they send
PROMISES: dict[str, tuple[partial[HEStrategy], int, int, int]] = {
    "c = 2 of 7, 4 senders at least": (partial(BY_RECORDS, Flashe()), 7, 0, 2),
    "three are away": (partial(BY_RECORDS, Flashe()), 7, 3, 2),
    "t = 5 of 7": (partial(BY_RECORDS, Sash("clients")), 7, 0, 3),
    "two are away": (partial(BY_RECORDS, Sash("clients")), 7, 2, 3),
    "all agree on replies of all": (partial(BY_RECORDS, Flashe(), min_replies=4), 4, 0, 3),
    "3 of 4 open, one may collude": (partial(BY_MEMBERS, Sash()), 4, 0, 2),
    "the same for members": (partial(BY_MEMBERS, Flashe()), 4, 0, 2),
}
"""Strategy, nodes, those that are away, and those whose noise is counted on."""


@pytest.mark.parametrize("name", PROMISES)
def test_noise_is_what_was_promised_whoever_drops_out(tmp_path: Path, name: str) -> None:
    """Over 100,000 coordinates: that of each sender, within 2%, and never below what is promised."""
    size, reports = 100_000, list[RoundReport]()
    make, nodes, away, honest = PROMISES[name]
    strategy = make(min_train_nodes=nodes, min_available_nodes=nodes, on_round=reports.append)
    model, senders = opened(tmp_path, strategy, size, nodes, away=away), nodes - away
    norm, sampling, sent = (0.25, 1.0, 0.25 * senders)
    divisor: float = senders
    if make.func is dp_fedsgd:
        norm, sampling, sent, divisor = 1.0, 0.1, -0.5 * senders, BATCH
    noise = model * divisor - sent / math.sqrt(size)
    codec = strategy.terms.resolved(nodes).codec.codecs[-1]
    assert isinstance(codec, DiscreteGaussian)
    grid = codec.grid(size)
    least = (Z * grid.sensitivity * grid.step) ** 2
    assert least >= (Z * norm) ** 2  # rounding paid for
    assert noise.var() == pytest.approx(senders / honest * least, rel=0.02)
    assert noise.var() > least
    assert abs(noise.mean()) < 5 * noise.std() / math.sqrt(size)
    assert [r.epsilon for r in reports] == [epsilon({Mechanism(Z, sampling): 1})]


@pytest.mark.parametrize(
    "scheme",
    [Flashe(), Sash("clients"), Esafl(), Esafl(keys="joint"), BatchCrypt(2048), FedmlHe(), Bfv()],
    ids=str,
)
def test_every_scheme_opens_pooled_sums_with_noise(tmp_path: Path, scheme: Scheme) -> None:
    """Two steps of DP-SGD by records, on 2,000 values of 4 sites."""
    size, nodes, bits = 2000, 4, 20
    reports: list[RoundReport] = []
    strategy = BY_RECORDS(
        scheme,
        noise_multiplier=0.1,
        bits=bits,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        on_round=reports.append,
        delta=1e-6,
    )
    model = opened(tmp_path, strategy, size, nodes, rounds=2)
    mean = -2 * nodes * 0.5 / math.sqrt(size) / BATCH
    assert model.mean() == pytest.approx(mean, abs=5 * float(model.std()) / math.sqrt(size))
    assert 0.1 < model.std() * BATCH / math.sqrt(2) < 0.4
    noise = Mechanism(0.1, 0.1)
    assert [r.epsilon for r in reports] == [epsilon({noise: n}, 1e-6) for n in (1, 2)]
    assert reports[-1].delta == 1e-6


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"select": 0.5}, "select or Laplace"),
        ({"noise": Laplace(0.1, "all")}, "select or Laplace"),
        ({"delta": 0.0}, "delta"),
        ({"sampling": 0.0}, "sampling"),
        ({"bits": 4}, "bits"),
    ],
)
def test_what_would_not_be_private_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        dp_fedsgd(Flashe(), **{**OF_RECORDS, **options})


def test_metrics_that_are_named_are_said_to_have_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet = dp_fedsgd(Flashe(), **OF_RECORDS)
    assert (quiet.terms.metrics, quiet.terms.evaluated) == ((), ())
    named = dp_fedsgd(Flashe(), **OF_RECORDS, evaluate_metrics=("accuracy",))
    for strategy in (quiet, named):
        caplog.clear()
        log_encryption(strategy.terms, 4, 3)
        assert ("WITHOUT noise" in caplog.text) is (strategy is named)
