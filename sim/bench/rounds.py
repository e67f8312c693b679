"""`flhe bench --round`: whole rounds in one process, in turns with Flower's FedAvg in clear.

Every contender is a federation of its own, with its strategy on a thread, which goes on for a round
when it is its turn. All train the same network on the same images, in the same order. Nodes work one
after the other and all on one processor, so that a round is the sum of what everybody does.

Images and labels are random: nothing is downloaded, and training costs the same as on real ones.
"""

from __future__ import annotations

import gc
import queue
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from flhe.errors import ConfigError
from flhe.mods import HEMod
from flhe.schemes import PLAIN
from flhe.strategies.report import OnRound, RoundReport
from flhe.testing import InProcessGrid
from flhe_app.tasks import TASKS, task_named
from flhe_app.tasks.base import new_model
from flhe_lab.bench.contender import Contender, Laps
from flhe_lab.bench.deployed import strategy
from flhe_lab.bench.host import pinned, quiet, torch_threads
from flhe_lab.bench.laps import APPS, BESIDES, PROCESSOR, ROUND, contenders, lap, whole
from flhe_lab.bench.synthetic import generated
from flhe_lab.bench.turns import Measured, Progress, measure, silent
from flhe_lab.papers import curves

SEED, RATE, BATCH = 20, 0.01, 32
"""Seed of model and images; learning rate and batch size of training."""

CAPTION = (
    "Minimum and median; below them the ratio to plain. Clients work one after the other, and all on "
    "one processor: a round is the sum of what clients and server do. Clients' apps: their own "
    "training and evaluation, in processor seconds. Besides them: the rest of the round."
)

Seconds = dict[int, float]
"""Round -> seconds of all apps together."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained."""

    task: str = "alexnet"  # A network: 1.25 million parameters, images of CIFAR-10's shape
    clients: int = 10
    images: int = 500  # Training images of one client; a fifth as many for evaluation
    repeats: int = 3  # Counted rounds, after a first one that does not count

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ConfigError(f"--task {self.task!r}: choose from {', '.join(TASKS)}")
        for name, value, least in (
            ("cohort", self.clients, 3),
            ("images", self.images, 1),
            ("repeats", self.repeats, 1),
        ):
            if value < least:
                raise ConfigError(f"--{name} {value}: must be at least {least}")


class _Over(Exception):  # noqa: N818  # no error: it ends a run whose rounds are not needed
    pass


@dataclass
class Turns:
    """A run on a thread of its own, which waits for its turn after each round.

    `work` runs a strategy that hands its reports to what it is given; `seconds` has those of the apps.
    """

    name: str
    clients: int
    work: Callable[[OnRound], object]
    seconds: Seconds = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._found: queue.SimpleQueue[tuple[RoundReport, float] | BaseException]
        self._found = queue.SimpleQueue()
        self._waited, self._over = 0.0, False
        self._thread = threading.Thread(target=self._run, name=f"server-{self.name}", daemon=True)
        self._thread.start()

    def turn(self) -> Laps:
        """Let the run go on until the next report."""
        gc.collect()  # nobody cleans up after another one
        busy = time.process_time()
        self._go.release()
        found = self._found.get()
        if isinstance(found, BaseException):
            raise found
        report, waited = found
        busy = time.process_time() - busy
        whole(self.name, report.round, report.survivors, self.clients)
        phases = ((phase.name, phase.seconds) for phase in report.phases)
        taken, apps = lap(report.wall_s, phases, waited), self.seconds[report.round]
        return Laps(taken | {APPS: apps, PROCESSOR: busy, BESIDES: taken[ROUND] - apps})

    def end(self) -> None:
        """End the run, wherever it waits."""
        self._over = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._over:
                self.work(self._finished)
        except _Over:
            pass
        except BaseException as error:
            self._found.put(error)

    def _finished(self, report: RoundReport) -> None:
        began = time.perf_counter()
        self._found.put((report, self._waited))
        self._go.acquire()
        self._waited = time.perf_counter() - began
        if self._over:
            raise _Over


def bench(
    schemes: Sequence[str], setting: Setting, progress: Progress = silent
) -> dict[str, Measured]:
    """Time rounds of plain FedAvg and of each scheme, in turns; by name.

    Raises ConfigError: an unknown scheme. FlheError: a round without some client.
    """
    names = contenders(schemes)
    with pinned(1), torch_threads(1), quiet("flwr", "flhe"), ExitStack() as stack:
        homes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flhe-rounds-")))
        data = [
            generated(task_named(setting.task), setting.images, SEED + i)
            for i in range(setting.clients)
        ]
        runs = []
        for name in names:
            seconds: Seconds = defaultdict(float)
            app = client_app(setting, data, seconds, *([] if name == PLAIN else [HEMod()]))
            grid = InProcessGrid(app, setting.clients, homes=homes / name)
            stack.callback(grid.close)
            run = Turns(name, setting.clients, _work(name, setting, grid), seconds)
            stack.callback(run.end)  # before its grid is closed
            runs.append(Contender(name, {ROUND: run.turn}))
        return measure(runs, setting.repeats, progress)


def title(setting: Setting) -> str:
    """What is measured, for a table."""
    parameters = sum(
        each.numel() for each in new_model(task_named(setting.task), SEED).parameters()
    )
    return (
        f"{setting.repeats} rounds of {setting.clients} clients: an epoch of {setting.task} "
        f"({parameters:,} parameters) on {setting.images} images each, then evaluation"
    )


def _work(name: str, setting: Setting, grid: InProcessGrid) -> Callable[[OnRound], object]:
    def work(on_round: OnRound) -> object:
        arrays = ArrayRecord(new_model(task_named(setting.task), SEED).state_dict())
        # One more than are counted, so that no counted turn has the run's end in it.
        rounds = setting.repeats + 2
        run = strategy(name, setting.clients, setting.images, on_round)
        return run.start(grid, arrays, num_rounds=rounds)

    return work


def client_app(setting: Setting, data: list[Any], seconds: Seconds, *mods: Any) -> ClientApp:
    """The client: an epoch on its own images, and a score; it notes its seconds."""

    def noted(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        # Of its own thread's processor: what the server does meanwhile is not training.
        began = time.thread_time()
        reply = call_next(message, context)
        number: Any = message.content.config_records["config"]["server-round"]
        seconds[number] += time.thread_time() - began
        return reply

    how = curves.Setting(setting.clients, 1, BATCH, RATE, "sgd")
    first = new_model(task_named(setting.task), SEED)
    return curves.client_app(first, data, how, *mods, noted, seed=SEED)
