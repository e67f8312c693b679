"""Bytes are counted once, reports arrive one line at a time."""

from __future__ import annotations

import errno
import io
import json
import logging
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flhe.strategies.overhead import Phase
from flhe.strategies.report import Reporter, RoundReport, message_bytes
from tests.strategies.test_tensorboard import files_end_at

ZEROS = Array(np.zeros(4, np.float32))
SIZE = len(ZEROS.data)  # NumPy's header included: that is what travels
REPORT = RoundReport(1, 0.9, None, 10, 20, 0.0, 1.5, 3)


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
