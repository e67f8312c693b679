"""What a round cost and what it reached: counted once, written as one JSON line per event.

Bytes are payload: the data of arrays and the values of config and metric records. Flower's own
framing (headers, chunk hashes, record names) is left out, for every scheme alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from flhe.errors import ConfigError
from flhe.records import message_bytes


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

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, in the order of the fields."""
        return asdict(self)


def scalar(metrics: MetricRecord | None, key: str) -> float | None:
    """One metric as a number, or None where it was not told."""
    value = None if metrics is None else metrics.get(key)
    return float(value) if isinstance(value, (int, float)) else None


class Reporter:
    """Appends one JSON line per event to a file, flushed at once; None writes nothing."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path else None

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
        self.emit("round", **report.to_json())


class Traffic(NamedTuple):
    """Payload bytes from the nodes and to the nodes."""

    up: int
    down: int


class MeteredGrid(Grid):
    """A Grid that counts the payload passing through it; all else is the grid it wraps."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._up = 0
        self._down = 0

    def take(self) -> Traffic:
        """Return what was counted since the last call, and start again from zero."""
        taken = Traffic(self._up, self._down)
        self._up = self._down = 0
        return taken

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, counting each node's copy."""
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages, counting the replies that carry content."""
        return self._received(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and receive, counting both ways."""
        return self._received(self._grid.send_and_receive(self._sent(messages), timeout=timeout))

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)  # a list: the HTTP grid iterates twice
        self._down += sum(message_bytes(message.content) for message in sent)
        return sent

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        received = list(replies)
        self._up += sum(message_bytes(r.content) for r in received if not r.has_error())
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
