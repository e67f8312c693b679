"""Private files: what a write that fails leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from flhe.errors import StoreError
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
