"""A federation that learns a task in this process, and its accuracy round by round.

Flower's own FedAvg and encrypted strategies train the same models on the same batches: a client's
batches depend on the seed, the client and the round alone. So what two curves differ by is what the
encryption's encoding does: clipping, quantization, sparsification.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError, FlheError

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from torch import nn

    from flhe.apps.tasks.base import Data, Task
    from flhe.strategies.report import RoundReport

Arguments = Mapping[str, Any]
"""Keyword arguments of `flashe_fedavg`."""

SETTLED = 10
"""Last rounds whose mean accuracy stands for a curve: one round's goes up and down."""

SERIES = ("accuracy", "loss", "bytes_up", "bytes_down", "crypto_s", "round_s")
"""Fields of RoundReport that a curve keeps."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every federation of a comparison trains alike, all clients in every round.

    Parameters
    ----------
    images : int
        Training images of one client; 0 for all of its even share.
    local_epochs, batch_size, learning_rate
        A client's training in one round, by SGD with momentum 0.9.
    seed : int
        Of the initial model, the split and the batches.
    """

    clients: int = 5
    rounds: int = 50
    images: int = 0
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 3:
            raise ConfigError(f"clients={self.clients}: an encrypted federation has 3 or more")
        least = {"rounds": 1, "local_epochs": 1, "batch_size": 1, "images": 0, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name}={getattr(self, name)}: must be {bound} or more")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate={self.learning_rate}: must be finite and positive")


@dataclass(frozen=True, slots=True)
class Curve:
    """What one federation reached, and what it took, by round.

    Parameters
    ----------
    arguments : dict or None
        Of `flashe_fedavg`, as JSON values; None for plain FedAvg.
    series : dict[str, list]
        One number a round under each name of SERIES, as in RoundReport.
    """

    name: str
    arguments: dict[str, Any] | None
    series: dict[str, list[Any]]

    @property
    def settled(self) -> float:
        """Mean accuracy over the last SETTLED rounds."""
        return statistics.fmean(self.series["accuracy"][-SETTLED:])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "strategy": "FedAvg" if self.arguments is None else "flashe_fedavg",
            "arguments": self.arguments,
            "settled_accuracy": self.settled,
            **self.series,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Curve:
        """Read what `to_json` gave."""
        series = {name: list(found[name]) for name in SERIES}
        return cls(found["name"], found["arguments"], series)


def as_json(arguments: Arguments | None) -> dict[str, Any] | None:
    """Arguments as JSON values; what has none, such as an optimizer, by its repr."""
    return None if arguments is None else json.loads(json.dumps(dict(arguments), default=repr))


def learn(
    name: str,
    task: Task,
    data: Data,
    setting: Setting,
    arguments: Arguments | None,
    *,
    workers: int = 1,
    on_round: Callable[[RoundReport], None] | None = None,
) -> Curve:
    """Run one federation to its end.

    Parameters
    ----------
    name, setting
        Of the curve; how it is trained.
    task, data
        The model, and the data set that is split over the clients.
    arguments : mapping or None
        Of `flashe_fedavg`, over those that follow from the setting; None for plain FedAvg.
    workers : int
        Clients that train at a time, each on one thread. With more than one, FedAvg adds up in the
        order of arrival, and runs of one seed differ in last bits.
    on_round : callable, optional
        Receives each round's report.

    Raises
    ------
    ConfigError
        Arguments that the strategy refuses, or more images than there are.
    FlheError
        A round without all clients, or without accuracy: it cannot be compared.
    """
    from flhe.sim.inproc import InProcessGrid

    parts = _split(data, setting)
    reports: list[RoundReport] = []

    def note(report: RoundReport) -> None:
        if report.survivors != setting.clients or report.accuracy is None:
            there = f"{report.survivors} of {setting.clients} clients, accuracy {report.accuracy}"
            raise FlheError(f"{name}, round {report.round}: {there}; it cannot be compared")
        reports.append(report)
        if on_round is not None:
            on_round(report)

    with _quiet(), tempfile.TemporaryDirectory(prefix="flhe-curves-") as scratch:
        trainer = _Trainer(task, parts, setting)
        grid = InProcessGrid(
            trainer.app(encrypted=arguments is not None),
            setting.clients,
            node_config=lambda i: {
                "flhe-home": str(Path(scratch) / f"node-{i}"),
                "flhe-trust": "first-use",
            },
            workers=workers,
        )
        try:
            most = max(len(part.train.labels) for part in parts)
            run = strategy(setting, most, arguments, note)
            run.start(grid=grid, initial_arrays=trainer.initial(), num_rounds=setting.rounds)
        finally:
            grid.close()
    series = {key: [getattr(report, key) for report in reports] for key in SERIES}
    return Curve(name, as_json(arguments), series)


