"""A federation that learns a task in this process, and its accuracy and loss round by round.

Flower's own FedAvg and encrypted strategies train the same models on the same batches: a client's
batches depend on the client and the round alone. So what two curves differ by is what the
encryption's encoding does: clipping, quantization, sparsification.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError, FlheError
from flhe_lab.bench import host

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from torch import nn

    from flhe.strategies.report import RoundReport
    from flhe_app.tasks.base import Data
    from flhe_app.tasks.workloads import Workload

SETTLED = 10
"""Last rounds whose mean accuracy stands for a curve: one round's goes up and down."""

SEED = 0
"""Of the initial model, the split and the batches."""

EVALUATED = 128
"""Examples that are scored at a time: the logits of more windows of text than that take memory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every federation of a comparison trains alike, all clients in every round, an epoch each."""

    clients: int
    rounds: int
    batch_size: int  # Of a client
    learning_rate: float  # Of a client
    optimizer: str = "adam"  # What a client steps with: "sgd" (momentum 0.9), "adam" or "rmsprop"
    batches: int = 0  # Batches of an epoch, other ones in each round; 0 for all
    images: int = 0  # Training examples of one client; 0 for all of its even share
    test_images: int = 0  # The same, of test examples


@dataclass(frozen=True, slots=True)
class Run:
    """One federation of a comparison."""

    name: str  # In the figure
    alias: str = ""  # Of `flhe.strategies`; Flower's FedAvg unless said
    options: dict[str, Any] = field(default_factory=dict)  # That it takes
    rounds: int = 0  # Fewer than the setting's; 0 for as many

    def rounds_of(self, setting: Setting) -> int:
        """How many rounds it trains."""
        return min(self.rounds or setting.rounds, setting.rounds)

    def strategy(self, setting: Setting, most: int, note: Any = None) -> Any:
        """The strategy; `most` is a client's largest example count. ConfigError where it refuses."""
        from flhe import strategies
        from flhe.strategies.plain import MeteredFedAvg

        nodes = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
        known: dict[str, Any] = {**dict.fromkeys(nodes, setting.clients), "on_round": note}
        if not self.alias:
            return MeteredFedAvg(**known)
        return getattr(strategies, self.alias)(**known, max_examples=most, **self.options)


@dataclass(frozen=True, slots=True)
class Curve:
    """What one federation reached, by round."""

    name: str
    accuracy: list[float]
    loss: list[float]

    def settled_after(self, rounds: int) -> float:
        """Mean accuracy over the last SETTLED of the first `rounds` rounds."""
        return statistics.fmean(self.accuracy[:rounds][-SETTLED:])

    def gap(self, other: Curve) -> float:
        """Largest difference of accuracy, up or down, to another curve in a round that both have."""
        pairs = zip(self.accuracy, other.accuracy, strict=False)
        return max(abs(mine - theirs) for mine, theirs in pairs)


def learn(
    run: Run,
    task: Workload,
    data: Data,
    setting: Setting,
    on_round: Callable[[RoundReport], None] = lambda _report: None,
) -> Curve:
    """Run one federation to its end, two clients at a time.

    Raises ConfigError: options that the strategy refuses, or more images than there are. FlheError: a
    round without all clients, or without accuracy: it cannot be compared.

    `data` is split over the clients. FedAvg adds up in the order of arrival, so runs of one seed differ
    in last bits. `on_round` receives each round's report.
    """
    from flwr.app import ArrayRecord

    from flhe.testing import InProcessGrid
    from flhe_app.tasks.base import new_model

    first, parts = new_model(task, SEED), parts_of(data, setting)
    curve = Curve(run.name, [], [])

    def note(report: RoundReport) -> None:
        if report.survivors != setting.clients or report.accuracy is None:
            there = f"{report.survivors} of {setting.clients} clients, accuracy {report.accuracy}"
            raise FlheError(f"{run.name}, round {report.round}: {there}; it cannot be compared")
        assert report.loss is not None
        curve.accuracy.append(report.accuracy)
        curve.loss.append(report.loss)
        on_round(report)

    with quiet(1), tempfile.TemporaryDirectory(prefix="flhe-curves-") as scratch:
        grid = InProcessGrid(
            _app(first, parts, setting, encrypted=bool(run.alias)),
            setting.clients,
            node_config=lambda i: _allowing(Path(scratch) / f"node-{i}"),
            workers=2,
        )
        try:
            run.strategy(setting, max(len(part.train.labels) for part in parts), note).start(
                grid=grid,
                initial_arrays=ArrayRecord(first.state_dict()),
                num_rounds=run.rounds_of(setting),
            )
        finally:
            grid.close()
    return curve


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """So many torch threads for each client that trains, and no word from Flower but errors."""
    import flhe.strategies  # noqa: F401  Flower sets its log's level when imported

    with host.torch_threads(threads), host.quiet():
        yield


# --- the clients' side ---


def parts_of(data: Data, setting: Setting) -> list[Data]:
    """What each client holds: an even share of both halves, no more than the setting's images of it."""
    from flhe_app.tasks.base import Data as Part
    from flhe_app.tasks.split import split_iid

    shares = []
    for half, name in ((data.train, "images"), (data.test, "test_images")):
        split, most = split_iid(half.labels.numpy(), setting.clients, SEED), getattr(setting, name)
        least = min(map(len, split))
        if most > least:
            raise ConfigError(
                f"{name}={most}: a client's share is {least}; lower it, or use fewer clients"
            )
        shares.append([half.take(mine[: most or None]) for mine in split])
    return [Part(*pair) for pair in zip(*shares, strict=True)]


def _allowing(home: Path) -> dict[str, Any]:
    """A node's config that allows whatever is to be measured: it has nothing to hide."""
    return {
        "flhe-home": str(home),
        "flhe-trust": "first-use",
        "flhe-server-reads": True,
        "flhe-unpermuted": True,
        "flhe-min-bits": 112,
    }


def _app(first: nn.Module, parts: list[Data], setting: Setting, *, encrypted: bool) -> ClientApp:
    """One app, whose nodes differ in their part of the data."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from flhe.mods import HEMod
    from flhe_app.tasks import base

    app = ClientApp(mods=[HEMod()] if encrypted else [])

    def received(message: Message) -> nn.Module:
        # A copy, rather than a new model: clients work at the same time, torch's generator is one
        model = copy.deepcopy(first)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        model, mine = received(message), parts[node].train
        server_round = message.content.config_records["config"]["server-round"]
        assert isinstance(server_round, int)
        score = base.train(
            model,
            mine,
            epochs=1,
            learning_rate=setting.learning_rate,
            batch_size=setting.batch_size,
            shuffle=base.shuffler(SEED, node, server_round),
            optimizer=setting.optimizer,
            batches=setting.batches,
        )
        metrics = MetricRecord({"train_loss": score.loss, "num-examples": len(mine.labels)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mine = parts[int(context.node_config["partition-id"])].test
        score = base.evaluate(received(message), mine, batch_size=EVALUATED)
        metrics = MetricRecord({**score._asdict(), "num-examples": len(mine.labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
