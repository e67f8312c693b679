"""What the workloads take to train: seconds of a batch, for the round simulator; and learning curves.

FLASHE's Fig. 9, BatchCrypt's Fig. 6, ESAFL's Fig. 3 (d-f) and SASH's Fig. 5 are of the curves.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from flhe_lab.bench.contender import Contender
from flhe_lab.bench.turns import measure
from flhe_lab.papers.curves import COMPARISONS, SETTLED, Curve, compare, learned, quiet
from flhe_lab.tables.chart import Chart
from flhe_lab.tables.result import Entry, Group, Marked, Result, measured
from flhe_lab.tables.table import Found, Plan, Say, Section, Step

_MODELS = {
    "fcn": ("FCN", 101_770, 128, "BatchCrypt, Fig. 6; ESAFL, Fig. 3"),
    "alexnet": ("AlexNet", 1_250_000, 128, "BatchCrypt, Fig. 6; ESAFL, Fig. 3"),
    "lstm": ("LSTM", 4_020_000, 64, "BatchCrypt, Fig. 6; ESAFL, Fig. 3; SASH, Fig. 5"),
    "resnet20": ("ResNet-20", 270_000, 128, "FLASHE, Fig. 9; SASH, Fig. 5"),
    "gru": ("GRU", 660_000, 128, "FLASHE, Fig. 9"),
    "cnn": ("CNN", 1_200_000, 128, "FLASHE, Fig. 9; SASH, Fig. 5"),
}
"""Model -> its name in the papers; parameters as they round them, which costs are measured at; examples
in a batch (FLASHE, Sec. 6.1; BatchCrypt, Sec. 6.1); the figures that show its learning curves."""

NAMES = {model: name for model, (name, _, _, _) in _MODELS.items()}
VALUES = {model: values for model, (_, values, _, _) in _MODELS.items()}
BATCH = {model: batch for model, (_, _, batch, _) in _MODELS.items()}


def training_step(model: str, plan: Plan) -> Step:
    """Seconds of one batch of a workload, on one processor, over generated data.

    Its result: {"seconds_per_batch", "batch", "parameters"}.
    """
    repeats = 2 if plan.quick else 5
    key = f"training-{model}-{BATCH[model]}" + ("-quick" if plan.quick else "")
    return Step(key, lambda _say: _train(model, repeats), f"{NAMES[model]}: training")


def batch_s(model: str, found: Found, plan: Plan) -> Marked:
    """Seconds of one batch, of what `training_step` left."""
    return measured(found[training_step(model, plan).key]["seconds_per_batch"])


def batch_seconds(train: Callable[[], object], repeats: int) -> float:
    """The least seconds of one batch, after one that warms up."""
    (found,) = measure([Contender("training", {"batch": train})], repeats).values()
    return found.times["batch"].min


def _train(model: str, repeats: int) -> dict[str, Any]:
    from flhe_app.tasks import task_named
    from flhe_app.tasks.base import new_model, shuffler, train
    from flhe_app.tasks.workloads import generated

    task, batch = task_named(model), BATCH[model]
    net, turns = new_model(task, 0), itertools.count()
    examples = generated(task, batch, 0).train

    def one() -> None:
        shuffle = shuffler(0, 0, next(turns))
        train(net, examples, epochs=1, learning_rate=0.001, batch_size=batch, shuffle=shuffle)

    with quiet(1):
        seconds = batch_seconds(one, repeats)
    count = sum(parameter.numel() for parameter in net.parameters())
    return {"seconds_per_batch": seconds, "batch": batch, "parameters": count}


QUICK_ROUNDS = 3


def curves_step(model: str, plan: Plan) -> Step:
    """Learning curves of a model, plain and encrypted on the same batches."""
    data_dir = plan.data_dir
    # A digest of how it is trained and encrypted.
    digest = hashlib.sha256(repr(COMPARISONS[model]).encode()).hexdigest()
    key = f"curves-{learned(model, data_dir).name}-{digest[:8]}" + ("-quick" if plan.quick else "")

    def work(say: Say) -> Any:
        found = compare(
            model,
            data_dir=data_dir,
            rounds=QUICK_ROUNDS if plan.quick else 0,
            progress=lambda _done, _all, what: say(what),
        )
        title = learned(model, data_dir).source.title
        return {"task": title, "curves": [asdict(curve) for curve in found]}

    return Step(key, work, f"{NAMES[model]}: learning curves", threads=0)


def _models(plan: Plan) -> tuple[str, ...]:
    if plan.quick:
        return ("fcn",)  # which learns what is installed, where there is nothing else
    return tuple(m for m in NAMES if learned(m, plan.data_dir).source.there(plan.data_dir))


def _figure(model: str, found: Any) -> Result:
    curves = [Curve(c["name"], c["accuracy"], c["loss"]) for c in found["curves"]]
    entries: list[Entry] = []
    for curve in curves:
        group: Group = "peer" if curve is curves[0] else "ours"
        for what, values in (("accuracy", curve.accuracy), ("loss", curve.loss)):
            entries += [
                Entry(f"round {i}", curve.name, group, what, "", measured(value), float(i))
                for i, value in enumerate(values, 1)
            ]
    return Result(
        f"curves-{model}",
        f"Learning curves, {_MODELS[model][3]}",
        f"{NAMES[model]} on {found['task']}, encrypted beside plain",
        tuple(entries),
        Chart("lines", ("accuracy", "loss"), xlabel="round"),
        (_setting(model), _apart(curves)),
    )


def _setting(model: str) -> str:
    """How it was trained, and what differs from the papers', in words."""
    how = COMPARISONS[model].setting
    work = f"{how.batches} batches" if how.batches else "1 epoch"
    return (
        f"{how.clients} clients, {work} of {how.batch_size} in a round, {how.optimizer} with a "
        f"learning rate of {how.learning_rate:g}; models are averaged. The papers have nine or ten "
        "clients, more data and rounds, and BatchCrypt and ESAFL gradients: these curves are to lie on "
        "each other, not on the papers'."
    )


def _apart(curves: Sequence[Curve]) -> str:
    """How far the encrypted curves lie from the plain one, in words."""
    plain, *others = curves
    said = []
    for curve in others:
        rounds = len(curve.accuracy)
        settled = curve.settled_after(rounds) - plain.settled_after(rounds)
        gap = f"{curve.name} {curve.gap(plain):.3f} in {rounds} rounds"
        said.append(f"{gap}, {settled:+.4f} over the last")
    return (
        "Largest difference of accuracy from plain FedAvg on the same batches in any one round, and of "
        f"the mean over the last {SETTLED}, or all: {'; '.join(said)}."
    )


SECTIONS: tuple[Section, ...] = (
    Section(
        "learning-curves",
        "learned",
        lambda plan: [curves_step(model, plan) for model in _models(plan)],
        lambda plan, found: [_figure(m, found[curves_step(m, plan).key]) for m in _models(plan)],
        ("FLASHE Fig. 9", "BatchCrypt Fig. 6", "ESAFL Fig. 3", "SASH Fig. 5"),
    ),
)
