"""The state directory: private, and each file in it whole or not there."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError, StoreError
from flhe.keys.identity import Identity
from flhe.node.store import Store
from flhe.wire import files
from tests.mods.harness import dying
from tests.node.conftest import together
from tests.patience import PATIENCE_S


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def flushed(act: Callable[[], object]) -> list[str]:
    """Run `act`; returns "file" or "dir" for each fsync, in order, and "rename"."""
    seen: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def spy(handle: int) -> None:
        seen.append("dir" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def spy_rename(self: Path, target: Path) -> Path:
        seen.append("rename")
        return rename(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", spy)
        patch.setattr(Path, "replace", spy_rename)
        act()
    return seen


def full(*_: object) -> int:
    raise OSError(28, "No space left on device", "/secret/path")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "state"


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


def test_everything_is_private(store: Store, root: Path) -> None:
    before = os.umask(0)  # the loosest umask must not open anything
    try:
        store.write("cache/3/draft", b"x")
        store.move("cache/3/draft", "cache/3/residual")
        store.append("log", b"x\n", limit=100)
        store.identity()
        with store.lock():
            pass
    finally:
        os.umask(before)
    assert str(root) not in repr(store)
    for path in [root, *root.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path.name


@pytest.mark.parametrize(
    ("how", "says"),
    [
        *((bits, "chmod 700") for bits in (0o710, 0o701, 0o755, 0o770)),
        *((kind, "link or a file") for kind in ("link", "file")),
        ("another user's", "another user"),
    ],
)
def test_a_directory_that_is_not_this_users_alone(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, how: int | str, says: str
) -> None:
    store.write("a", b"x")
    place = root.with_name("place") if how in ("link", "file") else root
    if isinstance(how, int):
        root.chmod(how)
    elif how == "link":
        place.symlink_to(root)
    elif how == "file":
        place.write_bytes(b"")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
        with pytest.raises(StoreError, match=says):
            store.read("a")
    with pytest.raises(StoreError, match=says) as caught:
        Store(place)
    assert str(root.parent) not in str(caught.value)


def test_files_open_to_others_or_links_are_not_read(store: Store, root: Path) -> None:
    """Nor is anything added to them."""
    for name in ("a", "target"):
        store.write(name, b"")
    (root / "a").chmod(0o640)
    (root / "b").symlink_to(root / "target")
    (root / "sub").symlink_to("/tmp")
    os.mkfifo(root / "fifo", 0o600)
    for act in (store.read, store.mapped, lambda n: store.append(n, b"x\n", limit=100)):
        for name, says in (("a", "600"), ("b", "cannot"), ("sub/x", "link"), ("fifo", "not")):
            with pytest.raises(StoreError, match=says) as caught:
                act(name)  # type: ignore[operator]
            assert str(root) not in str(caught.value)
    for act in (store.read, store.mapped, lambda _: store.write("sub/x", b"")):
        with pytest.raises(StoreError):
            act("missing")  # type: ignore[operator]
    assert store.read("target") == b""


def test_a_mapped_file_is_read_as_it_was(store: Store) -> None:
    """A file that is replaced as a whole keeps its content for whoever has mapped it."""
    store.write("runs/1/model", b"one" * 9999)
    mapped = store.mapped("runs/1/model")
    store.write("runs/1/model", b"")
    assert bytes(mapped) == b"one" * 9999
    assert bytes(store.mapped("runs/1/model")) == b""
    with pytest.raises(TypeError):
        mapped[0] = 1


def test_write_read_erase(store: Store, root: Path) -> None:
    """And a write that fails leaves the older file."""
    assert not store.exists("a/b")
    store.write("a/b", b"one")
    store.write("a/b", memoryview(b"two"))
    store.write("c", (bytes([i]) * i for i in range(4)))
    assert (store.read("a/b"), store.read("c")) == (b"two", b"\1\2\2\3\3\3")

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        store.write("c", broken())
    assert store.read("c") == b"\1\2\2\3\3\3"
    assert flushed(lambda: store.write("d", b"new")) == ["file", "rename", "dir"]
    assert flushed(lambda: store.move("d", "a/b")) == ["rename", "dir"]
    assert store.read("a/b") == b"new"
    with pytest.raises(StoreError):  # it is gone
        store.move("d", "a/b")
    os.link(root / "c", root / "again")  # another name for the same blocks
    for _ in range(2):
        store.erase("c")
    assert not store.exists("c")
    assert (root / "again").read_bytes() == bytes(6)
    assert sorted(p.name for p in root.rglob("*")) == ["a", "again", "b"]


def test_a_full_disk_is_ours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        store.write("a", b"x")
    assert "secret" not in str(caught.value)


NAMES = ["", ".", "..", "../x", "/x", "a/../b", "a//b", "a/", ".hidden", "a/.b", "a\0b", "a\n"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "a name is") for name in (*NAMES, "a b", "a/b/c/d/e", "x" * 129, "-x")),
        *((name, "choose another name") for name in ("lock", "lock-log", "identity.key", "lock/x")),
    ],
)
def test_names_stay_inside(store: Store, name: str, says: str) -> None:
    """Nor does any file take the place of the store's own."""
    store.write("a", b"")
    writes: list[Callable[[str], object]] = [
        store.erase,
        lambda n: store.write(n, b""),
        lambda n: store.move("a", n),
        lambda n: store.move(n, "a"),
        lambda n: store.append(n, b"x\n", limit=100),
    ]
    for act in (*writes, *((store.exists, store.read) if says == "a name is" else ())):
        with pytest.raises(ConfigError, match=says):
            act(name)


