"""A federation that learns a task in this process, and its accuracy and loss round by round.

Flower's own FedAvg and encrypted strategies train the same models on the same batches: a client's
batches depend on the seed, the client and the round alone. So what two curves differ by is what the
encryption's encoding does: clipping, quantization, sparsification.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import FlheError
from flhe.schemes import DEFAULT

if TYPE_CHECKING:
    from flhe.strategies.report import RoundReport
    from flhe_app.tasks.base import Data
    from flhe_app.tasks.workloads import Workload

Arguments = Mapping[str, Any]
"""Keyword arguments of an alias of `flhe.strategies`; beside them `scheme`, whose alias it is, FLASHE's
unless said, and `rounds`, fewer of them than the setting's."""

ALIASES = {
    "flashe": "FlasheFedAvg",
    "sash": "SashFedAvg",
    "batchcrypt": "BatchCryptFedAvg",
    "esafl": "EsaflFedAvg",
    "fedml-he": "FedmlHeFedAvg",
}
"""By scheme."""

SETTLED = 10
"""Last rounds whose mean accuracy stands for a curve: one round's goes up and down."""

SERIES = ("accuracy", "loss", "bytes_up", "bytes_down", "crypto_s", "round_s")
"""Fields of RoundReport that a curve keeps."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every federation of a comparison trains alike, all clients in every round."""

    clients: int = 5
    rounds: int = 50
    images: int = 0  # Training examples of one client; 0 for all of its even share
    local_epochs: int = 1  # Of a client in one round
    batch_size: int = 32  # Of a client
    learning_rate: float = 0.01  # Of a client
    seed: int = 0  # Of the initial model, the split and the batches
    test_images: int = 0  # Test examples of one client; 0 for all of its even share
    batches: int = 0  # Batches of an epoch, other ones in each round; 0 for all
    optimizer: str = "sgd"  # What a client steps with: "sgd" (momentum 0.9), "adam" or "rmsprop"
    split: str = "iid"
    """By "iid", after a shuffle, or "pieces", contiguous ones: of a text, its chapters."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one federation reached, and what it took, by round."""

    name: str
    series: dict[str, list[Any]]  # One number a round under each name of SERIES, as in RoundReport

    @property
    def rounds(self) -> int:
        """Rounds that it has."""
        return len(self.series["accuracy"])

    def settled_after(self, rounds: int) -> float:
        """Mean accuracy over the last SETTLED of the first `rounds` rounds."""
        return statistics.fmean(self.series["accuracy"][:rounds][-SETTLED:])

    def gap(self, other: Curve, series: str = "accuracy") -> float:
        """Largest difference, up or down, to another curve in a round that both have."""
        pairs = zip(self.series[series], other.series[series], strict=False)
        return float(max(abs(mine - theirs) for mine, theirs in pairs))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, **self.series}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Curve:
        """Read what `to_json` gave."""
        return cls(found["name"], {name: list(found[name]) for name in SERIES})


def rounds_of(setting: Setting, arguments: Arguments | None) -> int:
    """How many rounds a federation trains."""
    return setting.rounds if arguments is None else int(arguments.get("rounds", setting.rounds))


def learn(
    name: str,
    task: Workload,
    data: Data,
    setting: Setting,
    arguments: Arguments | None,
    *,
    workers: int = 1,
    on_round: Callable[[RoundReport], None] | None = None,
) -> Curve:
    """Run one federation to its end.

    Raises ConfigError: arguments that the strategy refuses, or more images than there are. FlheError: a
    round without all clients, or without accuracy: it cannot be compared.

    `data` is split over the clients. `arguments` go over those that follow from the setting; None for
    plain FedAvg. So many `workers` train at a time: with more than one, FedAvg adds up in the order of
    arrival, and runs of one seed differ in last bits. `on_round` receives each round's report.
    """
    from flhe.testing import InProcessGrid
    from flhe_lab.papers.learners import Learners, allowing, parts_of, quiet

    learners = Learners(task, parts_of(data, setting), setting)
    reports: list[RoundReport] = []

    def note(report: RoundReport) -> None:
        if report.survivors != setting.clients or report.accuracy is None:
            there = f"{report.survivors} of {setting.clients} clients, accuracy {report.accuracy}"
            raise FlheError(f"{name}, round {report.round}: {there}; it cannot be compared")
        reports.append(report)
        if on_round is not None:
            on_round(report)

    with quiet(1), tempfile.TemporaryDirectory(prefix="flhe-curves-") as scratch:
        grid = InProcessGrid(
            learners.app(encrypted=arguments is not None),
            setting.clients,
            node_config=lambda i: allowing(Path(scratch) / f"node-{i}"),
            workers=workers,
        )
        try:
            strategy(setting, learners.most, arguments, note).start(
                grid=grid,
                initial_arrays=learners.initial(),
                num_rounds=rounds_of(setting, arguments),
            )
        finally:
            grid.close()
    return Curve(name, {key: [getattr(report, key) for report in reports] for key in SERIES})


def strategy(setting: Setting, most: int, arguments: Arguments | None, note: Any = None) -> Any:
    """The strategy; `most` is a client's largest example count. ConfigError where it refuses."""
    sizes: dict[str, Any] = dict.fromkeys(
        ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), setting.clients
    )
    if arguments is None:
        from flhe.strategies.plain import MeteredFedAvg

        return MeteredFedAvg(on_round=note, **sizes)
    from flhe import strategies

    given = {key: value for key, value in arguments.items() if key not in ("scheme", "rounds")}
    known = {"max_examples": most, "on_round": note, **sizes}
    alias = ALIASES[arguments.get("scheme", DEFAULT)]
    return getattr(strategies, alias)(**{**known, **given})
