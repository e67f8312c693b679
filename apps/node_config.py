"""A node's config as Flower reads it."""

from __future__ import annotations

from flhe.errors import ConfigError


def parse(text: str) -> dict[str, object]:
    """Read what `flower-supernode --node-config` takes: `key=value` pairs, or the path of a TOML file.

    Raises
    ------
    ConfigError
        It cannot be read; values are bool, int, float, or text in quotes.
    """
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text]))
    except Exception as error:  # click's, tomli's and the file system's own
        raise ConfigError(
            f"--node-config cannot be read: {type(error).__name__}; write key=value pairs with spaces "
            "between them, and text in quotes, as flower-supernode takes them, or name a .toml file"
        ) from None
