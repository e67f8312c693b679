"""Files that only their owner reads: directories 0700, files 0600, durable when a call returns.

A file is written under a temporary name, flushed, and renamed, and then its directory is flushed:
after a crash it is complete or absent. Links are never followed. No error holds a path.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from flhe.errors import ConfigError, StoreError

Buffer = bytes | bytearray | memoryview

_BESIDE = re.compile(r"\.[0-9a-f]{16}")

UNFINISHED_S = 3600.0
"""Age in seconds from which an unfinished file is abandoned."""

SAFE = os.O_CLOEXEC | os.O_NOFOLLOW
"""Flags of every open."""


HOME = "the state directory"
"""Name of a file's place in errors, by default."""

PATIENCE_S = 30.0
"""Longest wait for a lock, in seconds."""

_POLL_S = 0.05


def home() -> Path:
    """Return the user's home directory; ConfigError if the system knows none."""
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(
            "this user's home directory is unknown: set HOME to a directory that is the user's own"
        ) from None


def make_private(path: Path, where: str = HOME) -> None:
    """Make the directory 0700, or check an existing one.

    Raises StoreError if it is a link or a file, has another owner, or is open to others.
    """
    with os_errors("make a directory", where):
        try:
            path.mkdir(mode=0o700)
            _sync(path.parent)
        except FileExistsError:
            pass
        status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{where} is a link or a file: name a directory itself")
    _check_private(status, where, "700")


def read(path: Path | str) -> bytes:
    """Return the content of a file. Raises StoreError if it is missing or others may read it."""
    with os_errors("read"), os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        return file.read()


def mapped(path: Path | str) -> memoryview:
    """Return the content of a file, read from the disk as it is used; raises as `read` does.

    For files that are replaced as a whole: changes within the file would show in the result, and a
    part that is cut off, or that the disk cannot read, ends the process.
    """
    with os_errors("read"), os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # a file system that maps none, or an empty file
            return memoryview(file.read())


def create(path: Path, data: bytes, where: str = HOME) -> bool:
    """Make a new file; return False, and write nothing, if it exists. On any error there is none."""
    with os_errors("write", where):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE, 0o600)
        except FileExistsError:
            return False
        try:
            with _flushed(handle) as file:
                file.write(data)
            _sync(path.parent)
        except BaseException:
            with suppress(StoreError):  # the first error says more
                erase(path)
            raise
        return True


