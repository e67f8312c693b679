"""The run config: what it takes, what it refuses, and that the app's own file agrees with it."""

from __future__ import annotations

import math
import pathlib
import tomllib
from dataclasses import fields
from typing import Any

import pytest

import flhe_app
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS
from flhe.training import client_optimizer, optimizer
from flhe.training.terms import BUILT
from flhe_app import settings
from flhe_app.settings import Settings
from flhe_app.tasks.fair import Fair

ESAFL: dict[str, Any] = {"scheme": "esafl"}
APP = tomllib.loads((pathlib.Path(flhe_app.__file__).parent / "pyproject.toml").read_text())


def test_pyproject_lists_every_setting_with_its_default() -> None:
    config = APP["tool"]["flwr"]["app"]["config"]
    assert set(config) == {field.name.replace("_", "-") for field in fields(Settings)}
    assert Settings.from_config(config) == Settings()


def test_names_are_those_of_the_library() -> None:
    assert settings.ENCRYPTED == BUILT
    assert set(settings.SERVER_OPTIMIZERS) == set(optimizer.DEFAULTS)
    assert set(settings.CLIENT_OPTIMIZERS) == set(client_optimizer.DEFAULTS)
    assert settings.KEY_BITS == DEFAULT_KEY_BITS


def test_the_app_asks_for_no_dependencies() -> None:
    assert APP["project"]["dependencies"] == []  # Flower would install them on every run
    assert "federations" not in APP["tool"]["flwr"]  # Flower would rewrite the installed file


def test_toml_round_trips() -> None:
    settings = Settings(data_dir='a "b" é\\c', clip=0.25, seed=7, download=True)
    assert Settings.from_config(tomllib.loads(settings.to_toml())) == settings
    resumed = Settings(state_dir="/s", resume=True, secret_initial=True, rekey_every=2)
    assert Settings.from_config(tomllib.loads(resumed.to_toml())) == resumed
    sparse = Settings(clipping="history", masking="adaptive", top_k=0.1, warmup=0, permute=False)
    assert Settings.from_config(tomllib.loads(sparse.to_toml())) == sparse
    lattice = Settings("esafl", ring="rns-8192", per_round_keys=True, kill=2)
    assert Settings.from_config(tomllib.loads(lattice.to_toml())) == lattice


