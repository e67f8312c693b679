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

import pytest

from flhe.strategies.report import RoundReport
from flhe.strategies.tensorboard import TensorBoard

REPORT = RoundReport(1, 0.75, 0.5, 8, 16, 0.125, 3.0, 4, 3.25, 1 << 29)


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


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_costs_rounds_of_the_board_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING, "flwr"):
        with TensorBoard(tmp_path) as board:
            board.round(REPORT)
            (file,) = tmp_path.iterdir()
            with files_end_at(file.stat().st_size + 5):
                for number in range(2, 30):  # more than the writer buffers
                    board.round(replace(REPORT, round=number))
            board.round(replace(REPORT, round=30))
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
