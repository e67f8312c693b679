"""Packages that only some commands need, and the extra of flhe that installs each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from flhe.errors import ConfigError

EXTRA_OF = {
    "datasets": "apps",
    "flwr_datasets": "apps",
    "matplotlib": "apps",
    "psutil": "apps",
    "ray": "apps",
    "sklearn": "apps",
    "torch": "apps",
    "torchvision": "apps",
    "tenseal": "ckks",
    "zstandard": "ckks",
    "gmpy2": "paillier",
    "phe": "peers",
    "tensorboardX": "tensorboard",
}
"""Extra by import name."""


def require(what: str, extra: str, modules: Sequence[str]) -> None:
    """Refuse to start `what` without the modules that it needs from one extra.

    Parameters
    ----------
    what : str
        The command or option, as the user types it.
    extra : str
        The extra that installs them.
    modules : sequence of str
        Import names.

    Raises
    ------
    ConfigError
        Some are not installed; the message names them, and how to install them.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ConfigError(
            f"{what} needs the [{extra}] extra, missing: {', '.join(missing)}; "
            f"install it: {install_hint(extra)}"
        )


def explain(error: ModuleNotFoundError, what: str) -> str:
    """Return how to mend an import that failed in `what`; "" if no extra installs the module."""
    module = (error.name or "").partition(".")[0]
    if (extra := EXTRA_OF.get(module)) is None:
        return ""
    return f"{what} needs {module}, which is not installed; install it: {install_hint(extra)}"


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'flhe[{extra}]'"
