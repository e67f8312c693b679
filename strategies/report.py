"""Costs and results of a round: counted once, written as one JSON line per event.

Bytes are payload: the data of arrays and the values of config and metric records. Flower's own
framing (headers, chunk hashes, record names) is left out, for every scheme alike. Readers can
follow the file during the run; docs/how-to/watch-costs.md describes
its format.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from flhe.errors import ConfigError
from flhe.mods.records import message_bytes
from flhe.strategies.overhead import Meter, Phase, Spent, nodes_memory, phase_of
from flhe.strategies.trouble import log
from flhe.training import update

PREFIXES = ("eval", "val", "test")
"""Prefixes of evaluation metrics' names."""

VERSION = 1
"""Version of the report's format, in its first event; new fields do not change it."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round, from the server's view.

    Parameters
    ----------
    round : int
        Number of the round, from 1.
    accuracy, loss : float or None
        Federated evaluation of the round's model; None if no node reported it.
    bytes_up, bytes_down : int
        Payload that all nodes together sent to the server, and received from it.
    crypto_s : float
        Cost of encryption: seconds of the slowest node besides its app's, and of the server's adding
        and opening. 0.0 for plain FedAvg.
    round_s : float
        Wall-clock seconds from the first message to the last metric.
    survivors : int
        Nodes whose update is in the round's model.
    wall_s : float
        Wall-clock seconds since the report before, or since the start.
    server_bytes : int or None
        Maximum memory of the server's process in that time; None if the system
        does not report it.
    nodes_bytes : int or None
        Maximum memory so far of a process that runs nodes, in a simulation.
    epsilon, delta : float or None
        Privacy loss of the sums so far, without failed attempts; None without differential
        privacy.
    phases : tuple of Phase
        Costs by phase: their seconds add up to `wall_s`, their bytes to `bytes_up` and
        `bytes_down`. See `flhe.strategies.overhead.PHASES`.
    """

    round: int
    accuracy: float | None
    loss: float | None
    bytes_up: int
    bytes_down: int
    crypto_s: float
    round_s: float
    survivors: int
    wall_s: float = 0.0
    server_bytes: int | None = None
    nodes_bytes: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    phases: tuple[Phase, ...] = ()

    @classmethod
    def of(cls, round_: int, spent: Spent, **own: Any) -> RoundReport:
        """Return the report of a round from its costs, and the fields in `own`."""
        return cls(
            round=round_,
            accuracy=None,
            loss=None,
            bytes_up=spent.up,
            bytes_down=spent.down,
            wall_s=spent.wall_s,
            server_bytes=spent.server_bytes,
            phases=spent.phases,
            **own,
        )

    def told(self, metrics: MetricRecord | None) -> RoundReport:
        """Return the report with the results of an evaluation."""
        accuracy, loss = scalar(metrics, "accuracy", "acc"), scalar(metrics, "loss")
        return replace(self, accuracy=accuracy, loss=loss)


def finite(value: Any) -> Any:
    """Return a value with None for each number that is not finite: JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value


def scalar(metrics: MetricRecord | None, *names: str) -> float | None:
    """Return one metric as a number, or None if it was not reported.

    The first present one of `names` counts, by itself or as Flower's apps call it: `eval_acc`.
    """
    for name in names:
        for key in (name, *(f"{prefix}{dash}{name}" for prefix in PREFIXES for dash in "_-")):
            value = None if metrics is None else metrics.get(key)
            if isinstance(value, (int, float)):
                return float(value)
    return None


OnRound = Callable[[RoundReport], None]
"""Receiver of a finished round's report."""


_WARN = partial(log, WARNING, "%s")


class Outlet:
    """An output during a run whose failure must not stop it.

    If the first write fails, the output is misconfigured and raises. If a later one fails, as on a
    full disk, the output is lost: this is logged once, and the run goes on.

    Parameters
    ----------
    name : str
        Its name for the user.
    mend : str
        Remedy for a wrong one.
    warn : callable, optional
        Receives that one warning; by default Flower's log.
    """

    def __init__(self, name: str, mend: str, warn: Callable[[str], None] = _WARN) -> None:
        self._name, self._mend, self._warn = name, mend, warn
        self._took = False
        self.failed = False
        """Whether a write has failed after earlier ones succeeded."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in this context; ConfigError if no write ever succeeded."""
        try:
            yield
        except OSError as error:
            text = f"{self._name} cannot be written ({error.strerror})"
            if not self._took:
                raise ConfigError(f"{text}: {self._mend}") from error
            if not self.failed:
                self._warn(f"{text}: the run goes on, lines or rounds will be missing there")
            self.failed = True
        else:
            self._took = True


class Lines(Outlet):
    """A text file that grows by whole lines; see `Outlet`."""

    def __init__(self, path: Path, name: str, warn: Callable[[str], None] = _WARN) -> None:
        super().__init__(name, "name a file in a directory that exists and is yours", warn)
        self._path = path

    def append(self, line: str) -> None:
        """Add a line, completely or not at all."""
        data = line.encode() + b"\n"
        with self.writing(), self._path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if file.write(data) < len(data):  # the disk was full within the line
                with suppress(OSError):  # a special file cannot be truncated
                    file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Reporter:
    """Appends one JSON line per event to a file, flushed at once; None writes nothing.

    The first event raises ConfigError if the file cannot be written; a later one is lost with a
    warning, as in `Outlet`.

    Parameters
    ----------
    path : str or Path or None
        The file.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._lines = Lines(Path(path), f"report={str(path)!r}") if path else None
        self.also: list[OnRound] = []
        """Further receivers of each round's report."""

    def emit(self, event: str, **fields: Any) -> None:
        """Append `{"event": event, **fields}`; numbers that are not finite as null."""
        if self._lines is not None:
            fields = finite(fields)
            self._lines.append(json.dumps({"event": event, **fields}, allow_nan=False))

    def round(self, report: RoundReport) -> None:
        """Append a finished round. Fits a strategy's `on_round`."""
        report = replace(report, nodes_bytes=nodes_memory())
        self.emit("round", **asdict(report))
        for receive in self.also:
            receive(report)


class MeteredGrid(Grid):
    """A Grid that counts the payload passing through it; all else is the grid it wraps."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.meter = Meter()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, counting each node's copy."""
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages; count the replies that carry content, and the seconds of pulling."""
        began = time.perf_counter()
        pulled = list(self._grid.pull_messages(message_ids))
        return self._received(pulled, time.perf_counter() - began)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and receive, counting both ways; waiting and fetching count as one."""
        sent = list(messages)
        request = self.meter.open(phase_of(sent[0])) if sent else 0
        try:
            return self._received(self._grid.send_and_receive(self._sent(sent), timeout=timeout))
        finally:
            self.meter.close(request)

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)  # a list: the HTTP grid iterates twice
        for message in sent:
            self.meter.sent(phase_of(message), message_bytes(message.content))
        return sent

    def _received(self, replies: Iterable[Message], seconds: float = 0.0) -> list[Message]:
        received = list(replies)
        if received:
            told = sum(message_bytes(r.content) for r in received if not r.has_error())
            self.meter.received(told, seconds)
        return received

    def set_run(self, run: Any) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Create a message on the wrapped grid."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that the wrapped grid reaches."""
        return self._grid.get_node_ids()


def means_of(told: MetricRecord, names: Iterable[str]) -> MetricRecord:
    """Return the finite means of these names, and no other of a node's words."""
    found = {name: v for name in names if isinstance(v := told.get(name), float)}
    return MetricRecord(dict(update.finite(found)))
