"""Checks of the machine: its clock, and its packages."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from flhe.packages import how_to, untested_flower
from flhe.provision.checks import Check, Checks
from flhe.schemes.registry import SCHEMES

_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_TIMEX = 512  # more bytes than any `struct timex` has
_NEEDED = ("flwr", "cryptography", "numba")


def check_clock(roster: Path | None, now: float | None = None) -> Check:
    """Check that the clock is plausible: certificates and logs depend on it."""
    at = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    mend = "set the clock, and keep it right: systemctl enable --now systemd-timesyncd, or chrony"
    if roster is not None and roster.exists() and at < roster.stat().st_mtime - 1:
        return Check("clock", "fail", f"{shown} is before the roster was written", mend)
    state = _kernel_state()
    if state < 0:
        return Check("clock", "ok", f"{shown}; the system does not say whether it is synchronised")
    if state == _UNSYNCHRONISED:
        return Check("clock", "warn", f"{shown}, and nothing keeps it synchronised", mend)
    return Check("clock", "ok", f"{shown}, synchronised")


def check_versions(schemes: Collection[str]) -> Checks:
    """Check the installed packages; `schemes` are those that may run here."""
    found = [f"Python {platform.python_version()}", f"flhe {metadata.version('flhe')}"]
    declared = map(Requirement, metadata.requires("flhe") or ())
    bounds = {each.name: each.specifier for each in declared if each.marker is None}
    for package in _NEEDED:
        installed, needed = _version(package), bounds.get(package, SpecifierSet())
        if installed is None or not needed.contains(Version(installed).base_version):
            says = f"{package} {installed or 'is missing'}, and flhe needs {needed or 'it'}"
            mend = "install flhe again into the node's environment, see docs/install.md"
            yield Check("versions", "fail", says, mend)
        else:
            found.append(f"{package} {installed}")
    if untested := untested_flower():
        yield Check("versions", "warn", *untested)
    for scheme in SCHEMES.all():
        lacking = scheme.needs.missing()
        found += [f"{name} {_version(name)}" for name in scheme.needs.node if name not in lacking]
        if lacking and scheme.name in schemes:
            mend = f"{how_to(lacking[0])}, or leave {scheme.name} out of flhe-schemes"
            verb = "is" if len(lacking) == 1 else "are"
            says = f"{' and '.join(lacking)} {verb} missing, which {scheme.name} needs"
            yield Check("versions", "warn", says, mend)
    yield Check("versions", "ok", ", ".join(dict.fromkeys(found)))


def _kernel_state() -> int:
    """Return the kernel's state of its clock; -1 if it cannot be asked."""
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX)))
    except (OSError, AttributeError):
        return -1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
