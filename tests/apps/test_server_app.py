"""The server app: it fails when it should, and writes what it got."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.plain import MeteredFedAvg
from flhe.strategies.report import Reporter
from flhe.training.optimizer import DEFAULTS
from flhe_app import server_app
from flhe_app.settings import Settings
from flhe_app.tasks import task_named


class EmptyGrid(Grid):
    """A grid that one node of many has joined."""

    run = None
    set_run = create_message = push_messages = pull_messages = send_and_receive = None

    def get_node_ids(self) -> list[int]:
        return [1]


def test_a_failure_is_reported_and_raised(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.jsonl"
    config = {"task": "mnist", "report": str(report)}
    ctx = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    with pytest.raises(ConfigError, match="task='mnist' is unknown"):
        server_app.app(EmptyGrid(), ctx)
    event = json.loads(report.read_text())
    assert event["event"] == "failed"
    assert event["error"].startswith("ConfigError: task='mnist'")


def test_a_report_that_cannot_be_written_hides_no_reason(tmp_path: pathlib.Path) -> None:
    config = {"task": "mnist", "report": str(tmp_path / "nowhere" / "report.jsonl")}
    ctx = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    with pytest.raises(ConfigError, match="task='mnist' is unknown"):
        server_app.app(EmptyGrid(), ctx)


def test_missing_nodes_end_the_run() -> None:
    settings = Settings(scheme="plain", nodes=3, join_timeout=0.1)
    with pytest.raises(QuorumError, match=r"1 of nodes=3 connected .*num-supernodes=3"):
        server_app.run(EmptyGrid(), settings, Reporter(None))


def test_strategies() -> None:
    task, reporter = task_named("digits"), Reporter(None)
    plain = server_app.make_strategy(Settings(scheme="plain", nodes=4), task, reporter)
    assert type(plain) is MeteredFedAvg
    assert plain.min_available_nodes == plain.min_train_nodes == 4
    sealed = server_app.make_strategy(Settings(), task, reporter)
    assert type(sealed).__name__ == "HEStrategy"


def test_the_strategy_keeps_state_and_rekeys_as_the_run_config_says(tmp_path: pathlib.Path) -> None:
    settings = Settings(
        state_dir=str(tmp_path), rekey_every=2, checkpoint_every=4, patience=5, retries=6
    )
    strategy = server_app.make_strategy(settings, task_named("digits"), Reporter(None))
    assert isinstance(strategy, HEStrategy)
    assert strategy.state_dir == tmp_path
    assert (strategy.checkpoint_every, strategy.retries) == (4, 6)
    sealed = server_app.make_strategy(Settings(), task_named("digits"), Reporter(None))
    assert isinstance(sealed, HEStrategy)
    assert sealed.state_dir is None


@pytest.mark.parametrize(
    ("config", "resume", "sent"),
    [
        ({"scheme": "plain"}, None, True),
        ({}, None, True),
        ({"secret_initial": True}, None, False),
        ({"state_dir": "s", "resume": True}, True, True),
    ],
    ids=str,
)
def test_what_the_strategy_is_started_with(
    config: dict[str, Any], resume: bool | None, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    class Strategy:
        def start(self, **how: Any) -> Result:
            seen.append(how)
            return Result()

    monkeypatch.setattr(server_app, "make_strategy", lambda *_: Strategy())
    monkeypatch.setattr(server_app, "wait_for_nodes", lambda *_: None)
    server_app.run(EmptyGrid(), Settings(**config), Reporter(None))
    assert seen[0].get("resume") is resume
    assert (seen[0]["initial_arrays"] is not None) is sent


def test_the_strategy_encodes_as_the_run_config_says() -> None:
    settings = Settings(
        masking="adaptive", top_k=0.1, warmup=3, permute=False,
        clipping="exchange",
    )  # fmt: skip
    strategy = server_app.make_strategy(settings, task_named("digits"), Reporter(None))
    assert isinstance(strategy, HEStrategy)
    terms = strategy.terms
    assert (terms.masking, terms.clip, terms.top_k) == ("adaptive", "exchange", 0.1)
    assert (terms.warmup, terms.permute) == (3, False)
    usual = server_app.make_strategy(Settings(clip=0.5), task_named("digits"), Reporter(None))
    assert isinstance(usual, HEStrategy)
    terms = usual.terms
    assert (terms.masking, terms.clip, terms.top_k, terms.sparse) == ("double", 0.5, None, False)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_esafl_as_the_run_config_says(algorithm: str) -> None:
    def terms(**config: Any) -> Any:
        settings = Settings(scheme="esafl", algorithm=algorithm, **config)
        strategy = server_app.make_strategy(settings, task_named("digits"), Reporter(None))
        assert isinstance(strategy, HEStrategy)
        return strategy.terms

    usual = terms()
    assert (usual.scheme, usual.ring, usual.keys) == ("esafl", "goldilocks-4096", "joint")
    assert (usual.bits, usual.clip, usual.optimizer.takes) == (
        16,
        1.0,
        "update" if algorithm == "fedavg" else "gradient",
    )
    other = terms(ring="rns-8192", per_round_keys=True, bits=20, clip=0.5)
    assert (other.ring, other.keys, other.bits, other.clip) == ("rns-8192", "round", 20, 0.5)
    assert terms(clipping="exchange").clip == "exchange"


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("scheme", ["fedml-he", "flashe", "batchcrypt", "esafl", "sash"])
def test_selection_as_the_run_config_says(scheme: str, algorithm: str) -> None:
    def terms(**config: Any) -> Any:
        readers = {"unmask": "clients"} if scheme == "sash" else {}
        settings = Settings(scheme=scheme, algorithm=algorithm, **readers, **config)
        strategy = server_app.make_strategy(settings, task_named("digits"), Reporter(None))
        assert isinstance(strategy, HEStrategy)
        return strategy.terms

    usual = terms()
    assert (usual.scheme, usual.select, usual.noise) == (scheme, Select(), None)
    assert usual.weighted
    other = terms(select=0.25, rule="random", noise=0.5)
    assert (other.select, other.noise) == (Select(0.25, "random"), Laplace(0.5))
    assert not other.weighted
    assert terms(select=0.25, rest="drop").weighted
    if scheme == "fedml-he":
        assert terms(ckks_ring="8192").ckks_ring == "8192"


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("scheme", ["plain", "flashe"])
def test_server_optimizers(scheme: str, name: str) -> None:
    settings = Settings(scheme=scheme, server_optimizer=name)
    strategy = server_app.make_strategy(settings, task_named("digits"), Reporter(None))
    if scheme == "flashe":
        assert isinstance(strategy, HEStrategy)
        assert strategy.terms.optimizer == settings.optimizer
    else:
        assert isinstance(strategy, MeteredFedAvg)
        assert type(strategy).__name__.lower() == f"metered{name}"


def test_plain_optimizers_get_their_parameters() -> None:
    def strategy(name: str) -> Any:
        settings = Settings(scheme="plain", server_optimizer=name, server_eta=0.5)
        return server_app.make_strategy(settings, task_named("digits"), Reporter(None))

    momentum, adam = strategy("fedavgm"), strategy("fedadam")
    assert (momentum.server_learning_rate, momentum.server_momentum) == (0.5, 0.9)
    assert (adam.eta, adam.beta_1, adam.beta_2, adam.tau) == (0.5, 0.9, 0.99, 1e-3)
    assert strategy("fedyogi").eta == strategy("fedadagrad").eta == 0.5


def test_q_fedavg_has_its_own_weights() -> None:
    task = task_named("digits")
    settings = Settings(fair_q=1.0)
    assert server_app.largest_weight(settings, task) == 1 << 20
    assert server_app.largest_weight(Settings(), task) == 288
    assert server_app.largest_weight(Settings(max_examples=500), task) == 500
    strategy = server_app.make_strategy(settings, task, Reporter(None))
    assert isinstance(strategy, HEStrategy)
    assert (strategy.terms.bits, strategy.terms.max_examples) == (24, 1 << 20)


def test_most_examples_covers_any_node() -> None:
    task = task_named("digits")
    assert server_app.most_examples(Settings(), task) == 288
    assert server_app.most_examples(Settings(partition="dirichlet"), task) == task.train_size


def test_writes_the_sealed_bytes_for_the_owner_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.flhe"
    pieces = {"0000": b"ab", "0001": b"c"}
    sealed = ArrayRecord(
        {name: Array("uint8", (len(p),), "flhe.checkpoint/1", p) for name, p in pieces.items()}
    )
    server_app.write_model(path, Result(arrays=sealed), sealed=True)
    assert path.read_bytes() == b"abc"
    assert path.stat().st_mode & 0o777 == 0o600


def test_never_writes_arrays_in_clear_for_a_sealed_model(tmp_path: pathlib.Path) -> None:
    for name in ("0000", "w"):
        clear = ArrayRecord({name: Array(np.zeros(3, np.float32))})
        with pytest.raises(ProtocolError, match="the model was not written"):
            server_app.write_model(tmp_path / "model.flhe", Result(arrays=clear), sealed=True)
    assert not (tmp_path / "model.flhe").exists()


def test_writes_plain_arrays_under_the_name_given(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.bin"
    server_app.write_model(path, Result(ArrayRecord({"w": Array(np.arange(3))})), sealed=False)
    assert np.load(path)["w"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="name a file in a directory that exists"):
        server_app.write_model(tmp_path / "no/model", Result(), sealed=False)
