"""The app's run config, read and checked once: on the server, on a client, and by `flhe run`.

Imports neither flwr nor torch, so that a wrong option is refused before anything starts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flhe.errors import ConfigError

SCHEMES = ("flashe", "sash", "batchcrypt", "esafl", "fedml-he", "plain")
"""Every name that `scheme` may take."""

BUILT = ("flashe", "plain")
"""The schemes of this version."""

TASKS = ("digits", "cifar10", "fashion-mnist")
PARTITIONS = ("iid", "dirichlet")

MIN_ENCRYPTED_NODES = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the app. Field `local_epochs` is the key `local-epochs`, and so on.

    Parameters
    ----------
    scheme, task, partition : str
        One of SCHEMES, TASKS and PARTITIONS.
    nodes : int
        Nodes that take part; at least 3 when encrypted.
    clip : float
        Largest change of one weight in one round; encrypted updates are clipped to it.
    max_examples : int
        Most examples that one node may count when encrypted; 0 lets the task decide.
    """

    scheme: str = "flashe"
    task: str = "digits"
    num_rounds: int = 5
    seed: int = 0
    nodes: int = 5
    join_timeout: float = 60.0
    fraction_train: float = 1.0
    round_timeout: float = 600.0
    partition: str = "iid"
    dirichlet_alpha: float = 0.5
    local_epochs: int = 5
    learning_rate: float = 0.05
    batch_size: int = 32
    device: str = "cpu"
    bits: int = 16
    clip: float = 1.0
    max_examples: int = 0
    data_dir: str = ""
    download: bool = False
    report: str = ""
    sealed_model: str = ""

    def __post_init__(self) -> None:
        _one_of("scheme", self.scheme, SCHEMES)
        if self.scheme not in BUILT:
            raise ConfigError(
                f"scheme={self.scheme!r} is not built yet in this version; use {' or '.join(BUILT)}"
            )
        _one_of("task", self.task, TASKS)
        _one_of("partition", self.partition, PARTITIONS)
        for name in ("num_rounds", "nodes", "local_epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{_key(name)}={getattr(self, name)}: must be 1 or more")
        for name in ("seed", "max_examples"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{_key(name)}={getattr(self, name)}: must be 0 or more")
        for name in ("join_timeout", "round_timeout", "dirichlet_alpha", "learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{_key(name)}={value}: must be finite and positive")
        if not 0 < self.fraction_train <= 1:
            raise ConfigError(
                f"fraction-train={self.fraction_train}: must be more than 0 and at most 1"
            )
        if self.encrypted and self.cohort < MIN_ENCRYPTED_NODES:
            raise ConfigError(
                f"scheme={self.scheme!r} with {self.cohort} node(s) a round: a sum of two shows "
                f"each member the other's update; use {MIN_ENCRYPTED_NODES} nodes or more, "
                'or scheme="plain"'
            )

    @property
    def encrypted(self) -> bool:
        """Whether the server sees ciphertext only."""
        return self.scheme != "plain"

    @property
    def cohort(self) -> int:
        """Nodes that train in one round."""
        return max(1, round(self.nodes * self.fraction_train))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Read a Flower run config; keys that are not the app's own are left alone."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            if _key(field.name) in config:
                found[field.name] = _typed(field.name, field.default, config[_key(field.name)])
        return cls(**found)

    def to_toml(self) -> str:
        """Write every setting as the TOML that `flwr run --run-config FILE.toml` reads."""
        lines = (
            f"{_key(f.name)} = {json.dumps(getattr(self, f.name), ensure_ascii=False)}"
            for f in fields(self)
        )
        return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name.replace("_", "-")


def _typed(name: str, default: object, value: object) -> object:
    """Return `value` in the type of `default`, or refuse it."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ConfigError(
            f"{_key(name)}={value!r}: must be {type(default).__name__}, got {type(value).__name__}"
        )
    return value


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
