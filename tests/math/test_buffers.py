"""Buffers: a file's pages leave memory, and come back with what they held."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from flhe.math.buffers import LARGE, SMALL, give_back, let_go
from flhe.strategies.overhead import resident
from flhe.wire import files

SIZE = 48 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    name = tmp_path / "large"
    files.replace(name, [np.arange(SIZE // 4, dtype=np.uint32).data])
    return name


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident")
@pytest.mark.parametrize("at", [0, 4, 5000, mmap.PAGESIZE])
def test_an_array_over_a_file_leaves_memory_and_comes_back(path: Path, at: int) -> None:
    array = np.frombuffer(files.mapped(path), np.uint32, offset=at)
    total, held = int(array.sum(dtype=np.uint64)), resident()
    let_go(array[1:].view(np.int32).reshape(-1, 1)[:-1])  # a view of a view, neither end on a page
    assert held - resident() > SIZE - (1 << 20)
    assert int(array.sum(dtype=np.uint64)) == total


def test_other_arrays_stay_as_they_are(path: Path) -> None:
    for array in (
        np.arange(SMALL),
        np.frombuffer(path.read_bytes(), np.uint32),
        np.frombuffer(bytearray(SMALL), np.uint8),
        np.frombuffer(files.mapped(path), np.uint32, 100),
        np.empty(0, np.float32),
    ):
        before = array.copy()
        let_go(array)
        np.testing.assert_array_equal(array, before)


def test_what_was_written_to_a_mapping_stays(path: Path) -> None:
    array = np.memmap(path, np.uint32, "c")
    array[7] = 99
    let_go(array)
    let_go(np.frombuffer(files.mapped(path), np.uint32)[::-1])
    assert array[7] == 99


def test_only_much_is_worth_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("gc.collect", lambda: done.append("collected"))
    give_back(LARGE - 1)
    assert not done
    give_back(LARGE)
    assert done == ["collected"]
