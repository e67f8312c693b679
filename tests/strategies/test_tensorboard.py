"""TensorBoard's event files say what the reports say: read back as TensorBoard reads them."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe.strategies import tensorboard
from flhe.strategies.overhead import KEYS, TRAIN, UPLOAD, Phase
from flhe.strategies.report import RoundReport
from flhe.strategies.tensorboard import TensorBoard

PHASES = (
    Phase(KEYS, 0.25, 30, 40, 1 << 28),
    Phase(TRAIN, 2.5, 0, 1 << 20, 1 << 29),
    Phase(UPLOAD, 0.5, 1 << 22, 0, None),
)
FULL = RoundReport(
    3, 0.75, 0.5, 30 + (1 << 22), 40 + (1 << 20), 0.125, 3.0, 4, 3.25, 1 << 29, 1 << 27, PHASES
)
BARE = RoundReport(1, None, None, 8, 16, 0.0, 1.5, 3)


def written(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of each scalar: TFRecords of Event messages, checksums skipped."""
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted(folder.glob("events.out.tfevents.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes meanwhile, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


BARE_READ = {
    "overhead/round_s": 1.5,
    "overhead/wall_s": 0.0,
    "overhead/crypto_s": 0.0,
    "overhead/bytes_up": 8,
    "overhead/bytes_down": 16,
    "overhead/survivors": 3,
}
FULL_READ = {
    "accuracy": 0.75,
    "loss": 0.5,
    "overhead/round_s": 3.0,
    "overhead/wall_s": 3.25,
    "overhead/crypto_s": 0.125,
    "overhead/bytes_up": pytest.approx(30 + (1 << 22)),
    "overhead/bytes_down": pytest.approx(40 + (1 << 20)),
    "overhead/survivors": 4,
    **{
        f"overhead/{phase.name}/{name}": getattr(phase, name)
        for phase in PHASES
        for name in ("seconds", "bytes_up", "bytes_down")
    },
    "memory/keys/server_bytes": 1 << 28,
    "memory/train/server_bytes": 1 << 29,
    "memory/server_bytes": 1 << 29,
    "memory/nodes_bytes": 1 << 27,
}


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_report_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "new" / "board"
    with TensorBoard(folder) as board:
        board.round(BARE)
        found = list(written(folder))  # while the run goes on
        assert {step for _, step, _ in found} == {1}
        board.round(FULL)
    found = list(written(folder))
    assert {tag: value for tag, step, value in found if step == 1} == BARE_READ
    assert {tag: value for tag, step, value in found if step == 3} == FULL_READ


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "NEEDS", "no_such_module")
    with pytest.raises(ConfigError, match=r"no_such_module; .*pip install 'tensorboardX>="):
        TensorBoard("anywhere")


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a directory that is yours"):
        TensorBoard(tmp_path / "file" / "board")


def test_a_disk_that_fills_up_costs_rounds_of_the_board_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING, "flwr"):
        with TensorBoard(tmp_path) as board:
            board.round(BARE)
            (file,) = tmp_path.iterdir()
            with files_end_at(file.stat().st_size + 5):
                for number in range(2, 30):  # more than the writer buffers
                    board.round(replace(FULL, round=number))
            board.round(replace(FULL, round=30))
        steps = {step for _, step, _ in written(tmp_path)}  # no record is there in part
        assert {1, 30} <= steps
        assert len(steps) < 10
        board = TensorBoard(tmp_path / "other")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(KeyError, match="the reason"), board:
            raise KeyError("the reason")
        board._writer._py_recordio_writer.close()
    said = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(said) == 2  # once for each board
    assert "(File too large): the run goes on" in said[0]


def test_a_disk_that_is_full_at_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_file_writer = pytest.importorskip("tensorboardX.event_file_writer")
    writers: list[Any] = []
    made = event_file_writer.EventsWriter
    monkeypatch.setattr(
        event_file_writer, "EventsWriter", lambda *how: writers.append(made(*how)) or writers[0]
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"\(No space left on device\): name a directory"):
        TensorBoard(tmp_path)
    writers[0]._py_recordio_writer.close()
