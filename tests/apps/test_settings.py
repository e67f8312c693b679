"""The run config: what it takes, what it refuses, and that the app's own file agrees with it."""

from __future__ import annotations

import pathlib
import tomllib
from dataclasses import fields
from typing import Any

import pytest

import flhe.apps
from flhe.apps.settings import Settings
from flhe.errors import ConfigError

APP = tomllib.loads((pathlib.Path(flhe.apps.__file__).parent / "pyproject.toml").read_text())


def test_pyproject_lists_every_setting_with_its_default() -> None:
    config = APP["tool"]["flwr"]["app"]["config"]
    assert set(config) == {field.name.replace("_", "-") for field in fields(Settings)}
    assert Settings.from_config(config) == Settings()


def test_the_app_asks_for_no_dependencies() -> None:
    assert APP["project"]["dependencies"] == []  # Flower would install them on every run
    assert "federations" not in APP["tool"]["flwr"]  # Flower would rewrite the installed file


def test_toml_round_trips() -> None:
    settings = Settings(data_dir='a "b" é\\c', clip=0.25, seed=7, download=True)
    assert Settings.from_config(tomllib.loads(settings.to_toml())) == settings


def test_foreign_keys_are_left_alone_and_integers_pass_for_floats() -> None:
    assert Settings.from_config({"mine": 1, "clip": 2}) == Settings(clip=2.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scheme": "rot13"}, "unknown; use one of flashe, sash"),
        ({"scheme": "sash"}, "not built yet in this version"),
        ({"task": "mnist"}, "unknown; use one of digits"),
        ({"partition": "x"}, "iid, dirichlet"),
        ({"nodes": 2}, "use 3 nodes or more"),
        ({"nodes": 5, "fraction-train": 0.4}, "use 3 nodes or more"),
        ({"num-rounds": 0}, "num-rounds=0: must be 1 or more"),
        ({"seed": -1}, "seed=-1: must be 0 or more"),
        ({"clip": float("nan")}, "clip=nan: must be finite and positive"),
        ({"fraction-train": 1.5}, "more than 0 and at most 1"),
        ({"nodes": "5"}, "nodes='5': must be int, got str"),
        ({"nodes": True}, "must be int, got bool"),
    ],
    ids=str,
)
def test_refuses(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_config(config)


def test_two_plain_nodes_are_fine() -> None:
    assert Settings(scheme="plain", nodes=2).cohort == 2