def _split(data: Data, setting: Setting) -> list[Data]:
    """What each client holds: an even share, of the training half no more than `images`."""
    from flhe.apps.tasks.base import Data as Part
    from flhe.apps.tasks.split import split_iid

    train, test = (split_iid(half.labels.numpy(), setting.clients, setting.seed) for half in data)
    if setting.images > min(map(len, train)):
        raise ConfigError(
            f"images={setting.images}: a client's share is {min(map(len, train))} training images; "
            "lower it, or use fewer clients"
        )
    return [
        Part(data.train.take(mine[: setting.images or None]), data.test.take(share))
        for mine, share in zip(train, test, strict=True)
    ]


def strategy(setting: Setting, most: int, arguments: Arguments | None, note: Any = None) -> Any:
    """The strategy; `most` is a client's largest example count. ConfigError where it refuses."""
    sizes: dict[str, Any] = dict.fromkeys(
        ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), setting.clients
    )
    if arguments is None:
        from flhe.strategies.plain import MeteredFedAvg

        return MeteredFedAvg(on_round=note, **sizes)
    from flhe.strategies import flashe_fedavg

    try:
        return flashe_fedavg(**{"max_examples": most, "on_round": note, **sizes, **arguments})
    except TypeError as error:
        raise ConfigError(f"flashe_fedavg with {', '.join(arguments)}: {error}") from None


class _Trainer:
    """The clients' side: one app, whose nodes differ in their part of the data."""

    def __init__(self, task: Task, parts: list[Data], setting: Setting) -> None:
        from flhe.apps.tasks.base import new_model

        self._first = new_model(task, setting.seed)
        self._parts = parts
        self._setting = setting

    def initial(self) -> Any:
        """The initial model, as Flower's record."""
        from flwr.app import ArrayRecord

        return ArrayRecord(self._first.state_dict())

    def _received(self, message: Message) -> nn.Module:
        # A copy, rather than a new model: clients work at the same time, torch's generator is one
        model = copy.deepcopy(self._first)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model

    def app(self, *, encrypted: bool) -> ClientApp:
        """The ClientApp, with or without the mod."""
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        from flhe.apps.tasks import base
        from flhe.mods import HEMod

        app = ClientApp(mods=[HEMod()] if encrypted else [])
        setting = self._setting

        @app.train()
        def train(message: Message, context: Context) -> Message:
            node = int(context.node_config["partition-id"])
            mine = self._parts[node].train
            model = self._received(message)
            server_round = message.content.config_records["config"]["server-round"]
            assert isinstance(server_round, int)
            score = base.train(
                model,
                mine,
                epochs=setting.local_epochs,
                learning_rate=setting.learning_rate,
                batch_size=setting.batch_size,
                shuffle=base.shuffler(setting.seed, node, server_round),
            )
            arrays = ArrayRecord(model.state_dict())
            metrics = MetricRecord({"train_loss": score.loss, "num-examples": len(mine.labels)})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            mine = self._parts[int(context.node_config["partition-id"])].test
            score = base.evaluate(self._received(message), mine)
            metrics = MetricRecord({**score._asdict(), "num-examples": len(mine.labels)})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread for each client that trains, and no word from Flower but warnings."""
    import torch

    import flhe.strategies  # noqa: F401  Flower sets its log's level when imported

    logger, threads = logging.getLogger("flwr"), torch.get_num_threads()
    level = logger.level
    logger.setLevel(logging.WARNING)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        logger.setLevel(level)
