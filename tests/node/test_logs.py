"""Logs in the state directory: whole lines, of which none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError, StoreError
from flhe.node.store import Store
from tests.node.disk import flushed, mode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


def test_append_and_sweep(store: Store, root: Path) -> None:
    store.append("log", b"one\n", limit=100)
    store.append("log", b"two\n", limit=100)
    assert store.read("log") == b"one\ntwo\n"
    store.append("log", b"x" * 95, limit=100)
    assert store.read("log") == b"x" * 95
    os.mkfifo(root / "fifo")
    with pytest.raises(StoreError):
        store.append("fifo", b"x", limit=10)
    left = root / ".0123456789abcdef"
    left.write_bytes(b"half a key")
    with store.lock():
        assert left.exists()  # somebody may be at it
    os.utime(left, (0, 0))
    with store.lock():
        assert not left.exists()


def test_a_full_log_is_put_aside_once(store: Store, root: Path) -> None:
    before = os.umask(0)
    try:
        for i in range(7):
            store.append_line("log", b"%03d" % i, limit=12)  # three lines of four bytes
    finally:
        os.umask(before)
    assert store.read("log") == b"006\n"
    assert store.read("log.1") == b"003\n004\n005\n"
    assert sorted(p.name for p in root.iterdir()) == ["lock-log", "log", "log.1"]
    assert {mode(p) for p in root.iterdir()} == {0o600}
    store.append_line("log", b"x" * 50, limit=12)  # a line is never cut
    assert store.read("log") == b"x" * 50 + b"\n"
    assert store.read("log.1") == b"006\n"


def test_a_line_is_one_write_without_a_flush(store: Store, root: Path, monkeypatch: Any) -> None:
    """One that was torn does not swallow the next."""
    written: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda h, data: (written.append(data), write(h, data))[1])
    assert flushed(lambda: store.append_line("log", b"one", limit=100)) == []
    assert written == [b"one\n"]
    with (root / "log").open("ab") as file:
        file.write(b"tw")
    store.append_line("log", b"three", limit=100)
    store.append_line("log", b"four", limit=100)
    assert store.read("log") == b"one\ntw\nthree\nfour\n"


def test_a_line_that_does_not_fit_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append_line("log", b"one", limit=100)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:2]))
        with pytest.raises(StoreError, match="disk space"):
            store.append_line("log", b"two", limit=100)

    def full(_handle: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device", "/secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left") as caught:
            store.append_line("log", b"two", limit=100)
    assert "secret" not in str(caught.value)
    store.append_line("log", b"three", limit=100)
    assert store.read("log") == b"one\nthree\n"


def test_a_line_is_one_line_in_a_file_of_ours(
    store: Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in (b"a\nb", b"a\n"):
        with pytest.raises(ConfigError, match="line feed"):
            store.append_line("log", line, limit=100)
    for name in ("../x", "lock-log", "used/x"):
        with pytest.raises(ConfigError):
            store.append_line(name, b"x", limit=100)
    (tmp_path / "target").write_bytes(b"")
    (root / "link").symlink_to(tmp_path / "target")
    os.mkfifo(root / "fifo", 0o600)
    (root / "open").touch(0o640)
    (root / "open").chmod(0o640)
    (root / "folder").mkdir(0o700)
    for name in ("link", "fifo", "open", "folder", "missing/log"):
        with pytest.raises(StoreError) as caught:
            store.append_line(name, b"x", limit=100)
        assert str(root) not in str(caught.value)
    assert (tmp_path / "target").read_bytes() == b""
    store.append_line("log", b"x", limit=100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
        with pytest.raises(StoreError, match="another user"):
            store.append_line("log", b"x", limit=100)


def test_no_line_of_many_writers_is_lost_or_cut(root: Path) -> None:
    """Two processes and two threads, and one of them rotates: none loses what another put aside."""
    Store(root)
    code = (
        "import sys; from flhe.node.store import Store\n"
        "store, first = Store(sys.argv[1]), int(sys.argv[2])\n"
        "for i in range(first, first + 100): store.append_line('log', b'%04d' % i * 10, 10_000)"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(root), str(first)]) for first in (0, 100)
    ]

    def work(first: int) -> None:
        for i in range(first, first + 100):
            Store(root).append_line("log", b"%04d" % i * 10, 10_000)

    threads = [threading.Thread(target=work, args=(first,)) for first in (200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]
    older, newer = Store(root).read("log.1"), Store(root).read("log")
    assert 10_000 - 41 < len(older) <= 10_000
    assert sorted((older + newer).splitlines()) == [b"%04d" % i * 10 for i in range(400)]


def test_a_log_whose_turn_never_comes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flhe.node.store._PATIENCE", 0.1)
    with store.lock(name="lock-log"), pytest.raises(StoreError, match="another process"):
        store.append_line("log", b"x", limit=100)
    with store.lock(name="lock-7"):  # that of a run does not exclude it
        store.append_line("log", b"x", limit=100)
