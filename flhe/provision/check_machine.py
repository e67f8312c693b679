"""Checks of the machine: its clock, and what is installed."""

from __future__ import annotations

import ctypes
import platform
import re
import time
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from flhe.packages import how_to
from flhe.provision.checks import Check, Checks
from flhe.schemes.registry import SCHEMES

_UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2)
_NEEDED = ("flwr", "cryptography", "numba")


class _Timex(ctypes.Structure):
    """The head of `struct timex`, and room for the rest of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def check_clock(roster: Path | None, now: float | None = None) -> Check:
    """Whether the clock may be right: certificates and logs go by it."""
    at = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    mend = "set the clock, and keep it right: systemctl enable --now systemd-timesyncd, or chrony"
    if roster is not None and roster.exists() and at < roster.stat().st_mtime - 1:
        return Check("clock", "fail", f"{shown} is before the roster was written", mend)
    status = _kernel_status()
    if status is None:
        return Check("clock", "ok", f"{shown}; the system does not say whether it is synchronised")
    if status & _UNSYNCHRONISED:
        return Check("clock", "warn", f"{shown}, and nothing keeps it synchronised", mend)
    return Check("clock", "ok", f"{shown}, synchronised")


def check_versions(schemes: Collection[str]) -> Checks:
    """What is installed, beside what flhe asks for; `schemes` are those that may run here."""
    found = [f"Python {platform.python_version()}", f"flhe {metadata.version('flhe')}"]
    bounds = {name: spec for name, spec in map(_split, metadata.requires("flhe") or ()) if name}
    for package in _NEEDED:
        installed = _version(package)
        if installed is None or not _within(installed, bounds.get(package, "")):
            says = (
                f"{package} {installed or 'is missing'}, and flhe needs {bounds.get(package, 'it')}"
            )
            mend = "install flhe again into the node's environment, as docs/install.md says"
            yield Check("versions", "fail", says, mend)
        else:
            found.append(f"{package} {installed}")
    for scheme in SCHEMES.all():
        lacking = scheme.needs.missing()
        found += [f"{name} {_version(name)}" for name in scheme.needs.node if name not in lacking]
        if lacking and scheme.name in schemes:
            mend = f"{how_to(lacking[0])}, or leave {scheme.name} out of flhe-schemes"
            verb = "is" if len(lacking) == 1 else "are"
            says = f"{' and '.join(lacking)} {verb} missing, which {scheme.name} needs"
            yield Check("versions", "warn", says, mend)
    yield Check("versions", "ok", ", ".join(found))


def _kernel_status() -> int | None:
    """What the kernel says of its clock; None where nobody can be asked."""
    try:
        timex = _Timex()
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else timex.status


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _split(requirement: str) -> tuple[str, str]:
    """Name and bounds of a requirement; no name for one of an extra."""
    if ";" in requirement:
        return "", ""
    found = re.match(r"([A-Za-z0-9._-]+?)\s*\(?([<>=!~].*?)?\)?$", requirement.strip())
    return (found[1], found[2] or "") if found else ("", "")


def _within(installed: str, spec: str) -> bool:
    """Whether a version is within bounds such as `>=1.41,<1.42`; other forms are not judged."""
    have = _numbers(installed)
    for sign, bound in re.findall(r"(>=|<)\s*([0-9.]+)", spec):
        if (have < _numbers(bound)) == (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3]))
