"""Reports as TensorBoard's event files, during a run.

Written with tensorboardX, which needs only Flower's own dependencies: TensorBoard's own writer
comes with its web server, and PyTorch's with both. The files are the same, and any TensorBoard
shows them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from flhe.errors import ConfigError
from flhe.packages import install_hint
from flhe.strategies.report import Outlet, RoundReport

NEEDS = "tensorboardX"


def check() -> None:
    """Raise ConfigError if the writer is missing."""
    if find_spec(NEEDS) is None:
        raise ConfigError(
            f"tensorboard needs the [tensorboard] extra, missing: {NEEDS}; "
            f"install it: {install_hint('tensorboard')}"
        )


def scalars(report: RoundReport) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each number in a report; unknown ones are left out.

    TensorBoard keeps 24 bits of a number: exact bytes are in the report itself.
    """
    for name in ("accuracy", "loss"):
        if (value := getattr(report, name)) is not None:
            yield name, value
    for name in ("round_s", "wall_s", "crypto_s", "bytes_up", "bytes_down", "survivors"):
        yield f"overhead/{name}", getattr(report, name)
    for phase in report.phases:
        for name in ("seconds", "bytes_up", "bytes_down"):
            yield f"overhead/{phase.name}/{name}", getattr(phase, name)
        if phase.server_bytes is not None:
            yield f"memory/{phase.name}/server_bytes", phase.server_bytes
    if report.epsilon is not None:
        yield "privacy/epsilon", report.epsilon
    for name in ("server_bytes", "nodes_bytes"):
        if (value := getattr(report, name)) is not None:
            yield f"memory/{name}", value


class TensorBoard:
    """Writes each round's report into a directory of event files; `round` fits a strategy's `on_round`.

    Raises ConfigError: the [tensorboard] extra is missing, or the directory cannot be written.
    Later rounds that do not fit on the disk are lost with a warning: see
    `flhe.strategies.report.Outlet`.

    Parameters
    ----------
    folder : str or Path
        The directory; created if missing. A resumed run writes one more file there.
    """

    def __init__(self, folder: str | Path) -> None:
        check()
        from tensorboardX.event_file_writer import EventsWriter

        folder = Path(folder)
        self._outlet = Outlet(f"tensorboard={str(folder)!r}", "name a directory that is yours")
        with self._outlet.writing():
            folder.mkdir(parents=True, exist_ok=True)
            # Two runs may begin in the same second, the only difference in the default name.
            self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
            self._writer.flush()  # its first record: a full disk is reported now, not after a round

    def round(self, report: RoundReport) -> None:
        """Write a finished round's numbers; they are on disk on return."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(report)]
        event = Event(wall_time=time.time(), step=report.round, summary=Summary(value=values))
        with self._outlet.writing():
            if self._outlet.failed:  # buffered data goes first, so no record is cut
                self._writer.flush()
            self._writer.write_event(event)
            self._writer.flush()  # SummaryWriter's own would leave that to a thread, and return

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        with self._outlet.writing():  # it must not replace an earlier error
            self._writer.close()
