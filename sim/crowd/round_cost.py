"""What a whole round costs under encryption, beside the same round in clear.

Ten clients train a CNN of 1.2 million parameters for one epoch over 1,500 generated images of
CIFAR-10's shape, in one process, and every message goes through Flower's wire format. Plain and
encrypted rounds take turns. The first of each is not counted, and neither is the key agreement, which
an epoch pays once.
"""

from __future__ import annotations

import importlib
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError
from flhe.packages import require
from flhe_lab.bench import Contender, Laps, Progress, Times, measure, pinned, quiet

if TYPE_CHECKING:
    from flhe.strategies.report import RoundReport

BATCH = 32


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


class _Federation:
    """A federation in a thread of its own, whose rounds begin when they are asked for."""

    def __init__(self, training: _Training, cohort: int, scratch: Path, *, encrypted: bool) -> None:
        self._training, self._cohort, self._scratch = training, cohort, scratch
        self.encrypted = encrypted
        self.reports: list[RoundReport] = []
        self._failure: BaseException | None = None
        self._begin, self._over = threading.Semaphore(0), threading.Semaphore(0)

    def contender(self, rounds: int) -> Contender:
        """Be ready for so many."""
        # A daemon: where the other one fails, this one's next round never begins.
        threading.Thread(target=self._work, args=(rounds,), daemon=True).start()
        return Contender(f"{'flashe' if self.encrypted else 'plain'} round", {"round": self.round})

    def round(self) -> Laps:
        """Run one more; its seconds as the server reports them."""
        self._begin.release()
        self._over.acquire()
        if self._failure is not None:
            raise self._failure
        report = self.reports[-1]
        return Laps(round=report.round_s, crypto=report.crypto_s)

    def _note(self, report: RoundReport) -> None:
        self.reports.append(report)
        self._over.release()
        self._begin.acquire()

    def _work(self, rounds: int) -> None:
        from flhe.strategies import flashe_fedavg
        from flhe.strategies.plain import MeteredFedAvg
        from flhe.testing import InProcessGrid

        grid = InProcessGrid(
            self._training.app(encrypted=self.encrypted),
            self._cohort,
            node_config=lambda i: {
                "flhe-home": str(self._scratch / f"node-{i}"),
                "flhe-trust": "first-use",
            },
        )
        sizes: dict[str, Any] = {
            "min_train_nodes": self._cohort,
            "min_evaluate_nodes": self._cohort,
            "on_round": self._note,
        }
        self._begin.acquire()
        try:
            strategy: Any = (
                flashe_fedavg(max_examples=len(self._training.labels), **sizes)
                if self.encrypted
                else MeteredFedAvg(**sizes)
            )
            initial = self._training.initial()
            strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds)
        except BaseException as error:  # raised by `round`, in the thread that waits
            self._failure = error
        finally:
            grid.close()
            self._over.release()


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
    require("`flhe bench round`", "apps", ("torch",))
    with pinned(threads), tempfile.TemporaryDirectory(prefix="flhe-round-") as scratch:
        training = _Training(images, threads)
        importlib.import_module("flhe.strategies")  # Flower sets its log's level when imported
        both = [
            _Federation(training, cohort, Path(scratch), encrypted=flag) for flag in (False, True)
        ]
        with quiet():
            contenders = [federation.contender(rounds + 1) for federation in both]
            plain, ours = measure(contenders, rounds, progress).values()
            for federation in both:  # its end, beyond the last report
                federation.round()
    counted = zip(*(federation.reports[1:] for federation in both), strict=True)
    ratio = Times.of([two.round_s / one.round_s for one, two in counted])
    assert ratio is not None
    plain_s, (ours_s, crypto_s) = plain.times["round"], ours.times.values()
    return RoundCost(training.parameters, plain_s, ours_s, ratio, crypto_s)


class _Training:
    """A CNN and an app that trains it: what any FedAvg user has."""

    def __init__(self, images: int, threads: int) -> None:
        import torch

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
