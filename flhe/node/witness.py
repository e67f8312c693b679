"""Witness: the name of a journal's last entry, kept outside the journal's volume.

Restoring a volume restores its inodes, times and files, and the machine need not restart. So no
file on the volume can reveal a missing claim, but a file outside it can. Each journal has such a
file of 16 bytes, by default in memory, which no restore brings back without its processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import ConfigError, NoKeyError, StoreError
from flhe.wire import files

_MEMORY: dict[bytes, bytes] = {}
os.register_at_fork(after_in_child=_MEMORY.clear)  # otherwise two processes would each go on alone
_ALONE = threading.Lock()
_MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = ("tmpfs", "ramfs")
_WHERE = "the witness's directory"


@dataclass(frozen=True, slots=True)
class Witness:
    """Place of entries: a directory of this user alone, or this process.

    Without a `place` no other process may use the keys. With `durable` a missing entry is taken
    from the journal, because its disk is never rolled back.
    """

    place: Path | None = None
    durable: bool = False

    def follow(self, name: bytes, act: Callable[[bytes], bytes], *, new: bool = False) -> None:
        """Call `act` with the entry under `name`, and keep the returned entry.

        A lock excludes all other processes and copies of the state directory meanwhile. A missing
        entry is b""; only `new` or `durable` creates one.
        """
        if self.place is None:
            with _ALONE:
                _MEMORY[name] = act(_MEMORY.get(name, b""))
        else:
            path = self.place / name.hex()
            files.exchange(path, act, _WHERE, create=new or self.durable)

    def forget(self, name: bytes) -> None:
        """Remove an entry whose journal is no longer used."""
        if self.place is None:
            _MEMORY.pop(name, None)
        else:
            files.drop(self.place / name.hex(), _WHERE)

    def check(self, kept: bytes, entry: bytes, before: bytes) -> None:
        """Refuse a journal whose last entry is not the witnessed `kept`; NoKeyError.

        A journal that is one entry ahead comes from a crash between both writes, and is accepted.
        """
        if kept in (entry, before) if kept else self.durable:
            return
        if kept:
            raise NoKeyError(
                "this state directory was copied or rolled back, and its keys were used elsewhere "
                "since: they encrypt nothing; agree on a new epoch"
            )
        if self.place is None:
            raise NoKeyError(
                "keys last as long as one process here, because their last use has no witness outside "
                "the state directory's disk: set flhe-witness in the node config to a directory in "
                "memory"
            )
        raise NoKeyError(
            "the witness of these keys' last use is missing: the machine was restarted, or this "
            "state directory is a copy; they encrypt nothing; agree on a new epoch (flhe-durable=true "
            "in the node config if the disk is never rolled back)"
        )


IN_PROCESS = Witness()


def find(
    named: Path | None,
    home: Path,
    *,
    durable: bool = False,
    environ: Mapping[str, str] = os.environ,
    make: bool = True,
) -> Witness:
    """Return the witness of a state directory: in the named place, or the first suitable one.

    Without `make`, no directory is made.

    Raises ConfigError: the named place is on the same disk; StoreError: it is open to others or
    cannot be created.
    """
    if named is not None:
        _prepare(named, make)
        if not (durable or is_apart(named, home)):
            raise ConfigError(
                "flhe-witness is on the same disk as the state directory, and would be rolled back "
                "with it: name a directory in memory or on another disk"
            )
        return Witness(named, durable)
    for place in _defaults(environ):
        with suppress(StoreError):
            _prepare(place, make)
            if durable or is_apart(place, home):
                return Witness(place, durable)
    if not durable:
        return IN_PROCESS
    _prepare(home / "witness", make)
    return Witness(home / "witness", durable)


def is_apart(place: Path, home: Path) -> bool:
    """Return whether restoring the disk of `home` leaves `place` unchanged."""
    return _device(place) != _device(home) or bool(in_memory(place))


def in_memory(place: Path) -> bool | None:
    """Return whether a place is in memory; None if the system does not report it."""
    device = _device(place)
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in _MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return None
    kinds = {line[line.index("-") + 1] for line in mounts if "-" in line and line[2] == number}
    return kinds <= set(_IN_MEMORY) if kinds else None


def _defaults(environ: Mapping[str, str]) -> Iterator[Path]:
    user = os.geteuid()
    shared = "/dev/shm"  # noqa: S108  # in it, a directory of this user's own
    bases = (environ.get("XDG_RUNTIME_DIR"), shared, f"/run/user/{user}")
    return (Path(base) / f"flhe-{user}" for base in bases if base and Path(base).is_dir())


def _prepare(place: Path, make: bool) -> None:
    exists = os.path.lexists(place)
    if not exists and not os.access(_there(place), os.W_OK | os.X_OK):
        raise StoreError(
            f"cannot make {_WHERE}: this user may not write there; where a service makes it, it exists "
            "once the service has been started"
        )
    if make or exists:
        files.make_private(place, _WHERE)


def _there(path: Path) -> Path:
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def _device(path: Path) -> int:
    with files.os_errors("look at", _WHERE):
        return _there(path).stat().st_dev
