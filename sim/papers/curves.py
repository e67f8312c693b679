"""Learning curves of the papers' six workloads, encrypted beside plain: `flhe tables learning-curves`.

FCN, AlexNet and LSTM under BatchCrypt and ESAFL, as in BatchCrypt's Fig. 6 and ESAFL's Fig. 3 (d-f);
ResNet-20, GRU and CNN under FLASHE, dense and with the largest 10% of values, as in its Fig. 9; CNN,
ResNet-20 and LSTM under SASH too, after its Fig. 5 (whose models have other sizes). All at 16 bits a
value. Flower's own FedAvg and encrypted strategies train the same models on the same batches: what two
curves differ by is what the encryption's encoding does.

What differs from the papers is in the figures' notes; optimizers are theirs, learning rates are higher.
Batch norm's running statistics are sent as weights are, and whole where of others only the largest 10%
are sent: under error feedback they would overshoot (`flhe.coding.sparsify`). FCN and CNN learn
scikit-learn's digits, enlarged, and the figure says so, unless DATA has Fashion-MNIST or FEMNIST.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError, FlheError
from flhe_lab.bench import host
from flhe_lab.bench.turns import Progress, silent

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


ALLOWING = {"flhe-server-reads": True, "flhe-unpermuted": True, "flhe-min-bits": 112}
"""A node's config that allows whatever is to be measured: it has nothing to hide."""


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

    from flhe.mods import HEMod
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
        app = client_app(first, parts, setting, *([HEMod()] if run.alias else []))
        how: Any = {"homes": Path(scratch), "node_config": lambda _: ALLOWING, "workers": 2}
        with InProcessGrid(app, setting.clients, **how) as grid:
            strategy = run.strategy(setting, max(len(part.train.labels) for part in parts), note)
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(first.state_dict()),
                num_rounds=run.rounds_of(setting),
            )
    return curve


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """So many torch threads for each client that trains, and no word from Flower but errors."""
    import flhe.strategies  # noqa: F401  Flower sets its log's level when imported

    with host.torch_threads(threads), host.quiet():
        yield


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


def client_app(
    first: nn.Module, parts: list[Data], setting: Setting, *mods: Any, seed: int = SEED
) -> ClientApp:
    """The client: trains a copy of `first` on its part as `setting` says, and scores it."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch import optim

    from flhe_app.tasks import base

    steppers: dict[str, Any] = {"sgd": base.MOMENTUM, "adam": optim.Adam, "rmsprop": optim.RMSprop}
    app = ClientApp(mods=[*mods])

    def received(message: Message) -> nn.Module:
        # A copy, rather than a new model: clients work at the same time, torch's generator is one
        model = copy.deepcopy(first)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model

    def part(context: Context) -> int:
        return int(context.node_config["partition-id"])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, mine = received(message), parts[part(context)].train
        server_round: Any = message.content.config_records["config"]["server-round"]
        score = base.train(
            model,
            mine,
            epochs=1,
            learning_rate=setting.learning_rate,
            batch_size=setting.batch_size,
            shuffle=base.shuffler(seed, part(context), server_round),
            stepper=steppers[setting.optimizer],
            batches=setting.batches,
        )
        told = {f"train_{name}": value for name, value in score._asdict().items()}
        metrics = MetricRecord({**told, "num-examples": len(mine.labels)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mine = parts[part(context)].test
        score = base.evaluate(received(message), mine, batch_size=EVALUATED)
        metrics = MetricRecord({**score._asdict(), "num-examples": len(mine.labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


# --- the papers' six workloads ---

PLAIN = Run("plain FedAvg")
BATCHCRYPT = Run("BatchCrypt", "BatchCryptFedAvg")
ESAFL = Run("ESAFL", "EsaflFedAvg")
SASH = Run("SASH", "SashFedAvg", {"bits": 16})
FLASHE = Run("FLASHE", "FlasheFedAvg")
SPARSE = Run("FLASHE, top 10%", "FlasheFedAvg", {"top_k": 0.1, "warmup": 2})
"""Before the tenth, FLASHE's shares of 80, 40 and 20%, here for two rounds each: there are few."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one workload is compared."""

    setting: Setting  # How all its federations train
    runs: tuple[Run, ...]  # Encrypted ones


def _batch_norm(run: Run) -> Run:
    """With clipping thresholds for batch norm's running variances, which move by up to 7 in a round.

    Weights move by less than 0.02.
    """
    return replace(run, options={**run.options, "clip": {"*.running_*": 16.0, "*": 0.25}})


COMPARISONS = {
    "fcn": Comparison(Setting(4, 30, 128, 1e-3), (BATCHCRYPT, ESAFL)),
    "alexnet": Comparison(
        Setting(3, 25, 64, 1e-4, "rmsprop", batches=10, test_images=300),
        (replace(BATCHCRYPT, rounds=12), ESAFL),  # Paillier takes its time with large models
    ),
    "lstm": Comparison(
        Setting(3, 20, 8, 2e-3, batches=16, test_images=64),
        (
            Run("BatchCrypt, 2048-bit key", "BatchCryptFedAvg", {"key_bits": 2048}, rounds=8),
            ESAFL,
            SASH,
        ),
    ),
    "resnet20": Comparison(
        Setting(4, 25, 64, 2e-3, batches=8, test_images=200),
        (_batch_norm(FLASHE), _batch_norm(SPARSE), _batch_norm(SASH)),
    ),
    "gru": Comparison(Setting(4, 30, 16, 5e-3, batches=12, test_images=64), (FLASHE, SPARSE)),
    "cnn": Comparison(Setting(4, 30, 64, 5e-4), (FLASHE, SPARSE, SASH)),
}
"""By workload."""


def compare(
    name: str, *, data_dir: str = "", rounds: int = 0, progress: Progress = silent
) -> list[Curve]:
    """Run one workload's federations, plain FedAvg first; their curves in this order.

    Raises ConfigError: data that is missing. FlheError: a federation failed.

    `name` is one of COMPARISONS. Each federation has at most so many `rounds`, 0 for all. `progress`
    receives (rounds done, rounds in all, what is going on).
    """
    setting, runs = COMPARISONS[name].setting, (PLAIN, *COMPARISONS[name].runs)
    setting = replace(setting, rounds=min(rounds or setting.rounds, setting.rounds))
    task = learned(name, data_dir)
    data = task.load(data_dir, download=False)
    for run in runs:
        run.strategy(setting, len(data.train.labels))  # refuse now, not after hours
    total, turns, curves = sum(run.rounds_of(setting) for run in runs), itertools.count(1), []
    for run in runs:

        def note(report: RoundReport, run: Run = run) -> None:
            progress(next(turns), total, f"{run.name}: accuracy {report.accuracy:.4f}")

        curves.append(learn(run, task, data, setting, note))
    return curves


def learned(name: str, data_dir: str) -> Workload:
    """The workload; where `data_dir` lacks its images, on enlarged digits, as its name then says."""
    from flhe_app.tasks.images import Images
    from flhe_app.tasks.workloads import WORKLOADS

    task, stand_in = WORKLOADS[name], WORKLOADS.get(f"{name}-digits")
    if stand_in is None or (isinstance(task.source, Images) and task.source.there(data_dir)):
        return task
    return stand_in
