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
        store.write("cache/3/update", b"x")
        store.write("cache/3/draft", b"x")
        store.move("cache/3/draft", "cache/3/residual")
        store.identity()
        with store.lock():
            pass
    finally:
        os.umask(before)
    for path in [root, *root.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path.name


@pytest.mark.parametrize("bits", [0o710, 0o701, 0o755, 0o770])
def test_a_directory_open_to_others(store: Store, root: Path, bits: int) -> None:
    root.chmod(bits)
    with pytest.raises(StoreError, match="chmod 700") as caught:
        Store(root)
    assert str(root) not in str(caught.value)
    root.chmod(0o700)
    Store(root)


def test_a_link_or_a_file_in_its_place(store: Store, root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (link, file):
        with pytest.raises(StoreError, match="link or a file"):
            Store(path)


def test_a_directory_of_another_user(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"x")
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(StoreError, match="another user"):
        Store(root)
    with pytest.raises(StoreError, match="another user"):
        store.read("a")


def test_files_open_to_others_or_links_are_not_read(store: Store, root: Path) -> None:
    for name in ("a", "target"):
        store.write(name, b"x")
    (root / "a").chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        store.read("a")
    (root / "b").symlink_to(root / "target")
    (root / "sub").symlink_to("/tmp")
    os.mkfifo(root / "fifo", 0o600)
    for name in ("b", "sub/x", "fifo", "missing"):
        with pytest.raises(StoreError):
            store.read(name)
    with pytest.raises(StoreError, match="link inside"):
        store.write("sub/x", b"")
    assert str(root) not in repr(store)


def test_a_mapped_file_is_read_as_it_was(store: Store, root: Path) -> None:
    """A file that is replaced as a whole keeps its content for whoever has mapped it."""
    store.write("runs/1/model", b"one" * 9999)
    mapped = store.mapped("runs/1/model")
    store.write("runs/1/model", b"two")
    assert bytes(mapped) == b"one" * 9999
    assert bytes(store.mapped("runs/1/model")) == b"two"
    store.write("empty", b"")
    assert bytes(store.mapped("empty")) == b""
    with pytest.raises(TypeError):
        mapped[0] = 1
    (root / "empty").chmod(0o640)
    for name in ("empty", "missing"):
        with pytest.raises(StoreError):
            store.mapped(name)


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


def test_what_is_written_is_flushed(store: Store) -> None:
    order = flushed(lambda: store.write("a", b"x"))
    assert order == ["file", "rename", "dir"]
    assert flushed(lambda: store.move("a", "b")) == ["rename", "dir"]


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


def test_a_moved_file_takes_the_others_place(store: Store, root: Path) -> None:
    store.write("a/draft", b"new")
    store.write("a/residual", b"old")
    store.move("a/draft", "a/residual")
    assert not store.exists("a/draft")
    with pytest.raises(StoreError) as caught:  # it is gone
        store.move("a/draft", "a/residual")
    assert str(root) not in str(caught.value)
    assert store.read("a/residual") == b"new"


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


@pytest.mark.parametrize("at", ["replace", "erase"])
def test_a_crash_while_secrets_are_replaced_loses_none(store: Store, at: str) -> None:
    """Once it was done, nothing of the secrets before is left."""
    store.write("keys", b"keys and a secret")
    with dying(files, at):
        store.replace_erasing("keys", b"keys alone")
    assert store.read("keys") in (b"keys and a secret", b"keys alone")
    store.replace_erasing("keys", b"keys alone")
    assert store.read("keys") == b"keys alone"
    left = [path.read_bytes() for path in store.root.iterdir()]
    assert at == "erase" or left == [b"keys alone"]
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


def test_secrets_that_could_not_be_replaced_are_never_swept(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a crash, leaves the older ones, perhaps under a second name."""
    store.write("keys", b"keys and a secret")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space"):
            store.replace_erasing("keys", b"keys alone")
    assert [path.name for path in root.iterdir()] == ["keys"]
    (root / ".0123456789abcdef").hardlink_to(root / "keys")
    monkeypatch.setattr(files, "UNFINISHED_S", -1.0)
    with store.lock():
        assert store.read("keys") == b"keys and a secret"
        assert not list(root.glob(".*"))


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
    before = os.umask(0)
    try:
        for i in range(7):
            store.append("log", b"%03d\n" % i, limit=12)  # three lines of four bytes
    finally:
        os.umask(before)
    assert store.read("log") == b"006\n"
    assert store.read("log.1") == b"003\n004\n005\n"
    assert sorted(p.name for p in root.iterdir()) == ["lock-log", "log", "log.1"]
    assert {mode(p) for p in root.iterdir()} == {0o600}
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


def test_a_log_is_a_file_of_ours(store: Store, root: Path, tmp_path: Path) -> None:

    (tmp_path / "target").write_bytes(b"")
    (root / "link").symlink_to(tmp_path / "target")
    os.mkfifo(root / "fifo", 0o600)
    (root / "open").touch(0o640)
    (root / "open").chmod(0o640)
    for name in ("link", "fifo", "open"):
        with pytest.raises(StoreError) as caught:
            store.append(name, b"x\n", limit=100)
        assert str(root) not in str(caught.value)
    assert (tmp_path / "target").read_bytes() == b""


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
