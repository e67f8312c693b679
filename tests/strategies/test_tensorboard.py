"""TensorBoard's event files say what the reports say: read back as TensorBoard reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

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
    3, 0.75, 0.5, 30 + (1 << 22), 40 + (1 << 20), 0.125, 3.0, 4, 2.5, 3.25, 1 << 29, 1 << 27, PHASES
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


def test_a_report_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorBoard(tmp_path / "new" / "board") as board:
        board.round(BARE)
        found = list(written(tmp_path / "new" / "board"))  # while the run goes on
        assert {step for _, step, _ in found} == {1}
        board.round(FULL)
    found = list(written(tmp_path / "new" / "board"))
    assert {tag: value for tag, step, value in found if step == 1} == {
        "overhead/round_s": 1.5,
        "overhead/wall_s": 0.0,
        "overhead/crypto_s": 0.0,
        "overhead/bytes_up": 8,
        "overhead/bytes_down": 16,
        "overhead/survivors": 3,
    }
    assert {tag: value for tag, step, value in found if step == 3} == {
        "accuracy": 0.75,
        "loss": 0.5,
        "epsilon": 2.5,
        "overhead/round_s": 3.0,
        "overhead/wall_s": 3.25,
        "overhead/crypto_s": 0.125,
        "overhead/bytes_up": pytest.approx(30 + (1 << 22)),
        "overhead/bytes_down": pytest.approx(40 + (1 << 20)),
        "overhead/survivors": 4,
        "overhead/keys/seconds": 0.25,
        "overhead/keys/bytes_up": 30,
        "overhead/keys/bytes_down": 40,
        "overhead/train/seconds": 2.5,
        "overhead/train/bytes_up": 0,
        "overhead/train/bytes_down": 1 << 20,
        "overhead/upload/seconds": 0.5,
        "overhead/upload/bytes_up": 1 << 22,
        "overhead/upload/bytes_down": 0,
        "memory/keys/server_bytes": 1 << 28,
        "memory/train/server_bytes": 1 << 29,
        "memory/server_bytes": 1 << 29,
        "memory/nodes_bytes": 1 << 27,
    }


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "NEEDS", "no_such_module")
    with pytest.raises(ConfigError, match=r"no_such_module; .*pip install 'flhe\[tensorboard\]'"):
        TensorBoard("anywhere")


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a directory that is yours"):
        TensorBoard(tmp_path / "file" / "board")