@contextmanager
def writing(path: Path, where: str = HOME) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` at the end; on any error the older one stays.

    A known name could be another user's link, so it is written under a random one.
    """
    with os_errors("write", where):
        beside = path.parent / f".{secrets.token_hex(8)}"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE, 0o600)
        try:
            with _flushed(handle) as file:
                yield file
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def replace(path: Path, chunks: Iterable[Buffer], where: str = HOME) -> None:
    """Write a file from buffers that come one at a time, as `writing` does."""
    with writing(path, where) as file:
        file.writelines(chunks)


def replace_erasing(path: Path, chunks: Iterable[Buffer]) -> None:
    """Replace a file as `replace` does, and overwrite the old content, as far as the disk allows.

    After a crash the older file or the new one is there; `sweep` erases the rest of the older one.
    """
    old = path.parent / f".{secrets.token_hex(8)}"
    with os_errors("write"):
        old.hardlink_to(path)
    try:
        replace(path, chunks)
    except BaseException:
        old.unlink(missing_ok=True)
        raise
    erase(old)


def move(path: Path, to: Path) -> None:
    """Rename a file within one directory, replacing a file of that name."""
    with os_errors("rename"):
        path.replace(to)
        _sync(to.parent)


def append(path: Path, lines: bytes, limit: int) -> None:
    """Add lines to a log, all or none; they are not flushed to the disk.

    A log that would exceed `limit` bytes becomes `<name>.1`, replacing the one before, and a new
    one begins. Allow one caller at a time: two concurrent rotations would lose the first one's log.
    """
    with os_errors("write"):
        handle = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with os.fdopen(handle, "ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0 or size + len(lines) <= limit:
                _write_lines(file.fileno(), size, lines)
                return
        path.replace(path.with_name(f"{path.name}.1"))
    append(path, lines, limit)


def sweep(root: Path) -> None:
    """Remove unfinished files that a crash left below `root`, once they are an hour old."""
    with os_errors("clean up"):
        for folder, _, names in os.walk(root):
            for left in (Path(folder) / name for name in names if _BESIDE.fullmatch(name)):
                if left.is_symlink() or not left.is_file():
                    continue
                with suppress(FileNotFoundError):  # another process removed it first
                    status = left.stat()
                    # A rename or a link makes it young again, whatever it was before.
                    if time.time() - status.st_ctime <= UNFINISHED_S:
                        continue
                    if status.st_nlink > 1:  # of `replace_erasing`: the file itself is in use
                        left.unlink()
                    else:
                        erase(left)


def erase(path: Path) -> None:
    """Overwrite a file with zeros, as far as the disk allows, and remove it; a missing one is fine.

    It is renamed first: after a crash no partly erased file has its name, and `sweep` finishes the
    rest.
    """
    with os_errors("erase"):
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StoreError("not a regular file in the state directory: remove it")
            if not _BESIDE.fullmatch(path.name):
                path = path.rename(path.parent / f".{secrets.token_hex(8)}")
            handle = os.open(path, os.O_WRONLY | SAFE)
        except FileNotFoundError:
            return
        size = os.fstat(handle).st_size
        try:
            with _flushed(handle) as file:
                file.writelines(bytes(min(size - at, 1 << 20)) for at in range(0, size, 1 << 20))
        finally:
            path.unlink(missing_ok=True)  # another process sweeps it too
            _sync(path.parent)


def hold(handle: int, where: str = HOME, timeout: float = PATIENCE_S) -> None:
    """Lock an open file, after at most `timeout` seconds.

    Raises StoreError: another process holds it, and may have been stopped meanwhile.
    """
    until = time.monotonic() + timeout
    while True:
        with os_errors("lock", where), suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() >= until:
            raise StoreError(
                f"another process has held {where} for {timeout:g} s: wait until it has trained, or "
                "give each node a directory of its own"
            )
        time.sleep(_POLL_S)


def exchange(path: Path, act: Callable[[bytes], bytes], where: str, *, create: bool) -> None:
    """Replace the content of a short file by the result of `act` on it, with the file locked.

    The content of a missing file is b""; unless `create`, no file is made for it.
    """
    flags = os.O_RDWR | os.O_CREAT * create | SAFE
    with os_errors("use a file", where):
        try:
            handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            handle = -1
    if handle < 0:
        act(b"")
        return
    with os.fdopen(handle, "r+b", buffering=0) as file:
        with os_errors("use a file", where):
            _check_file(handle, where)
        hold(handle, where)
        with os_errors("use a file", where):
            before = file.read()
        after = act(before)
        if after != before:
            with os_errors("write", where):  # in place: waiters for the lock hold this very file
                os.pwrite(handle, after, 0)
                os.ftruncate(handle, len(after))
                os.fsync(handle)


def drop(path: Path, where: str = HOME) -> None:
    """Remove a file that holds no secret; a missing one is fine."""
    with os_errors("remove", where):
        path.unlink(missing_ok=True)
        _sync(path.parent)


@contextmanager
def os_errors(what: str, where: str = HOME) -> Iterator[None]:
    """Turn OSError into a StoreError that holds no path."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what} in {where}: {error.strerror}") from None


@contextmanager
def private_umask() -> Iterator[None]:
    """Let nobody but the owner read what is made meanwhile."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _flushed(handle: int) -> Iterator[IO[bytes]]:
    """Write to a file, and close it once all is on the disk."""
    with os.fdopen(handle, "wb") as file:
        yield file
        file.flush()
        os.fsync(handle)


def _open(path: Path | str, flags: int) -> int:
    """Open a file of ours; a FIFO must not hang us."""
    handle = os.open(path, flags | os.O_NONBLOCK | SAFE, 0o600)
    try:
        _check_file(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _write_lines(handle: int, size: int, lines: bytes) -> None:
    """Write at the end of a file of `size` bytes with one call, or leave it unchanged."""
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by a power failure
    data = b"\n" * torn + lines
    if os.write(handle, data) < len(data):
        os.ftruncate(handle, size)
        raise StoreError("a line of a log did not fit in the state directory: free some disk space")


def _check_file(handle: int, where: str = HOME) -> None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"not a regular file in {where}: remove it")
    _check_private(status, f"a file in {where}", "600")


def _check_private(status: os.stat_result, what: str, mode: str) -> None:
    if status.st_uid != os.geteuid():
        raise StoreError(f"{what} belongs to another user: run as its owner, or use another one")
    if status.st_mode & 0o077:
        raise StoreError(f"{what} is open to others: chmod {mode}, and consider its keys known")


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
