"""What a round cost and what it reached: counted once, written as one JSON line per event.

Bytes are payload: the data of arrays and the values of config and metric records. Flower's own
framing (headers, chunk hashes, record names) is left out, for every scheme alike. The file can be
followed while the run goes on; its format is in docs/deploy.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from flhe.errors import ConfigError
from flhe.records import message_bytes
from flhe.strategies.overhead import Meter, Phase, Spent, phase_of

VERSION = 1
"""Of the report's format, in its first event; a field that is new does not change it."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round, as the server saw it.

    Parameters
    ----------
    round : int
        Number of the round, from 1.
    accuracy, loss : float or None
        Federated evaluation of the round's model; None when no node reported it.
    bytes_up, bytes_down : int
        Payload that all nodes together sent to the server, and received from it.
    crypto_s : float
        Seconds in cryptography: the slowest node's and the server's. 0.0 for plain FedAvg.
    round_s : float
        Wall-clock seconds from the first message to the last metric.
    survivors : int
        Nodes whose update is in the round's model.
    epsilon : float or None
        What noise is worth so far, against the server (`flhe.coding.epsilon`); None where nothing is
        guaranteed, or nothing of the kind was asked for.
    wall_s : float
        Wall-clock seconds since the report before, or since the start.
    server_bytes : int or None
        Most memory that the server's process was seen to hold in that time; None where the system
        does not tell.
    nodes_bytes : int or None
        Most memory that a process which runs nodes has held so far: in a simulation, by whoever
        looks from outside. Nodes tell nothing of the kind.
    phases : tuple of Phase
        Where time and bytes went: their seconds add up to `wall_s`, their bytes to `bytes_up` and
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
    epsilon: float | None = None
    wall_s: float = 0.0
    server_bytes: int | None = None
    nodes_bytes: int | None = None
    phases: tuple[Phase, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, in the order of the fields."""
        return asdict(self)


def scalar(metrics: MetricRecord | None, key: str) -> float | None:
    """One metric as a number, or None where it was not told."""
    value = None if metrics is None else metrics.get(key)
    return float(value) if isinstance(value, (int, float)) else None


OnRound = Callable[[RoundReport], None]
"""What is to be done with the report of a finished round."""


class Reporter:
    """Appends one JSON line per event to a file, flushed at once; None writes nothing.

    Parameters
    ----------
    path : str or Path or None
        The file.
    nodes_memory : callable, optional
        () -> `nodes_bytes` of a round's report, by whoever sees the nodes' processes from outside.
    """

    def __init__(
        self, path: str | Path | None, nodes_memory: Callable[[], int | None] = lambda: None
    ) -> None:
        self._path = Path(path) if path else None
        self._nodes_memory = nodes_memory
        self.also: list[OnRound] = []
        """Those that receive each round's report as well."""

    def emit(self, event: str, **fields: Any) -> None:
        """Append `{"event": event, **fields}`."""
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **fields}) + "\n")
        except OSError as error:
            raise ConfigError(
                f"report={str(self._path)!r} cannot be written ({error.strerror}): "
                "name a file in a directory that exists and is yours"
            ) from error

    def round(self, report: RoundReport) -> None:
        """Append a finished round. Fits a strategy's `on_round`."""
        report = replace(report, nodes_bytes=self._nodes_memory())
        self.emit("round", **report.to_json())
        for receive in self.also:
            receive(report)


class MeteredGrid(Grid):
    """A Grid that counts the payload passing through it; all else is the grid it wraps."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.meter = Meter()

    def take(self) -> Spent:
        """Return what was counted since the last call, and start again from zero."""
        return self.meter.take()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, counting each node's copy."""
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages, counting the replies that carry content, and the seconds that they took."""
        began = time.perf_counter()
        pulled = list(self._grid.pull_messages(message_ids))
        return self._received(pulled, time.perf_counter() - began)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and receive, counting both ways; what the wait was and what the fetching is one."""
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
        """Ids of the nodes that the wrapped grid reaches."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Nodes that the wrapped grid reaches."""
        return self._grid.get_nodes()
