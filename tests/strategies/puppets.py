"""A federation whose nodes and whose relay do what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flhe.mods import HEMod, records
from flhe.testing import InProcessGrid
from flhe.training.model import Model

Fate = Literal["dead", "silent"] | None
Arrays = dict[str, NDArray[Any]]

COUNTS = (40, 10, 25, 60, 5, 33)
"""Example counts of the nodes, by partition id."""

RATE = 0.25


def start_arrays() -> Arrays:
    """The model that training starts from."""
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(0, 0.5, (9, 7)).astype(np.float32),
        "scale": np.array(0.5, np.float32),
        "half": np.array([0.25, -0.5], np.float16),
        "double": np.array([[1.5]], np.float64),
        "steps": np.array(3, np.int64),
        "seen": np.array([7, 0], np.int32),
        "empty": np.empty((0, 3), np.float32),
    }


def trained(arrays: Mapping[str, NDArray[Any]], partition: int) -> Arrays:
    """What a node makes of a model: a step towards a place of its own."""
    out: Arrays = {}
    for i, (name, array) in enumerate(arrays.items()):
        if array.dtype.kind == "f":
            place = np.cos(np.arange(array.size) + 3 * partition + i).reshape(array.shape)
            wide = array.astype(np.float64)
            out[name] = np.asarray(wide + RATE * (place - wide), array.dtype)
        else:
            out[name] = np.asarray(array + 1 + partition, array.dtype)
    return out


class Busy:
    """How many nodes work at the moment, over all grids."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self, change: int) -> None:
        with self._lock:
            self.count += change


BUSY = Busy()


class Clock:
    """Time for StreamGrid: it leaps while nobody works, so that waiting for the silent is quick."""

    def __init__(self) -> None:
        self._leapt = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._leapt

    def sleep(self, seconds: float) -> None:
        if BUSY.count:
            time.sleep(min(seconds, 0.002))
        else:
            self._leapt += seconds


class Node(ClientApp):
    """The app of every node; `examples` and `metrics` say what a partition tells."""

    def __init__(self, *mods: Any) -> None:
        super().__init__(mods=list(mods))
        self.examples: Callable[[int], Any] = COUNTS.__getitem__
        self.metrics: Callable[[int], Mapping[str, float]] = lambda p: {"train_loss": 1.0 + p}
        self.evaluated: Callable[[int], Mapping[str, Any]] = lambda p: {"loss": 0.5 + p}
        self.trained = trained
        self.ran: list[tuple[str, int]] = []
        self.configs: list[Mapping[str, Any]] = []

        @self.train()
        def _train(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            self.ran.append(("train", partition))
            self.configs.append(dict(message.content["config"]))
            arrays = records.to_numpy(message.content["arrays"])  # type: ignore[arg-type]
            told = {"num-examples": self.examples(partition), **self.metrics(partition)}
            content = RecordDict({"metrics": MetricRecord(told)})
            content["arrays"] = records.from_numpy(self.trained(arrays, partition))
            return Message(content, reply_to=message)

        @self.evaluate()
        def _evaluate(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            self.ran.append(("evaluate", partition))
            told = {"num-examples": self.examples(partition), **self.evaluated(partition)}
            return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


def new_node() -> Node:
    """The app with our mod."""
    return Node(HEMod())


class Puppets(InProcessGrid):
    """Nodes that die, fall silent or forge, as `fate` and `forge` say; keeps all that it carried."""

    def __init__(
        self,
        path: Path,
        nodes: int,
        app: ClientApp | None = None,
        *,
        run_id: int = 7,
        config: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.homes = [path / f"node-{i}" for i in range(nodes)]
        super().__init__(
            app or new_node(),
            nodes,
            run_id=run_id,
            node_config=lambda i: {
                "flhe-home": str(self.homes[i]),
                "flhe-trust": "first-use",
                "flhe-server-reads": True,
                **(config(i) if config else {}),
            },
        )
        self.fate: Callable[[int, str, int], Fate] = lambda node, stage, round_: None
        self.rewrite: Callable[[int, str, RecordDict], RecordDict] = lambda n, s, content: content
        self.forge: Callable[[int, str, Message], Message] = lambda node, stage, reply: reply
        self.sent: list[tuple[int, str, RecordDict]] = []
        self.replies: list[tuple[int, str, Message]] = []
        self._about: dict[str, tuple[int, str]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            stage = stage_of(message.content)
            record = records.find_config(message.content, records.STAGE)
            number = record.get("round", 0) if record else 0
            message.content = self.rewrite(node, stage, message.content)
            self.sent.append((node, stage, message.content))
            fate = self.fate(node, stage, number if isinstance(number, int) else 0)
            self.dead = {node} if fate == "dead" else set()
            self.silent = {node} if fate == "silent" else set()
            self._about[f"{self._count + 1:064x}"] = (node, stage)
            if fate is None:
                BUSY.add(1)
            ids += super().push_messages([message])
        return ids

    def _work(self, *args: Any) -> None:
        try:
            super()._work(*args)
        finally:
            BUSY.add(-1)

    def send_and_receive(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this one waits for everyone")

    def _put(self, message_id: str, reply: Message) -> None:
        node, stage = self._about[message_id]
        reply = self.forge(node, stage, reply)
        self.replies.append((node, stage, reply))
        super()._put(message_id, reply)

    def model(self, index: int) -> Model:
        """The model on a node's disk."""
        return Model.from_bytes((self.run_dir(index) / "model").read_bytes())

    def run_dir(self, index: int) -> Path:
        """A node's directory of this run."""
        return self.homes[index] / "runs" / str(self._run.run_id)

    def stages(self, stage: str) -> list[int]:
        """Nodes that a stage was sent to, in order."""
        return [node for node, name, _ in self.sent if name == stage]


def stage_of(content: RecordDict) -> str:
    """The stage that a message asks for."""
    record = records.find_config(content, records.STAGE)
    return str(record["stage"]) if record else "plain"


def initial() -> ArrayRecord:
    """The start arrays, for a strategy."""
    return records.from_numpy(start_arrays())


class Reference:
    """Flower's FedAvg in float64, integers by the weighted mean of their changes."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self.weights = weights
        self.arrays: Arrays = start_arrays()
        self.masters: Arrays = {
            n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in self.arrays.items()
        }

    def round(self, partitions: Iterable[int], model: Arrays | None = None) -> None:
        """One round over those partitions."""
        present = list(partitions)
        weight = sum(self.weights[p] for p in present)
        after = {p: trained(self.arrays, p) for p in present}
        for name, old in self.masters.items():
            changes = [self.weights[p] * (after[p][name] - old) for p in present]
            mean = sum(changes) / weight
            if old.dtype.kind == "f":
                self.masters[name] = np.asarray(old + mean)
            else:
                self.masters[name] = np.asarray(old + np.floor(mean + 0.5), old.dtype)
        self.arrays = {n: np.asarray(a, start_arrays()[n].dtype) for n, a in self.masters.items()}