def test_foreign_keys_are_left_alone_and_integers_pass_for_floats() -> None:
    assert Settings.from_config({"mine": 1, "clip": 2}) == Settings(clip=2.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scheme": "rot13"}, "unknown; use one of flashe, sash"),
        ({"scheme": "fedml-he", "top-k": 0.1}, "top-k=0.1 has no effect with scheme='fedml-he'"),
        ({"scheme": "fedml-he", "ckks-ring": "1024"}, "ckks-ring='1024' is unknown; use one of"),
        ({"ckks-ring": "8192"}, "ckks-ring='8192' has no effect with .*use scheme='fedml-he'"),
        ({"select": 0.0}, "select=0.0: .*above 0"),
        ({"select": 1.5}, "select=1.5: Select"),
        ({"select": 0.5, "rule": "all"}, "select=0.5, rule='all'"),
        ({"select": 0.5, "rule": "layers:fc"}, "leave ratio out"),
        ({"rule": "random"}, "leave them out, or lower it"),
        ({"rest": "drop"}, "leave them out, or lower it"),
        ({"select": 0.5, "rest": "keep"}, "rest='keep' is unknown; use one of clear, drop"),
        ({"select": 0.5, "top-k": 0.1}, "select with top-k"),
        ({"scheme": "plain", "select": 0.5}, "select=0.5 has no effect with scheme='plain'"),
        ({"scheme": "sash", "select": 0.5}, 'select with unmask="server"'),
        ({"select": 0.5, "fair-q": 1.0}, "fair-q with select"),
        ({"noise": -0.1}, "noise=-0.1"),
        ({"noise": 0.1}, "noise of scope .clear., and nothing travels in clear"),
        ({"noise-scope": "all"}, "noise-scope without noise"),
        ({"noise": 0.1, "noise-scope": "both"}, "use one of clear, all"),
        (
            {"scheme": "plain", "noise": 0.1, "noise-scope": "all"},
            "noise=0.1 has no effect with",
        ),
        (
            {"noise": 0.1, "noise-scope": "all", "clipping": "history"},
            "noise with clipping='history'",
        ),
        ({"noise": 0.1, "noise-scope": "all", "top-k": 0.1}, "noise with top-k"),
        ({"scheme": "sash", "top-k": 0.1}, "top-k=0.1 has no effect with scheme='sash'"),
        (
            {"scheme": "sash", "clipping": "history"},
            "clipping='history' with scheme 'sash': .*give clip",
        ),
        (
            {"scheme": "sash", "nodes": 10, "bits": 25},
            "bits=25.: .*has room for 2 to 24",
        ),
        ({"scheme": "sash", "nodes": 50, "fair-q": 1.0}, "use scheme='flashe'"),
        ({"scheme": "sash", "secret-initial": True}, "use unmask='clients'"),
        ({"scheme": "sash", "unmask": "nobody"}, "use one of server, clients"),
        ({"nodes": 4, "drops": 3}, "two must remain"),
        ({"drops": -1}, "drops=-1: must be 0 or more"),
        ({"nodes": 4, "drops": 2, "kill": 1}, "drops=2 of 4 nodes and one killed: two must remain"),
        ({"kill": -1}, "kill=-1: must be 0 or more"),
        ({"kill": 6}, "kill=6: the run has num-rounds=5; name one of those"),
        ({**ESAFL, "nodes": 3, "kill": 2}, "2 of 3 nodes left .* 3 must; use more nodes"),
        ({**ESAFL, "nodes": 5, "drops": 3}, "2 of 5 nodes left"),
        ({**ESAFL, "ring": "rns-2048"}, "ring='rns-2048' is unknown; use one of goldilocks-4096"),
        ({**ESAFL, "top-k": 0.1}, "top-k=0.1 has no effect with scheme='esafl'"),
        ({**ESAFL, "bits": 33}, "scheme='esafl': .*bits must be 2 to 32"),
        ({**ESAFL, "fraction-train": 0.6}, "fraction-train=0.6 .*use per-round-keys=true"),
        (
            {**ESAFL, "per-round-keys": True, "clipping": "exchange"},
            "clipping='exchange' with scheme 'esafl' and keys='round'",
        ),
        (
            {**ESAFL, "per-round-keys": True, "clipping": "history"},
            "clipping='history' with scheme",
        ),
        ({"per-round-keys": True}, "per-round-keys=True has no effect with .*use scheme='esafl'"),
        (
            {"scheme": "plain", "ring": "rns-8192"},
            "ring='rns-8192' has no effect with scheme='plain'",
        ),
        ({"task": "mnist"}, "unknown; use one of digits"),
        ({"partition": "x"}, "iid, dirichlet"),
        ({"nodes": 2}, "use 3 nodes or more"),
        ({"nodes": 5, "fraction-train": 0.4}, "use 3 nodes or more"),
        ({"num-rounds": 0}, "num-rounds=0: must be 1 or more"),
        ({"seed": -1}, "seed=-1: must be 0 or more"),
        ({"clip": float("nan")}, "clip=nan: must be finite and more than 0"),
        ({"fraction-train": 1.5}, "more than 0 and at most 1"),
        ({"server-optimizer": "sgd"}, "server-optimizer='sgd' is unknown; use one of fedavg"),
        ({"server-eta": 0.1}, "server-eta=0.1: .*fedavg has no eta"),
        ({"server-eta": -1.0}, "server-eta=-1.0: must be finite and 0 or more"),
        (
            {"server-optimizer": "fedavgm", "server-momentum": 1.0},
            "server-momentum=1.0: .*less than",
        ),
        ({"server-optimizer": "fedadam", "server-eta": 1e31}, "eta=1e.31.: must lie from"),
        ({"proximal-mu": -0.1}, "proximal-mu=-0.1: must be finite and 0 or more"),
        ({"proximal-mu": float("inf")}, "proximal-mu=inf"),
        ({"fair-q": float("nan")}, "fair-q=nan"),
        ({"fair-q": 21.0}, "fair-q=21.0: .*at most 20"),
        ({"fair-q": 1.0, "max-examples": 288}, "max-examples=288 with fair-q=1.0: .*use 1024"),
        ({"rekey-every": -1}, "rekey-every=-1: must be 0 or more"),
        ({"resume": True}, "resume=true needs state-dir"),
        (
            {"scheme": "plain", "resume": True, "state-dir": "x"},
            "has no effect with scheme='plain'",
        ),
        ({"scheme": "plain", "state-dir": "x"}, "state-dir='x' has no effect with scheme='plain'"),
        (
            {"scheme": "plain", "secret-initial": True},
            "secret-initial=True has no effect",
        ),
        ({"clipping": "median"}, "clipping='median' is unknown; use one of fixed, history"),
        ({"masking": "triple"}, "masking='triple' is unknown; use one of double, single"),
        ({"top-k": -0.1}, "top-k=-0.1: must be finite and 0 or more and at most 1"),
        ({"top-k": 1.5}, "top-k=1.5: must be finite"),
        ({"top-k": float("nan")}, "top-k=nan: must be finite"),
        ({"top-k": float("inf")}, "top-k=inf: must be finite"),
        ({"scheme": "plain", "top-k": 0.1}, "top-k=0.1 has no effect with scheme='plain'"),
        ({"warmup": -1}, "warmup=-1: must be 0 or more"),
        ({"warmup": 1.5}, "warmup=1.5: must be int"),
        ({"permute": "yes"}, "permute='yes': must be bool"),
        ({"nodes": "5"}, "nodes='5': must be int, got str"),
        ({"nodes": True}, "must be int, got bool"),
    ],
    ids=str,
)
def test_refuses(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_config(config)


def test_q_fedavg_takes_its_parameters_from_public_figures() -> None:
    assert Settings().fair is None
    assert Settings().value_bits == 16
    settings = Settings(fair_q=0.5, clip=2.0)
    assert settings.fair == Fair(0.5, 20.0, 2.0, math.log(10), 1 << 20)
    assert settings.value_bits == 24
    assert Settings(fair_q=0.5, bits=30).value_bits == 30
    settings = Settings(fair_q=0.5, fair_lipschitz=2.0, max_examples=5000)
    assert settings.fair == Fair(0.5, 2.0, 1.0, math.log(10), 5000)


def test_what_esafl_can_do() -> None:
    for config in (
        {"kill": 2, "nodes": 4},
        {"kill": 2, "nodes": 3, "per_round_keys": True},
        {"drops": 2, "clipping": "exchange"},
        {"fraction_train": 0.6, "per_round_keys": True},
        {"bits": 32, "ring": "paper-32768"},
    ):
        assert Settings(**ESAFL, **config).encrypted


def test_what_is_selected() -> None:
    assert Settings().selects == Select()
    assert (Settings().weighted, Settings().total_rounds, Settings().laplace) == (True, 5, None)
    part = Settings("fedml-he", select=0.1, noise=0.01, ckks_ring="8192")
    assert part.selects == Select(0.1)
    assert part.laplace == Laplace(0.01)
    assert (part.weighted, part.total_rounds) == (False, 6)  # a round for the map
    assert Settings.from_config(tomllib.loads(part.to_toml())) == part
    assert Settings(select=0.1, rest="drop").weighted
    layers = Settings(rule="layers:fc", noise=1.0, noise_scope="all")
    assert (layers.weighted, layers.total_rounds) == (False, 5)


def test_bits_are_what_the_scheme_makes_of_zero() -> None:
    assert Settings().value_bits == 16
    assert Settings(bits=20).value_bits == 20
    assert Settings(fair_q=1.0).value_bits == 24
    assert Settings(scheme="sash").value_bits == 0
    assert Settings(scheme="sash", fair_q=1.0).value_bits == 0
    assert Settings(scheme="sash", bits=12).value_bits == 12
    assert Settings(scheme="esafl").value_bits == 16
