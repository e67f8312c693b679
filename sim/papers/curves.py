"""Learning curves of the papers' six workloads, encrypted beside plain: `flhe tables learning-curves`.

FCN, AlexNet and LSTM under BatchCrypt and ESAFL, as in BatchCrypt's Fig. 6 and ESAFL's Fig. 3 (d-f);
ResNet-20, GRU and CNN under FLASHE, dense and with the largest 10% of values, as in its Fig. 9; CNN,
ResNet-20 and LSTM under SASH too, after its Fig. 5 (whose models have other sizes). All at 16 bits a
value.

What differs from the papers is in the figures' notes; optimizers are theirs, learning rates are higher.
Batch norm's running statistics are sent as weights are, and whole where of others only the largest 10%
are sent: under error feedback they would overshoot (`flhe.coding.sparsify`). FCN and CNN learn
scikit-learn's digits, enlarged, and the figure says so, unless DATA has Fashion-MNIST or FEMNIST.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flhe_lab.bench.turns import Progress
from flhe_lab.papers.learning import Curve, Run, Setting, learn

if TYPE_CHECKING:
    from flhe.strategies.report import RoundReport
    from flhe_app.tasks.workloads import Workload

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
    name: str, *, data_dir: str = "", rounds: int = 0, progress: Progress | None = None
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
            if progress is not None:
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
