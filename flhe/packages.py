"""Optional packages: requirements of schemes and commands, and their install commands."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Literal

from flhe.errors import ConfigError, PackageError, logger

Role = Literal["node", "server"]


EXTRA_OF = {
    "datasets": "apps",
    "flwr_datasets": "apps",
    "matplotlib": "apps",
    "psutil": "apps",
    "ray": "apps",
    "sklearn": "apps",
    "torch": "torch",
    "torchvision": "apps",
    "tenseal": "ckks",
    "zstandard": "ckks",
    "gmpy2": "paillier",
    "dp_accounting": "privacy",
    "opacus": "peers",
    "phe": "peers",
    "tensorboardX": "tensorboard",
}
"""Extra by import name."""


NEWEST_FLOWER = "1.42"
"""The newest minor release of Flower that every test has run on; `noxfile.py` has all of them."""


def untested_flower() -> tuple[str, str] | None:
    """Return what is wrong and its mend where the installed Flower is newer than those; else None."""
    installed = metadata.version("flwr")
    if _minor(installed) <= _minor(NEWEST_FLOWER):
        return None
    says = f"flwr {installed} is newer than {NEWEST_FLOWER}, the newest that flhe was tested with"
    return says, f"if a run fails, try it with pip install 'flwr~={NEWEST_FLOWER}.0'"


@functools.cache
def warn_untested_flower() -> None:
    """Log it, once a process."""
    if found := untested_flower():
        logger.warning("%s: %s", *found)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@dataclass(frozen=True, slots=True)
class Needs:
    """Packages that a node and the server need for a scheme beyond flhe's own, by import name."""

    node: tuple[str, ...] = ()
    server: tuple[str, ...] = ()

    def missing(self, role: Role = "node") -> tuple[str, ...]:
        """Return a role's packages that are not installed, without importing any."""
        return tuple(name for name in getattr(self, role) if find_spec(name) is None)

    def check(self, whose: str, role: Role = "node") -> None:
        """Import the packages for `whose` sake; PackageError if one is missing or does not load."""
        for name in getattr(self, role):
            try:
                import_module(name)
            except ImportError:
                raise absent(name, whose) from None


def absent(package: str, whose: str = "this") -> PackageError:
    """Return the error for a missing package that `whose` scheme needs."""
    return PackageError(
        f"{whose} needs {package}, which {sys.prefix} does not have: {how_to(package)}"
    )


def how_to(package: str) -> str:
    """Return the install command for a package, by its extra if it has one."""
    extra = EXTRA_OF.get(package)
    if extra is None:
        return f"install {package} into the environment of flhe"
    return f"install the [{extra}] extra: {install_hint(extra)}"


def require(what: str, extra: str, modules: Sequence[str]) -> None:
    """Refuse to start `what`, a command as typed, without the modules of one extra.

    ConfigError names the missing modules and the install command.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ConfigError(
            f"{what} needs the [{extra}] extra, missing: {', '.join(missing)}; "
            f"install it: {install_hint(extra)}"
        )


def explain(error: ModuleNotFoundError, what: str) -> str:
    """Return the remedy for an import that failed in `what`; "" if no extra installs the module."""
    module = (error.name or "").partition(".")[0]
    if (extra := EXTRA_OF.get(module)) is None:
        return ""
    return f"{what} needs {module}, which is not installed; install it: {install_hint(extra)}"


def install_hint(extra: str, *only: str) -> str:
    """Return the command that installs an extra of flhe, quoted for a shell.

    It names the extra's requirements, not flhe: on the package index, flhe's name is another
    project's. `only` are distributions, if not all of the extra is needed.
    """
    found = requirements(extra)
    found = [r for r in found if not only or re.split(r"[^A-Za-z0-9._-]", r)[0] in only]
    if not found:  # flhe is on the path but not installed
        return f"install flhe again with its [{extra}] extra, as docs/install.md says"
    # uv's environments have no pip: a bare `pip` would be another environment's.
    command = "pip install" if find_spec("pip") else "uv pip install"
    return f"{command} {shlex.join(found)}"


def requirements(extra: str) -> list[str]:
    """Return an extra's requirements, from the metadata of the installed flhe."""
    try:
        listed = metadata.requires("flhe") or []
    except metadata.PackageNotFoundError:
        return []
    pattern = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    parts = (line.partition(";") for line in listed)
    return [needed.strip() for needed, _, marker in parts if pattern.search(marker)]
