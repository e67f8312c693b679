"""Bytes are counted once, reports arrive one line at a time, and in TensorBoard's event files, too."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pathlib
import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flhe.strategies.overhead import Phase
from flhe.strategies.report import Reporter, RoundReport, message_bytes
from flhe.strategies.tensorboard import TensorBoard

ZEROS = Array(np.zeros(4, np.float32))
SIZE = len(ZEROS.data)  # NumPy's header included: that is what travels
REPORT = RoundReport(1, 0.9, None, 10, 20, 0.0, 1.5, 3)


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


def test_message_bytes_counts_payload_alone() -> None:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"w": ZEROS}),
            "sealed": ArrayRecord({"c": Array("uint8", (7,), "flhe.sealed/1", b"1234567")}),
            "config": ConfigRecord({"n": 1, "x": 0.5, "b": True, "s": "é", "raw": b"abc"}),
            "lists": ConfigRecord({"i": [1, 2, 3], "s": ["a", "bc"]}),
            "metrics": MetricRecord({"loss": 0.1, "each": [1.0, 2.0]}),
        }
    )
    assert message_bytes(content) == SIZE + 7 + (8 + 8 + 1 + 2 + 3) + (24 + 3) + (8 + 16)
    assert message_bytes(RecordDict()) == 0


def test_a_disk_that_fills_up_costs_lines_and_not_the_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> io.FileIO:
        raise OSError(errno.ENOSPC, "No space left on device")

    path, rounds = tmp_path / "report", list[int]()
    reporter = Reporter(path)
    reporter.also.append(lambda report: rounds.append(report.round))
    reporter.emit("start")
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "propagate", True)
    with caplog.at_level(logging.WARNING, "flwr"):
        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, "open", full)
            for number in (1, 2, 3):
                reporter.round(replace(REPORT, round=number))
        reporter.emit("done")
    assert rounds == [1, 2, 3]
    (said,) = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert "(No space left on device): the run goes on" in said
    assert path.read_text() == '{"event": "start"}\n{"event": "done"}\n'


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report"
    reporter = Reporter(path)
    reporter.emit("start")
    with files_end_at(path.stat().st_size + 5):
        reporter.emit("joined")
    reporter.emit("done")
    assert path.read_text() == '{"event": "start"}\n{"event": "done"}\n'


def test_numbers_that_are_not_finite_are_null(tmp_path: pathlib.Path) -> None:
    path, wild = tmp_path / "report", float("nan")
    reporter = Reporter(path)
    phases = (Phase("train", float("inf"), 1, 2, None),)
    reporter.round(replace(REPORT, accuracy=wild, loss=-float("inf"), phases=phases))
    reporter.emit("done", ending={"wall_s": wild, "each": [1.5, wild]}, error="NaN")
    first, last = (
        json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()
    )
    assert (first["accuracy"], first["loss"], first["phases"][0]["seconds"]) == (None,) * 3
    assert (first["round_s"], first["phases"][0]["bytes_down"]) == (1.5, 2)
    assert last["ending"] == {"wall_s": None, "each": [1.5, None]}
    assert last["error"] == "NaN"


# --- TensorBoard ---


def written(folder: pathlib.Path) -> Iterator[tuple[str, int, float]]:
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


def no_room(_handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_costs_rounds_of_the_board_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        monkeypatch.setattr(os, "fsync", no_room)
        with pytest.raises(KeyError, match="the reason"), board:
            raise KeyError("the reason")
        board._writer._py_recordio_writer.close()
    said = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(said) == 2  # once for each board
    assert "(File too large): the run goes on" in said[0]
