"""What becomes of files on a disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


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
