"""What a whole round costs under encryption, beside the same round in clear.

Ten clients train a CNN of 1.2 million parameters for one epoch over 1,500 generated images of
CIFAR-10's shape, in one process, and every message goes through Flower's wire format. Plain and
encrypted rounds take turns. The first of each is not counted, and neither is the key agreement, which
an epoch pays once.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe.packages import install_hint
from flhe_lab.bench import Progress, Times, pinned

BATCH = 32
SCHEMES = ("plain", "flashe")
TURN_S = 3600.0
"""Longest wait for the other one's round."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a round: training, messages, aggregation, opening, an empty evaluation.

    Parameters
    ----------
    parameters : int
        Values in the model.
    plain_s, encrypted_s : Times
        One round.
    ratio : Times
        Encrypted to plain, round by round.
    crypto_s : Times
        Of it, the slowest client's encoding and cryptography, and the server's adding.
    """

    parameters: int
    plain_s: Times
    encrypted_s: Times
    ratio: Times
    crypto_s: Times

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


class _Turns:
    """Two federations, each in a thread, run one round after the other's."""

    def __init__(self, rounds: int, progress: Progress | None) -> None:
        self._mine = {name: threading.Semaphore(0) for name in SCHEMES}
        self._mine["plain"].release()
        self._count = 0
        self._total = rounds * len(SCHEMES)
        self._progress = progress

    def wait(self, name: str) -> None:
        """Return when it is this one's turn."""
        if not self._mine[name].acquire(timeout=TURN_S):
            raise ConfigError(f"no turn within {TURN_S:g} s: the other federation hangs")

    def done(self, name: str) -> None:
        """Give the turn to the other one."""
        self._count += 1
        if self._progress is not None:
            self._progress(self._count, self._total, f"{name} round")
        self._mine[SCHEMES[1 - SCHEMES.index(name)]].release()


def round_cost(
    *,
    cohort: int = 10,
    images: int = 1500,
    rounds: int = 3,
    threads: int = 1,
    progress: Progress | None = None,
) -> RoundCost:
    """Measure `rounds` rounds of each kind.

    Raises
    ------
    ConfigError
        torch is missing, or too few clients or rounds.
    """
    if rounds < 1 or cohort < 3:
        raise ConfigError(
            f"`flhe bench round` needs --repeats 1 and --cohort 3 at least, got {rounds}, {cohort}"
        )
    seconds: dict[str, list[float]] = {name: [] for name in SCHEMES}
    crypto: list[float] = []
    failures: list[BaseException] = []
    turns = _Turns(rounds + 1, progress)

    def federate(name: str, scratch: Path, training: _Training) -> None:
        from flhe.strategies import flashe_fedavg
        from flhe.strategies.plain import MeteredFedAvg
        from flhe.strategies.report import RoundReport
        from flhe.testing import InProcessGrid

        def note(report: RoundReport) -> None:
            if report.round > 1:  # the first warms up
                seconds[name].append(report.round_s)
                if name != "plain":
                    crypto.append(report.crypto_s)
            turns.done(name)
            if report.round <= rounds:
                turns.wait(name)

        grid = InProcessGrid(
            training.app(encrypted=name != "plain"),
            cohort,
            node_config=lambda i: {
                "flhe-home": str(scratch / f"node-{i}"),
                "flhe-trust": "first-use",
            },
        )
        sizes: dict[str, Any] = {"min_train_nodes": cohort, "min_evaluate_nodes": cohort}
        try:
            turns.wait(name)
            strategy: Any = (
                MeteredFedAvg(on_round=note, **sizes)
                if name == "plain"
                else flashe_fedavg(max_examples=images, on_round=note, **sizes)
            )
            strategy.start(grid=grid, initial_arrays=training.initial(), num_rounds=rounds + 1)
        except BaseException as error:  # told below, by the thread that waits
            failures.append(error)
            turns.done(name)
        finally:
            grid.close()

    with pinned(threads), tempfile.TemporaryDirectory(prefix="flhe-round-") as scratch:
        training = _Training(images, threads)
        importlib.import_module("flhe.strategies")  # Flower sets its log's level when imported
        level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.WARNING)
        try:
            workers = [
                threading.Thread(target=federate, args=(name, Path(scratch), training))
                for name in SCHEMES
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            logging.getLogger("flwr").setLevel(level)
    if failures:
        raise failures[0]
    plain, ours = (seconds[name] for name in SCHEMES)
    ratios = [b / a for a, b in zip(plain, ours, strict=True)]
    times = [t for t in map(Times.of, (plain, ours, ratios, crypto)) if t is not None]
    return RoundCost(training.parameters, *times)


class _Training:
    """A CNN and an app that trains it: what any FedAvg user has."""

    def __init__(self, images: int, threads: int) -> None:
        try:
            import torch
        except ImportError:
            raise ConfigError(
                f"`flhe bench round` needs torch: {install_hint('apps', 'torch')}"
            ) from None
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(20)
        self.images = torch.rand(images, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, 10, (images,), generator=generator)
        self.parameters = sum(p.numel() for p in self._model().parameters())

    def _model(self) -> Any:
        from torch import nn

        return nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(4096, 280), nn.ReLU(), nn.Linear(280, 10)),
        )

    def initial(self) -> Any:
        """The initial model, as Flower's record."""
        from flwr.app import ArrayRecord

        return ArrayRecord(self._model().state_dict())

    def app(self, *, encrypted: bool) -> Any:
        """The ClientApp, with or without the mod."""
        import torch
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        from flhe.mods import HEMod

        app = ClientApp(mods=[HEMod()] if encrypted else [])

        @app.train()
        def train(message: Message, _context: Context) -> Message:
            model = self._model()
            model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for at in range(0, len(self.labels), BATCH):
                optimizer.zero_grad()
                output = model(self.images[at : at + BATCH])
                loss: Any = torch.nn.functional.cross_entropy(output, self.labels[at : at + BATCH])
                loss.backward()
                optimizer.step()
            metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(self.labels)})
            arrays = ArrayRecord(model.state_dict())
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, _context: Context) -> Message:
            metrics = MetricRecord({"accuracy": 0.0, "num-examples": 1})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app