def test_lock_excludes_and_waits(store: Store, root: Path) -> None:
    with store.lock():
        with pytest.raises(StoreError, match="another process"), Store(root).lock(timeout=0.1):
            pass
        got = threading.Event()

        def wait() -> None:
            with Store(root).lock(timeout=PATIENCE_S):
                got.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not got.wait(0.2)
    assert got.wait(PATIENCE_S)
    waiter.join()


def test_two_processes_make_one_identity(root: Path) -> None:
    found: list[Identity] = []
    stores = [Store(root) for _ in range(8)]
    together([lambda s=s: found.append(s.identity()) for s in stores])
    assert found == [Store(root).identity(bytes)] * 8
    (root / "identity.key").write_bytes(b"short")
    with pytest.raises(StoreError, match="damaged"):
        stores[0].identity()


def test_a_forked_child_does_not_keep_the_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []
    real = os.open

    def opening(path: object, *args: int) -> int:
        handle = real(path, *args)  # type: ignore[arg-type]
        if str(path).endswith("lock"):
            copies.append(os.dup(handle))  # what a child that was forked in between would have
        return handle

    monkeypatch.setattr(os, "open", opening)
    try:
        with store.lock():
            pass
        with store.lock(timeout=0.2):
            pass
    finally:
        for copy in copies:
            os.close(copy)


# --- keys ---


def test_names_are_those_of_files(store: Store, root: Path) -> None:
    for name in ("runs/1/begun", "runs/1/model", "runs/2/begun", "begun"):
        store.write(name, b"")
    (root / "runs/3/begun").mkdir(parents=True)
    (root / "runs/1/.0123456789abcdef").touch()  # nobody finished it
    assert store.names("runs/*/begun") == ["runs/1/begun", "runs/2/begun"]
    assert store.names("runs/1/*") == ["runs/1/begun", "runs/1/model"]
    assert store.names("epochs/*") == []


