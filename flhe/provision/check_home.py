"""Checks of the state directory: owner, access, room and witness."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from flhe.errors import FlheError
from flhe.keys.identity import Identity
from flhe.node import witness
from flhe.node.backup import ARCHIVE
from flhe.node.policy import Policy
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import existing, how_to_make

LEAST_FREE, FEW_FREE = 64 << 20, 1 << 30
"""Bytes below which a node cannot work, and below which large models may not fit."""

MOST_PLACES = 200
"""Directories and links that are looked at: links may go in a circle."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_home(home: Path) -> Checks:
    """Check the directory itself, its parents, and its room."""
    yield from _permissions(home)
    yield _parents(home)
    yield _room(home)
    if (home / ARCHIVE).is_dir():
        says = "keys of earlier epochs from a restore are still here"
        mend = f"once no sealed model needs them, delete {home / ARCHIVE}"
        yield Check("archive", "warn", says, mend)


def identity_in(home: Path) -> tuple[Identity | None, Check]:
    """Return the identity, if it can be read, and its check; none is created."""
    try:
        identity = existing(home)
    except FlheError as error:
        mend = f"{how_to_make(home)}; until then the node cannot start"
        return None, Check("identity", "fail", str(error), mend)
    return identity, Check("identity", "ok", f"key {identity.public.hex()[:16]} ...")


def _permissions(home: Path) -> Checks:
    name = "home"
    says = mend = ""
    try:
        status = home.lstat()
        if not stat.S_ISDIR(status.st_mode):
            says, mend = f"{home} is not a directory, or is a link", "name the directory itself"
        elif status.st_uid != os.geteuid():
            says = f"{home} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
            mend = "run doctor and the node as one user, and let it own the directory (chown -R)"
    except OSError as error:
        says, mend = f"{home}: {error.strerror}", how_to_make(home)
    if says:
        yield Check(name, "fail", says, mend)
        return
    inside = _inside(home)
    loose = [home] * bool(status.st_mode & 0o077) + [p for p, s in inside if _is_loose(s)]
    strange = [p for p, s in inside if not stat.S_ISDIR(s.st_mode) and not stat.S_ISREG(s.st_mode)]
    if strange:
        says = f"{strange[0]} is a link, or not a file; a node refuses those"
        yield Check(name, "fail", says, "put the file or directory itself in its place")
    if loose:
        more = f", and {len(loose) - 1} more" if len(loose) > 1 else ""
        says = f"others may look into {loose[0]}{more}"
        mend = f"chmod -R go= {home}, and consider the keys in it known: flhe site rotate"
        yield Check(name, "fail", says, mend)
    if not loose and not strange:
        yield Check(name, "ok", f"{home}, of this user alone")


def _inside(home: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the content of a directory; links are not followed."""
    found = []
    for folder, folders, names in os.walk(home):
        for path in sorted(Path(folder, name) for name in (*folders, *names)):
            with suppress(FileNotFoundError):  # a running node renames files
                found.append((path, path.lstat()))
    return found


def _is_loose(status: os.stat_result) -> bool:
    """Return whether it belongs to another user, or is open to others; links are always open."""
    others = status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode)
    return bool(status.st_uid != os.geteuid() or others)


def _parents(home: Path) -> Check:
    """Check for other users able to replace the directory, or a link in its path."""
    shared, other = None, "or choose another place for flhe-home"
    for place in _way(Path.cwd() / home, []):
        try:
            status = place.lstat()
        except OSError:
            continue
        if status.st_uid not in (0, os.geteuid()):
            says = f"{place} belongs to another user, who can put another directory in its place"
            return Check("path", "fail", says, f"chown -h {place}, {other}")
        if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS:
            continue
        shared = place.resolve()
        if not status.st_mode & stat.S_ISVTX:
            says = f"other users may write to {shared}, and put another directory in its place"
            return Check("path", "fail", says, f"chmod go-w {shared}, {other}")
    if shared is not None:
        says = f"all users share {shared}; the system may clean up its content"
        return Check("path", "warn", says, "choose a place such as /var/lib/flhe")
    return Check("path", "ok", "no other user can write above it")


def _way(path: Path, found: list[Path]) -> list[Path]:
    """Add the directories and links that lead to a path to `found`, those that links name too."""
    for place in reversed(path.parents):
        if place not in found:
            found.append(place)
            if place.is_symlink() and len(found) < MOST_PLACES:
                _way(place.parent / place.readlink() / "it", found)
    return found


def _room(home: Path) -> Check:
    place = next(path for path in (home, *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    says = f"{free / 1e9:.1f} GB free"
    if free < FEW_FREE:
        mend = "free some space: a node keeps the model, its update and the residual"
        return Check("disk", "fail" if free < LEAST_FREE else "warn", says, mend)
    return Check("disk", "ok", says)


def check_witness(policy: Policy) -> Check:
    """Check that the last use of keys is also recorded off the state directory's disk."""
    name = "witness"
    mend = (
        'set flhe-witness="DIR" in the node config, a directory in memory that the node\'s user '
        "owns (systemd: RuntimeDirectory=); or flhe-durable=true, if this disk is never rolled "
        "back"
    )
    try:
        found = witness.find(policy.witness, policy.home, durable=policy.durable, make=False)
    except FlheError as error:
        return Check(name, "fail", f"{policy.witness}: {error}", mend)
    place = found.place
    if place is None:
        says = "no place outside the state directory's disk, so keys last for one message"
        return Check(name, "fail", says, mend)
    if policy.durable:
        says = "created again if missing: this disk must never be rolled back"
    elif witness.in_memory(place):
        says = "in memory: after a restart of the machine, the group agrees on fresh keys"
    else:
        says = (
            f"in {place}, which may not be in memory: never put it back together with {policy.home}"
        )
        return Check(name, "warn", says, mend)
    return Check(name, "ok", f"in {place}, {says}")
