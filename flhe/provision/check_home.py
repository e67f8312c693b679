"""Checks of the state directory: owner, access, processes, room and witness.

Two nodes on one directory would be one site twice.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path

from flhe.errors import FlheError
from flhe.keys.identity import Identity
from flhe.node import witness
from flhe.node.backup import ARCHIVE
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import IDENTITY

LEAST_FREE, FEW_FREE = 64 << 20, 1 << 30
"""Bytes below which a node cannot work, and below which large models may not fit."""

_PROCESSES = Path("/proc")
_OPTION = "--node-config"
_SHORTEST = "--node"
"""flower-supernode accepts any abbreviation of its option."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LINKS = 40
"""Maximum number of links that the system follows in one look-up."""


def check_home(home: Path) -> Checks:
    """Check the directory itself, its parents, its room, and its processes."""
    yield from _permissions(home)
    yield _parents(home)
    yield _room(home)
    if home.is_dir():
        yield check_nodes(home)
        if (home / ARCHIVE).is_dir():
            says = "keys of earlier epochs from a restore are still here"
            mend = f"once no sealed model needs them, delete {home / ARCHIVE}"
            yield Check("archive", "warn", says, mend)


def identity_in(home: Path) -> tuple[Identity | None, Check]:
    """Return the identity, if it can be read, and its check; none is created."""
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
    says = mend = ""
    try:
        status = home.lstat()
        if not stat.S_ISDIR(status.st_mode):
            says, mend = f"{home} is not a directory, or is a link", "name the directory itself"
        elif status.st_uid != os.geteuid():
            says = f"{home} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
            mend = "run doctor and the node as one user, and let it own the directory (chown -R)"
    except OSError as error:
        says, mend = (
            f"{home}: {error.strerror}",
            f"make it with: flhe keygen --home {home} --name NAME",
        )
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
    for place in _way(home):
        try:
            status = place.lstat()
        except OSError:
            continue
        if status.st_uid not in (0, os.geteuid()):
            says = f"{place} belongs to another user, who can put another directory in its place"
            return Check("path", "fail", says, f"chown -h {place}, {other}")
        if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS:
            continue
        if not status.st_mode & stat.S_ISVTX:
            says = f"other users may write to {place}, and put another directory in its place"
            return Check("path", "fail", says, f"chmod go-w {place}, {other}")
        shared = place
    if shared is not None:
        says = f"all users share {shared}; the system may clean up its content"
        return Check("path", "warn", says, "choose a place such as /var/lib/flhe")
    return Check("path", "ok", "no other user can write above it")


def _way(home: Path) -> list[Path]:
    """Return the directories and links in a path to a directory, without the directory itself."""
    absolute = Path.cwd() / home
    at, ahead = Path(absolute.anchor), deque(absolute.parts[1:])
    way, links = [at], 0
    while ahead:
        part = ahead.popleft()
        if part == "..":
            at = at.parent
            continue
        at = at / part
        if at.is_symlink() and links < _LINKS:
            links += 1
            way.append(at)
            target = at.readlink()
            at = Path(target.anchor) if target.is_absolute() else at.parent
            ahead.extendleft(reversed(target.parts[bool(target.anchor) :]))
        elif ahead:
            way.append(at)
    return way


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


def check_nodes(home: Path) -> Check:
    """Count the SuperNodes of this machine on this directory, under any of its paths."""
    if not _PROCESSES.is_dir():
        return Check("processes", "ok", "cannot be counted on this system")
    found = [pid for pid in _PROCESSES.glob("[0-9]*") if _works_on(pid, home)]
    if len(found) > 1:
        pids = ", ".join(sorted(pid.name for pid in found))
        says = f"{len(found)} SuperNodes run on this directory (processes {pids})"
        mend = "end all but one, and give each node a directory and an identity of its own"
        return Check("processes", "fail", says, mend)
    return Check("processes", "ok", "one SuperNode runs on it" if found else "no node runs on it")


def _works_on(pid: Path, home: Path) -> bool:
    try:
        words = (pid / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if not any(Path(word).name == "flower-supernode" for word in words[:3]):
            return False
        there = (pid / "cwd").readlink()
    except OSError:  # it has ended, or belongs to another user without access to the directory
        return False
    return any(_names(written, there, home) for written in _configs(words))


def _configs(words: list[str]) -> list[str]:
    """Return a command line's node config: the word after the option, or after its `=`."""
    found = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith(_SHORTEST) and _OPTION.startswith(option):
            found.append(value if equals else after)
    return found


def _names(written: str, there: Path, home: Path) -> bool:
    """Return whether a node config, read in directory `there`, names this state directory."""
    from flhe.provision.flower_config import as_flower_reads

    if written.endswith(".toml"):
        written = str(there / written)
    try:
        named = as_flower_reads(written).get("flhe-home")
    except FlheError:
        return False
    return isinstance(named, str) and os.path.realpath(there / named) == os.path.realpath(home)
