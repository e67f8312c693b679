"""The server app: it fails when it should, and writes what it got."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies.options import CODING
from flhe.strategies.plain import MeteredFedAvg
from flhe.strategies.report import Reporter
from flhe.training.optimizer import Optimizer
from flhe.training.terms import Terms
from flhe_app import server_app
from flhe_app.settings import SERVER_OPTIMIZERS, Settings
from flhe_app.tasks import task_named
from tests.apps.federation import Idle, serve, server_context
from tests.provision.site import good


@pytest.mark.parametrize("where", ["report.jsonl", "nowhere/report.jsonl"])
def test_a_failure_is_raised_and_reported_where_that_is_possible(
    where: str, tmp_path: pathlib.Path
) -> None:
    report = tmp_path / where
    with pytest.raises(ConfigError, match="task='mnist' is unknown"):
        server_app.app(Idle(1), server_context({"task": "mnist", "report": str(report)}))
    assert report.exists() == (where == "report.jsonl")
    if report.exists():
        event = json.loads(report.read_text())
        assert event["event"] == "failed"
        assert event["error"].startswith("ConfigError: task='mnist'")


def test_missing_nodes_end_the_run() -> None:
    settings = Settings(scheme="plain", nodes=3, join_timeout=0.1)
    with pytest.raises(QuorumError, match=r"1 of nodes=3 connected .*num-supernodes=3"):
        server_app.run(Idle(1), settings, Reporter(None))


def test_loops_are_compiled_while_nodes_join(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(server_app, "warm", lambda _terms, cohort: warmed.append(cohort))
    with pytest.raises(QuorumError, match="connected"):
        server_app.run(Idle(1), Settings(join_timeout=0.01), Reporter(None))
    assert warmed == [5]


def made(**config: Any) -> Any:
    """The strategy of a run config."""
    return server_app.make_strategy(Settings(**config), task_named("digits"), Reporter(None))


def terms(scheme: Scheme | None = None, **said: Any) -> Terms:
    """What five nodes with an equal share of the digits agree on, but for what is said."""
    coding = {name: said.pop(name) for name in CODING if name in said}
    return Terms(scheme or Flashe(), update_codec(**{"max_examples": 288, **coding}), **said)


FEDSGD = {"algorithm": "fedsgd"}
STEPS = {"client_lr": 0.5, "batch_size": 20, "clip": 0.25}
SPARSE: dict[str, Any] = {"top_k": 0.1, "warmup": 3, "permute": False}
PART = {"select": 0.25, "rule": "random", "noise": 0.5}
SELECTED: dict[str, Any] = {
    "select": Select(0.25, "random"),
    "noise": Laplace(0.5),
    "weighted": False,
}
ADAM = Optimizer("adam")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, terms()),
        (
            {"scheme": "flashe masking=adaptive", **SPARSE, "clipping": "exchange"},
            terms(Flashe("adaptive"), **SPARSE, clip="exchange"),
        ),
        ({"scheme": "esafl keys=joint", "bits": 20}, terms(Esafl(keys="joint"), bits=20)),
        (
            {**FEDSGD, **STEPS},  # weighed by a batch
            terms(optimizer=Optimizer("adam", lr=0.5), clip=0.25, max_examples=20),
        ),
        ({**FEDSGD, "batch_size": 10_000}, terms(optimizer=ADAM)),  # than a node has examples
        ({**FEDSGD, "max_examples": 99}, terms(optimizer=ADAM, max_examples=99)),
        (
            {"scheme": "sash unmask=clients", **FEDSGD},
            terms(Sash(unmask="clients"), optimizer=ADAM, bits=0, max_examples=32),
        ),
        ({"scheme": "batchcrypt", **PART}, terms(BatchCrypt(), **SELECTED)),
        ({"select": 0.25, "rest": "drop"}, terms(select=Select(0.25, rest="drop"))),
        ({"server_optimizer": "fedadam"}, terms(optimizer=Optimizer("fedadam"))),
        (
            {"rule": "layers:fc", "noise": 1.0, "noise_scope": "all"},
            terms(select=Select(1.0, "layers:fc"), noise=Laplace(1.0, "all"), weighted=False),
        ),
        (
            {**FEDSGD, "client_optimizer": "rmsprop", "client_momentum": 0.5, "client_decay": 1e-6},
            terms(optimizer=Optimizer("rmsprop", momentum=0.5, decay=1e-6), max_examples=32),
        ),
        ({"fair_q": 1.0}, terms(bits=24, max_examples=1 << 20)),
        ({"fair_q": 1.0, "bits": 30}, terms(bits=30, max_examples=1 << 20)),
        ({"scheme": "sash", "fair_q": 1.0}, terms(Sash(), bits=0, max_examples=1 << 20)),
        ({"partition": "dirichlet"}, terms(max_examples=1437)),
    ],
    ids=str,
)
def test_terms_are_as_the_run_config_says(config: dict[str, Any], expected: Terms) -> None:
    assert made(**config).terms == expected


def test_the_strategy_keeps_state_as_the_run_config_says(tmp_path: pathlib.Path) -> None:
    strategy = made(state_dir=str(tmp_path), rekey_every=4)
    how = strategy.settings
    assert (how.state_dir, how.rekey_every) == (str(tmp_path), 4)
    assert made().settings.state_dir is None


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_plain_runs_take_flowers_own_optimizers(name: str) -> None:
    eta = {} if name == "fedavg" else {"server_eta": 0.5}
    plain = made(scheme="plain", nodes=4, server_optimizer=name, **eta)
    assert isinstance(plain, MeteredFedAvg)
    assert type(plain).__name__.lower() == f"metered{name}"
    assert plain.min_available_nodes == plain.min_train_nodes == 4
    has = vars(plain)
    rates = [has[rate] for rate in ("eta", "server_learning_rate") if rate in has]
    assert rates == [0.5] * len(eta)


@pytest.mark.parametrize(
    ("config", "resume"),
    [({"scheme": "plain"}, None), ({}, None), ({"state_dir": "s", "resume": True}, True)],
    ids=str,
)
def test_what_the_strategy_is_started_with(
    config: dict[str, Any], resume: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    class Strategy:
        def start(self, **how: Any) -> Result:
            seen.append(how)
            return Result()

    monkeypatch.setattr(server_app, "make_strategy", lambda *_: Strategy())
    monkeypatch.setattr(server_app, "wait_for_nodes", lambda *_: None)
    server_app.run(Idle(1), Settings(**config), Reporter(None))
    assert seen[0].get("resume") is resume
    assert seen[0]["initial_arrays"] is not None


def test_never_writes_arrays_in_clear_for_a_sealed_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.flhe"
    for name in ("0000", "w"):
        clear = ArrayRecord({name: Array(np.zeros(3, np.float32))})
        with pytest.raises(ProtocolError, match="the model was not written"):
            server_app.write_model(Settings(sealed_model=str(path)), Result(arrays=clear))
    assert not path.exists()


def test_a_run_says_what_it_showed(tmp_path: pathlib.Path) -> None:
    """The report that the command line reads has the warning about what is in clear."""
    pytest.importorskip("tenseal")
    part: dict[str, Any] = {"select": 0.5, "rule": "random", "noise": 0.01}
    paths = {"report": str(tmp_path / "report"), "sealed_model": str(tmp_path / "model")}
    settings = Settings("fedml-he", nodes=3, num_rounds=1, **part, **paths)
    serve(settings, tmp_path, {"flhe-min-select": 0.5, "flhe-select-rules": "random"})
    events = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "warning"]
    assert "not private in any accounted sense" in told["text"]


# --- the final model: saved wherever the run was started from, and the log says where ---


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The user's data; the server app itself runs in a directory that is gone."""
    data, gone = tmp_path / "data", tmp_path / "gone"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.delenv("FLHE_HOME", raising=False)
    gone.mkdir()
    monkeypatch.chdir(gone)
    return data / "flhe"


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("flashe", "run-7.flhe"), ("sash", "run-7.npz")],
)
def test_a_run_of_flower_saves_its_model_and_says_where(
    scheme: str,
    name: str,
    home: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(scheme, nodes=3, num_rounds=1)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(settings, home / "nodes", {"flhe-server-reads": scheme == "sash"})
    model = home / "models" / name
    assert model.stat().st_mode & 0o777 == 0o600
    assert model.parent.stat().st_mode & 0o777 == 0o700
    said = [record.getMessage() for record in caplog.records]
    if model.suffix == ".npz":
        assert f"Model: {model}" in said
        assert len(np.load(model).files) > 1
        return
    assert f"Sealed model: {model}" in said
    (line,) = [line for line in said if line.startswith("Open it: ")]
    command = line.removeprefix("Open it: flhe ").partition(" (")[0].split()
    assert command[:2] == ["open", str(model)]
    good(*command)
    assert len(np.load("model.npz").files) > 1


def test_what_the_run_config_names_is_absolute(home: pathlib.Path) -> None:
    assert server_app.placed(Settings(sealed_model="m"), 7).sealed_model == str(
        pathlib.Path.cwd() / "m"
    )
    named = server_app.placed(Settings(sealed_model=f"{home.parent}.flhe"), 7)
    assert named.sealed_model == f"{home.parent}.flhe"
    assert not home.exists()


def test_a_place_that_cannot_be_written_is_refused_before_training(
    home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for bad in ("no/such/model", str(tmp_path)):
        with pytest.raises(ConfigError, match="name a file in a directory that exists"):
            server_app.placed(Settings(sealed_model=bad), 7)
    home.parent.touch()
    with pytest.raises(ConfigError, match="set sealed-model to a file in a directory of yours"):
        server_app.placed(Settings(), 7)
