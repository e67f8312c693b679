"""Checks of the state directory: whose it is, who else can reach it, and whether it has room."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from flhe.errors import FlheError
from flhe.keys.backup import ARCHIVE
from flhe.keys.identity import Identity
from flhe.keys.store import Store
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import IDENTITY

LEAST_FREE, FEW_FREE = 64 << 20, 1 << 30
"""Bytes below which a node cannot work, and below which large models may not fit."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PROCESSES = Path("/proc")


def check_home(home: Path) -> Checks:
    """The directory itself, its parents, the room in it, and who uses it."""
    yield from _permissions(home)
    yield _parents(home)
    yield _room(home)
    if home.is_dir():
        yield _nodes(home)
        if (home / ARCHIVE).is_dir():
            yield Check(
                "archive",
                "warn",
                "keys of earlier epochs, that a restore brought back, are still here",
                f"once no sealed model needs them any more, delete {home / ARCHIVE}",
            )


def identity_in(home: Path) -> tuple[Identity | None, Check]:
    """The identity, if it can be read, and what is to be said of it; none is made."""
    if not (home / IDENTITY).is_file():
        mend = f"flhe keygen --home {home} --name NAME, or flhe keys restore BACKUP --home {home}"
        return None, Check("identity", "fail", "there is none", mend)
    try:
        identity = Store(home).identity()
    except FlheError as error:
        mend = "restore it from a backup, or rotate to a new one; until then the node cannot start"
        return None, Check("identity", "fail", f"cannot be read: {error}", mend)
    return identity, Check("identity", "ok", f"key {identity.public.hex()[:16]} ...")


def _permissions(home: Path) -> Checks:
    name = "home"
    try:
        status = home.lstat()
    except OSError as error:
        mend = f"make it with: flhe keygen --home {home} --name NAME"
        yield Check(name, "fail", f"{home}: {error.strerror}", mend)
        return
    if not stat.S_ISDIR(status.st_mode):
        yield Check(name, "fail", f"{home} is no directory, or a link", "name the directory itself")
        return
    if status.st_uid != os.geteuid():
        yield Check(
            name,
            "fail",
            f"{home} belongs to user {status.st_uid}, and this is user {os.geteuid()}",
            "run doctor and the node as one user, and let it own the directory (chown -R)",
        )
        return
    loose = [home] * bool(status.st_mode & 0o077) + _loose(home)
    if loose:
        yield Check(
            name,
            "fail",
            f"others may look into {loose[0]}" + f", and {len(loose) - 1} more" * (len(loose) > 1),
            f"chmod -R go= {home}, and consider the keys in it known: flhe keys rotate",
        )
        return
    yield Check(name, "ok", f"{home}, of this user alone")


def _loose(home: Path) -> list[Path]:
    """What in a directory is open to others, or somebody else's."""
    try:
        inside = [(path, path.lstat()) for path in home.rglob("*")]
    except OSError:  # a node at work renames files
        return []
    me = os.geteuid()
    return [
        path
        for path, status in inside
        if status.st_uid != me or (not path.is_symlink() and status.st_mode & 0o077)
    ]


def _parents(home: Path) -> Check:
    """Who may write above the directory can put another one in its place."""
    for parent in Path(os.path.realpath(home)).parents:
        try:
            status = parent.stat()
        except OSError:
            continue
        if status.st_uid not in (0, os.geteuid()):
            return Check(
                "path",
                "fail",
                f"{parent} belongs to another user, who may put another directory in its place",
                f"chown {parent}, or choose another place for flhe-home",
            )
        if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
            return Check(
                "path",
                "fail",
                f"others may write to {parent}, and put another directory in its place",
                f"chmod go-w {parent}, or choose another place for flhe-home",
            )
        if status.st_mode & _OTHERS:
            return Check(
                "path",
                "warn",
                f"{parent} is shared by all users; what is in it may be cleaned away",
                "choose a place such as /var/lib/flhe",
            )
    return Check("path", "ok", "nobody else can write above it")


def _room(home: Path) -> Check:
    place = next(path for path in (home, *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    says = f"{free / 1e9:.1f} GB free"
    if free < FEW_FREE:
        mend = "free some space: a node keeps the model, its update and what it has not sent yet"
        return Check("disk", "fail" if free < LEAST_FREE else "warn", says, mend)
    return Check("disk", "ok", says)


def _nodes(home: Path) -> Check:
    """How many SuperNodes of this machine have this directory: two would be one site twice."""
    if not _PROCESSES.is_dir():
        return Check("processes", "ok", "cannot be counted on this system")
    found = [pid for pid in _PROCESSES.glob("[0-9]*") if _is_node(pid / "cmdline", home)]
    if len(found) > 1:
        pids = ", ".join(sorted(pid.name for pid in found))
        return Check(
            "processes",
            "fail",
            f"{len(found)} SuperNodes run on this directory (processes {pids})",
            "end all but one, and give each node a directory and an identity of its own",
        )
    return Check("processes", "ok", "one SuperNode runs on it" if found else "no node runs on it")


def _is_node(cmdline: Path, home: Path) -> bool:
    try:
        words = cmdline.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    named = any(Path(word).name == "flower-supernode" for word in words[:3])
    places = (f'flhe-home="{home}"', f"flhe-home='{home}'")
    return named and any(place in word for word in words for place in places)
