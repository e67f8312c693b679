"""The run config: what it takes, what it refuses, and that the app's own file agrees with it."""

from __future__ import annotations

import math
import pathlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any

import pytest

import flhe_app
from flhe.coding.base import Mechanism
from flhe.errors import ConfigError
from flhe.training.optimizer import RULES
from flhe_app import settings
from flhe_app.option import about, key_of
from flhe_app.settings import Settings
from flhe_app.superlink import pairs
from flhe_app.tasks import task_named
from flhe_app.tasks.fair import Fair

APP = tomllib.loads((pathlib.Path(flhe_app.__file__).parent / "pyproject.toml").read_text())


def test_pyproject_lists_every_setting_with_its_default() -> None:
    config = APP["tool"]["flwr"]["app"]["config"]
    assert set(config) == {key_of(field.name) for field in fields(Settings)}
    assert Settings.from_config(config) == Settings()
    assert "federations" not in APP["tool"]["flwr"]  # Flower would rewrite the installed file


def test_names_are_those_of_the_library() -> None:
    assert set(settings.CLIENT_OPTIMIZERS) == {n for n, rule in RULES.items() if rule.gradients}
    assert set(settings.SERVER_OPTIMIZERS) == RULES.keys() - set(settings.CLIENT_OPTIMIZERS)


@pytest.mark.parametrize(
    "config",
    [
        {"data_dir": 'a "b" é\\c', "clip": 0.25, "seed": 7, "download": True},
        {"state_dir": "/s", "resume": True, "rekey_every": 2},
        {"scheme": "fedml-he ring=8192", "select": 0.1, "noise": 0.01},
        {"scheme": "esafl keys=joint", "kill": 2, "nodes": 4},
        {"scheme": "esafl ring=rns-8192 keys=joint", "drops": 2, "clipping": "exchange"},
        {"scheme": "esafl", "nodes": 6, "fraction_train": 0.8, "kill": 2},
    ],
    ids=str,
)
def test_toml_round_trips(config: dict[str, Any]) -> None:
    written = pairs(Settings(**config).to_config(), "\n")
    assert Settings.from_config(tomllib.loads(written)) == Settings(**config)


def test_foreign_keys_are_left_alone_and_integers_pass_for_floats() -> None:
    assert Settings.from_config({"mine": 1, "clip": 2}) == Settings(clip=2.0)


def out_of_range() -> Iterator[tuple[str, Any, str]]:
    """Key, value, and what is said of it, for each bound that a setting declares."""
    for field in fields(Settings):
        key, said, kind = key_of(field.name), about(field), type(field.default)
        if said.known:
            yield key, "rot13", f"is unknown; use one of {', '.join(said.known)}"
        if kind in (int, float):
            bound = "more than 0" if said.positive else f"{said.least:g} or more"
            yield key, kind(said.least - 1), f"must be .*{bound}"
        if said.most < math.inf:
            yield key, kind(said.most + 1), re.escape(f"at most {said.most:g}")
        if said.positive:
            yield key, kind(0), "must be .*more than 0"
        if kind is float:
            yield from ((key, value, "must be finite") for value in (math.nan, math.inf))


