"""Values in a node's config (`flower-supernode --node-config`): read one by one, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from flhe.errors import ConfigError

Config = Mapping[str, object]


def text(config: Config, key: str) -> str:
    """A text; none is the empty one. ConfigError for anything else."""
    value = config.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be text, got {type(value).__name__}")
    return value


def flag(config: Config, key: str) -> bool:
    """True or false, which it is unless said. ConfigError for anything else."""
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {type(value).__name__}")
    return value


def count(config: Config, key: str) -> int:
    """A whole number from 0, which it is unless said. ConfigError for anything else."""
    value = config.get(key, 0)
    if type(value) is not int or value < 0:
        raise ConfigError(f"{key} must be a whole number, 0 or more")
    return value


def names(config: Config, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names, separated by commas, even if they are none; `default` where nothing is said."""
    if key not in config:
        return default
    return tuple(name.strip() for name in text(config, key).split(",") if name.strip())