@pytest.mark.parametrize("at", ["replace", "erase", "a full disk"])
def test_a_crash_while_secrets_are_replaced_loses_none(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Nor does a sweep. Once it was done, nothing of the secrets before is left."""
    store.write("keys", b"keys and a secret")
    with monkeypatch.context() as patch:
        ends: Any = dying(files, at)
        if at == "a full disk":
            ends = pytest.raises(StoreError, match="No space")
            patch.setattr(os, "fsync", full)
        with ends:
            store.replace_erasing("keys", b"keys alone")
    kept = store.read("keys")
    assert kept in (b"keys and a secret", b"keys alone")
    assert at == "erase" or [path.name for path in store.root.iterdir()] == ["keys"]
    (store.root / ".0123456789abcdef").hardlink_to(store.root / "keys")  # as a crash leaves it
    monkeypatch.setattr(files, "UNFINISHED_S", -1.0)
    with store.lock():
        assert not list(store.root.glob(".*"))
    assert store.read("keys") == kept
    store.replace_erasing("keys", b"keys alone")
    assert {path.read_bytes() for path in store.root.iterdir()} == {b"keys alone", b""}
    with pytest.raises(StoreError):
        store.replace_erasing("missing", b"keys")


# --- logs: whole lines, of which none is lost ---


def test_sweep(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = root / ".0123456789abcdef"
    left.write_bytes(b"half a key")
    os.utime(left, (0, 0))  # its content may be old
    with store.lock():
        assert left.exists()  # somebody may be at it
    monkeypatch.setattr(files, "UNFINISHED_S", -1.0)
    with store.lock():
        assert not left.exists()


def test_what_another_process_sweeps_is_erased(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("draft", b"secret")
    fsync = os.fsync

    def meanwhile(handle: int) -> None:
        fsync(handle)
        for left in store.root.glob(".*"):
            left.unlink()

    monkeypatch.setattr(os, "fsync", meanwhile)
    store.erase("draft")
    assert not store.exists("draft")


def test_a_full_log_is_put_aside_once(store: Store, root: Path) -> None:
    for i in range(7):
        store.append("log", b"%03d\n" % i, limit=12)  # three lines of four bytes
    assert store.read("log") == b"006\n"
    assert store.read("log.1") == b"003\n004\n005\n"
    assert sorted(p.name for p in root.iterdir()) == ["lock-log", "log", "log.1"]
    store.append("log", b"x" * 50 + b"\n", limit=12)  # a line is never cut
    assert store.read("log") == b"x" * 50 + b"\n"
    assert store.read("log.1") == b"006\n"


def test_a_line_is_one_write_without_a_flush(store: Store, root: Path, monkeypatch: Any) -> None:
    """One that was torn does not swallow the next."""
    written: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda h, data: (written.append(data), write(h, data))[1])
    assert flushed(lambda: store.append("log", b"one\n", limit=100)) == []
    assert written == [b"one\n"]
    with (root / "log").open("ab") as file:
        file.write(b"tw")
    store.append("log", b"three\n", limit=100)
    store.append("log", b"four\n", limit=100)
    assert store.read("log") == b"one\ntw\nthree\nfour\n"


def test_a_line_that_does_not_fit_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("log", b"one\n", limit=100)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:2]))
        with pytest.raises(StoreError, match="disk space"):
            store.append("log", b"two\n", limit=100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left") as caught:
            store.append("log", b"two\n", limit=100)
    assert "secret" not in str(caught.value)
    store.append("log", b"three\n", limit=100)
    assert store.read("log") == b"one\nthree\n"


def test_no_line_of_many_writers_is_lost_or_cut(root: Path) -> None:
    """One of them rotates: none loses what another put aside."""

    def work(first: int) -> None:
        for i in range(first, first + 100):
            Store(root).append("log", b"%04d" % i * 10 + b"\n", 10_000)

    together([lambda first=first: work(first) for first in range(0, 400, 100)])  # type: ignore[misc]
    older, newer = Store(root).read("log.1"), Store(root).read("log")
    assert 10_000 - 41 < len(older) <= 10_000
    assert sorted((older + newer).splitlines()) == [b"%04d" % i * 10 for i in range(400)]


def test_a_log_whose_turn_never_comes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flhe.node.store._PATIENCE", 0.1)
    with store.lock(name="lock-log"), pytest.raises(StoreError, match="another process"):
        store.append("log", b"x\n", limit=100)
    with store.lock(name="lock-7"):  # that of a run does not exclude it
        store.append("log", b"x\n", limit=100)
