"""Read a node config as Flower does, and refuse one that Flower would read in part."""

from __future__ import annotations

import re

from flhe.errors import ConfigError

_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")
"""flwr 1.41's pattern for the text; it silently drops anything between the matches."""


def parse(text: str) -> dict[str, object]:
    """Read what `flower-supernode --node-config` takes: `key=value` pairs, or the path of a TOML file.

    Raises ConfigError: it cannot be read (values are bool, int, float, or text in quotes), or
    Flower drops a part of it: with a space beside the `=`, for instance, a limit would not be
    enforced.
    """
    read = as_flower_reads(text)
    if text.endswith(".toml"):
        return read
    dropped = _PAIR.sub(" ", text).split()
    # Flower treats text after a # outside quotes as a comment.
    dropped += [f"{k}={v}" for k, v in _PAIR.findall(text) if "#" in k + v * (v[0] not in "'\"")]
    if dropped:
        raise ConfigError(
            f"--node-config: flower-supernode would silently drop {dropped[0][:40]!r}; write "
            "key=value, with no space beside the =, and spaces between pairs"
        )
    return read


def as_flower_reads(text: str) -> dict[str, object]:
    """Read it as Flower does, dropped parts included; ConfigError if Flower refuses it too."""
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text]))
    except Exception as error:  # click's, tomli's and the file system's own
        raise ConfigError(
            f"--node-config cannot be read: {type(error).__name__}; write key=value pairs with spaces "
            "between them, and text in quotes, as flower-supernode takes them, or name a .toml file"
        ) from None
