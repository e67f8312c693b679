"""Learning curves of the papers' six workloads, encrypted beside plain: `flhe tables learning-curves`.

FCN, AlexNet and LSTM under BatchCrypt and ESAFL, as in BatchCrypt's Fig. 6 and ESAFL's Fig. 3 (d-f);
ResNet-20, GRU and CNN under FLASHE, dense and with the largest 10% of values, as in its Fig. 9; CNN,
ResNet-20 and LSTM under SASH too, after its Fig. 5 (whose models have other sizes). All at 16 bits a
value.

What differs from the papers: three or four clients instead of nine or ten, and rounds of a few batches,
as many as a desk does in minutes: curves bend, and do not end where the papers' do. Optimizers are
theirs, learning rates are higher. All federations here average models; BatchCrypt's and ESAFL's step
with gradients. Batch norm's running statistics are sent as weights are, and whole where of others only
the largest 10% are sent: under error feedback they would overshoot (`flhe.coding.sparsify`). FCN and
CNN learn scikit-learn's digits, enlarged, and the figure says so, unless DATA has Fashion-MNIST or
FEMNIST.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flhe_lab.bench.turns import Progress
from flhe_lab.papers.learning import Arguments, Curve, Setting, learn, rounds_of, strategy

if TYPE_CHECKING:
    from flhe.strategies.report import RoundReport
    from flhe_app.tasks.workloads import Workload

PLAIN = "plain FedAvg"

BATCHCRYPT = ("BatchCrypt", {"scheme": "batchcrypt"})
SHORTER_KEY = ("BatchCrypt, 2048-bit key", {"scheme": "batchcrypt", "key_bits": 2048})
ESAFL = ("ESAFL", {"scheme": "esafl"})
SASH = ("SASH", {"scheme": "sash", "bits": 16})
FLASHE = ("FLASHE", {"scheme": "flashe"})
SPARSE = ("FLASHE, top 10%", {"scheme": "flashe", "top_k": 0.1, "warmup": 2})
"""Before the tenth, FLASHE's shares of 80, 40 and 20%, here for two rounds each: there are few."""


BATCH_NORM = {"*.running_*": 16.0, "*": 0.25}
"""Clipping thresholds where there is batch norm: its running variances move by up to 7 in a round,
weights by less than 0.02."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one workload is compared."""

    label: str  # The network's name in the figure
    setting: Setting  # How all its federations train
    runs: tuple[tuple[str, dict[str, Any]], ...]  # Encrypted ones: name, and `Arguments`


def _fewer(run: tuple[str, dict[str, Any]], rounds: int) -> tuple[str, dict[str, Any]]:
    """A run that ends early: Paillier takes its time with large models."""
    return run[0], {**run[1], "rounds": rounds}


COMPARISONS = {
    "fcn": Comparison(
        "FCN",
        Setting(4, 30, batch_size=128, learning_rate=1e-3, optimizer="adam"),
        (BATCHCRYPT, ESAFL),
    ),
    "alexnet": Comparison(
        "AlexNet",
        Setting(
            3,
            25,
            batch_size=64,
            batches=10,
            learning_rate=1e-4,
            test_images=300,
            optimizer="rmsprop",
        ),
        (_fewer(BATCHCRYPT, 12), ESAFL),
    ),
    "lstm": Comparison(
        "LSTM",
        Setting(
            3, 20, batch_size=8, batches=16, learning_rate=2e-3, test_images=64, optimizer="adam"
        ),
        (_fewer(SHORTER_KEY, 8), ESAFL, SASH),
    ),
    "resnet20": Comparison(
        "ResNet-20",
        Setting(
            4, 25, batch_size=64, batches=8, learning_rate=2e-3, test_images=200, optimizer="adam"
        ),
        tuple(
            (name, {**arguments, "clip": BATCH_NORM}) for name, arguments in (FLASHE, SPARSE, SASH)
        ),
    ),
    "gru": Comparison(
        "GRU",
        Setting(
            4, 30, batch_size=16, batches=12, learning_rate=5e-3, test_images=64, optimizer="adam"
        ),
        (FLASHE, SPARSE),
    ),
    "cnn": Comparison(
        "CNN",
        Setting(4, 30, batch_size=64, learning_rate=5e-4, optimizer="adam"),
        (FLASHE, SPARSE, SASH),
    ),
}
"""By workload."""


def compare(
    name: str,
    *,
    data_dir: str = "",
    rounds: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Curve]:
    """Run one workload's federations, plain FedAvg first; their curves in this order.

    Raises ConfigError: data that is missing. FlheError: a federation failed.

    `name` is one of COMPARISONS. Each federation has at most so many `rounds`, 0 for all; so many
    `workers` train at a time. `progress` receives (rounds done, rounds in all, what is going on).
    """
    found = COMPARISONS[name]
    most = min(rounds or found.setting.rounds, found.setting.rounds)
    setting = replace(found.setting, rounds=most)
    runs: dict[str, Arguments | None] = {PLAIN: None}
    for told, arguments in found.runs:
        fewer = {"rounds": min(arguments["rounds"], most)} if "rounds" in arguments else {}
        runs[told] = {**arguments, **fewer}
    task = learned(name, data_dir)
    data = task.load(data_dir, download=False)
    for how in runs.values():
        strategy(setting, len(data.train.labels), how)  # refuse now, not after hours
    total = sum(rounds_of(setting, how) for how in runs.values())
    turns, curves = itertools.count(1), []
    for told, how in runs.items():

        def note(report: RoundReport, told: str = told) -> None:
            if progress is not None:
                progress(next(turns), total, f"{told}: accuracy {report.accuracy:.4f}")

        curves.append(learn(told, task, data, setting, how, workers=workers, on_round=note))
    return curves


def learned(name: str, data_dir: str) -> Workload:
    """The workload; where `data_dir` lacks its images, on enlarged digits, as its name then says."""
    from flhe_app.tasks.images import Images
    from flhe_app.tasks.workloads import WORKLOADS

    task, stand_in = WORKLOADS[name], WORKLOADS.get(f"{name}-digits")
    if stand_in is None or (isinstance(task.source, Images) and task.source.there(data_dir)):
        return task
    return stand_in
