"""A node's config as Flower reads it, and whether that is all that was written."""

from __future__ import annotations

import re

from flhe.errors import ConfigError

_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")
"""What flwr 1.41 looks for in the text; whatever is between the finds, it drops without a word."""


def parse(text: str) -> dict[str, object]:
    """Read what `flower-supernode --node-config` takes: `key=value` pairs, or the path of a TOML file.

    Raises ConfigError: it cannot be read; values are bool, int, float, or text in quotes. Or Flower
    drops a part of it: with a space beside the `=`, for instance, a limit would limit nothing.
    """
    read = as_flower_reads(text)
    if text.endswith(".toml"):
        return read
    dropped = _PAIR.sub(" ", text).split()
    # What follows a # outside quotes is a comment, in what Flower makes of the pairs.
    dropped += [f"{k}={v}" for k, v in _PAIR.findall(text) if "#" in k + v * (v[0] not in "'\"")]
    if dropped:
        raise ConfigError(
            f"--node-config: flower-supernode would drop {dropped[0][:40]!r} without a word; write "
            "key=value, with no space beside the =, and spaces between pairs"
        )
    return read


def as_flower_reads(text: str) -> dict[str, object]:
    """Read it as Flower does, whatever that drops; ConfigError where Flower refuses it, too."""
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text]))
    except Exception as error:  # click's, tomli's and the file system's own
        raise ConfigError(
            f"--node-config cannot be read: {type(error).__name__}; write key=value pairs with spaces "
            "between them, and text in quotes, as flower-supernode takes them, or name a .toml file"
        ) from None