@pytest.mark.parametrize(("key", "value", "says"), list(out_of_range()), ids=str)
def test_values_out_of_range(key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={re.escape(repr(value))}.*{says}"):
        Settings.from_config({key: value})


BESIDE: dict[Any, Any] = {
    **{"fedavg": "fedsgd", "fedsgd": "fedavg", "fedavgm": "fedavg", "dirichlet": "iid"},
    "fixed": "history",
    0.0: 1.5,
}
"""A value -> another one of the same setting."""


@pytest.mark.parametrize(
    ("field", "only"),
    [
        pytest.param(f, only, id=f"{f.name}-{only[0]}")
        for f in fields(Settings)
        for only in about(f).only
    ],
)
def test_what_would_do_nothing(field: Field[Any], only: tuple[str, Any]) -> None:
    key, said = key_of(field.name), about(field)
    other, needed = key_of(only[0]), only[1]
    given = {key_of(name): v for name, v in said.only if isinstance(v, str)}
    free = {bool: not field.default, float: 0.25, int: 2048, str: "x"}[type(field.default)]
    value = next((known for known in said.known if known != field.default), free)
    if other == "encrypted":
        beside = {"scheme": "plain"}
        says = f"^{key}={value!r} has no effect where nothing is encrypted: leave it out"
    elif needed is None:
        beside, says = {}, f"^{key}={value!r} has no effect without {other}: "
    else:
        beside = {other: (foreign := BESIDE[needed])}
        says = f"^{key}={value!r} has no effect with {other}={foreign!r}: .*{other}={needed!r}"
    with pytest.raises(ConfigError, match=says):
        Settings.from_config({key: value, **given, **beside})


ESAFL: dict[str, Any] = {"scheme": "esafl keys=joint"}
ROUND_KEYS: dict[str, Any] = {"scheme": "esafl"}
FEDSGD: dict[str, Any] = {"algorithm": "fedsgd"}
NOISE = {"noise": 0.1, "noise-scope": "all"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"nodes": "5"}, "nodes='5': must be int, got str"),
        ({"nodes": True}, "must be int, got bool"),
        ({"warmup": 1.5}, "warmup=1.5: must be int"),
        ({"permute": "yes"}, "permute='yes': must be bool"),
        # A scheme and its parameters
        ({"scheme": "rot13"}, "scheme 'rot13': there are flashe, sash"),
        ({"scheme": "plain masking=single"}, "scheme"),
        ({"scheme": "fedml-he", "top-k": 0.1}, "sparse updates with FedML-HE: .*leave top-k out"),
        ({"nodes": 2}, "a sum of two shows each member the other's update; use 3 nodes or more"),
        ({"nodes": 5, "fraction-train": 0.4}, "use 3 nodes or more"),
        # Selection and noise
        ({"select": 1.5}, "select=1.5: Select"),
        ({"rule": "random"}, "leave them out, or lower it"),
        ({"rest": "drop"}, "leave them out, or lower it"),
        ({"select": 0.5, "task": "gru"}, "select=0.5 with task='gru': .*text has none; use rule="),
        ({"select": 0.5, "top-k": 0.1}, "select with top-k"),
        (
            {"scheme": "sash", "select": 0.5},
            "select where the server reads sums.* let the clients read them, or leave select out",
        ),
        ({"select": 0.5, "fair-q": 1.0}, "fair-q with select"),
        ({"noise": 0.1}, "noise of scope .clear., and nothing travels in clear"),
        (
            {**NOISE, "clipping": "history"},
            "clipping='history', noise=0.1, .*: noise with fitted clipping.* use clipping='fixed'",
        ),
        ({**NOISE, "top-k": 0.1}, "noise with top-k"),
        ({"noise-multiplier": 1.5, "select": 0.5}, "differential privacy"),
        ({"noise-multiplier": 1.5, **NOISE}, "differential privacy"),
        # SASH
        (
            {"scheme": "sash", "clipping": "history"},
            "scheme='sash', clipping='history': fitted .* use clipping='fixed'",
        ),
        ({"scheme": "sash", "nodes": 10, "bits": 25}, "bits=25.: .*has room for 2 to 24"),
        (
            {"scheme": "sash", "nodes": 50, "fair-q": 1.0},
            "need 24; use fewer nodes, or another scheme",
        ),
        ({"scheme": "sash", **FEDSGD}, "scheme='sash', algorithm='fedsgd': .*sums to the clients"),
        # Dropouts
        ({"nodes": 5, "drops": 3}, "drops=3, kill=0: .* left with 2 updates, .* needs 3; use more"),
        ({"nodes": 6, "drops": 3, "kill": 1}, "kill=1: .* left with 2 updates, .* needs 3"),
        (
            {"scheme": "sash", "nodes": 8, "drops": 2, "fraction-train": 0.75},
            "left with 4 .* needs 6",
        ),
        ({**ROUND_KEYS, "fraction-train": 0.6}, "fraction-train=0.6, drops=0.* with 3 .* needs 4"),
        ({"scheme": "plain", "nodes": 2, "drops": 2}, "with 0 updates, scheme='plain' needs 1"),
        ({"kill": 6}, "kill=6: the run has num-rounds=5; name one of those"),
        ({**ESAFL, "nodes": 3, "kill": 2}, "left with 2 updates, .* needs 3; use more"),
        # ESAFL
        ({**ESAFL, "bits": 33}, "scheme='esafl keys=joint', bits=33: .*bits must be 2 to 32"),
        (
            {**ROUND_KEYS, "clipping": "exchange"},
            "scheme='esafl', clipping='exchange': fitted .*fresh keys",
        ),
        # Optimizers and q-FedAvg
        ({"server-eta": 0.1}, "server-eta=0.1: .*fedavg has no eta"),
        ({"server-optimizer": "fedadam", "server-eta": 1e31}, "server-eta=1e.31.*1e-30 to 1e30"),
        ({"fair-q": 1.0, "max-examples": 288}, "max-examples=288 with fair-q=1.0: .*use 1024"),
        ({**FEDSGD, "client-momentum": 0.9}, "client-momentum=0.9: .*adam has no momentum"),
        ({**FEDSGD, "top-k": 0.1}, "algorithm='fedsgd', top-k=0.1: .* leave sparsification out"),
    ],
    ids=str,
)
def test_refuses(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_config(config)


def test_q_fedavg_takes_its_parameters_from_public_figures() -> None:
    assert Settings().fair is None
    settings = Settings(fair_q=0.5, clip=2.0)
    assert settings.fair == Fair(0.5, 20.0, 2.0, math.log(10), 1 << 20)
    settings = Settings(fair_q=0.5, fair_lipschitz=2.0, max_examples=5000, task="lstm")
    assert settings.fair == Fair(0.5, 2.0, 1.0, math.log(97), 5000)


RECORDS = Settings("flashe", algorithm="fedsgd", noise_multiplier=1.5, sampling=0.2)


def test_records_under_fedsgd_and_nodes_under_fedavg() -> None:
    assert RECORDS.codec(1).mechanism == Mechanism(1.5, 0.2)
    [noise] = RECORDS.codec(1).codecs
    assert noise.parameters()["divisor"] == (0.2 * task_named("digits").source.train_size).hex()
    nodes = replace(RECORDS, algorithm="fedavg", sampling=0.1, clip_norm=2.0)
    assert nodes.codec(1).mechanism == Mechanism(1.5, 1.0, of_members=True)
    assert nodes.codec(1).codecs[0].norm_bound == 2.0
    assert Settings().codec(100).mechanism is None
