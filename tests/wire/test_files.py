"""Private files: what a write that fails leaves behind."""

from __future__ import annotations

import fcntl
import itertools
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from flhe.errors import ConfigError, StoreError
from flhe.provision.site.layout import Layout
from flhe.wire import files


def test_a_file_that_cannot_be_written_whole_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the place, and another attempt makes the file."""

    fsync = os.fsync

    def full(_: int) -> NoReturn:
        patch.setattr(os, "fsync", fsync)  # zeros find their room
        raise OSError(28, "No space left on device")

    path, where = tmp_path / "key", "the directory of --out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=rf"^cannot write in {where}: No space left"):
            files.create(path, b"secret", where)
    assert not list(tmp_path.iterdir())
    assert files.create(path, b"secret", where)
    assert not files.create(path, b"another", where)
    assert path.read_bytes() == b"secret"


def test_nobody_waits_for_ever_for_a_file_that_another_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slept = tmp_path / "entry", list[float]()
    path.write_bytes(b"before")
    path.chmod(0o600)
    other = os.open(path, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    ticks = itertools.count(step=files.PATIENCE_S / 3)
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=slept.append)
    with monkeypatch.context() as patch:
        patch.setattr(files, "time", clock)
        with pytest.raises(StoreError, match="another process has held the place for 30 s"):
            files.exchange(path, lambda _: b"after", "the place", create=False)
    assert slept
    assert path.read_bytes() == b"before"
    os.close(other)
    files.exchange(path, lambda _: b"after", "the place", create=False)
    assert path.read_bytes() == b"after"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where nobody wrote the user down."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for act in (files.home, lambda: Layout.of("site")):
        with pytest.raises(ConfigError, match="set HOME to a directory"):
            act()
