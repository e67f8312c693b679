"""What the workloads take to train, and a paper's evaluation of them as tables of rounds.

A line of such a table is one model and who trains it: what an iteration takes, moves, or comes to until
a model has converged. What is of the paper stands below what is of this machine. A round is made of
costs that were measured and a network that was not: seconds of work keep their marks, and whatever
waits for a link is projected, and so is the whole.

Learning curves are FLASHE's Fig. 9, BatchCrypt's Fig. 6 and ESAFL's Fig. 3 (d-f); SASH's Fig. 5 with
other models.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flhe_lab.advise.prices import Prices
from flhe_lab.advise.round_model import Breakdown, Work, simulate, typical
from flhe_lab.advise.wan import Link, Wan
from flhe_lab.bench.contender import Contender
from flhe_lab.bench.turns import measure
from flhe_lab.papers.convergence import Projection, project
from flhe_lab.papers.curves import COMPARISONS, SETTLED, Curve, compare, learned, quiet
from flhe_lab.tables.chart import Chart
from flhe_lab.tables.phase_costs import Cost, read
from flhe_lab.tables.result import Entry, Group, Marked, Result, measured, projected
from flhe_lab.tables.table import Fill, Found, Line, Numbers, Plan, Say, Section, Step

if TYPE_CHECKING:
    from flhe_app.tasks.base import Examples

_BOTH = "BatchCrypt, Fig. 6; ESAFL, Fig. 3"
_SASH = "in place of SASH, Fig. 5 (its own model:"

_MODELS = {
    "fcn": ("FCN", 101_770, 128, _BOTH),
    "alexnet": ("AlexNet", 1_250_000, 128, _BOTH),
    "lstm": ("LSTM", 4_020_000, 64, f"{_BOTH}; {_SASH} LSTM of 1.25M values)"),
    "resnet20": ("ResNet-20", 270_000, 128, f"FLASHE, Fig. 9; {_SASH} ResNet-18)"),
    "gru": ("GRU", 660_000, 128, "FLASHE, Fig. 9"),
    "cnn": ("CNN", 1_200_000, 128, f"FLASHE, Fig. 9; {_SASH} CNN of 0.2M values)"),
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
    key = f"training-{model}-{BATCH[model]}"
    return Step(key, lambda _say: _train(model, repeats), f"{NAMES[model]}: training")


def batch_s(model: str, found: Found, plan: Plan) -> Marked:
    """Seconds of one batch, of what `training_step` left."""
    return measured(found[training_step(model, plan).key]["seconds_per_batch"])


def trained(net: Any, examples: Examples, repeats: int) -> dict[str, Any]:
    """Train on all examples at once; the least seconds, after a turn that warms up, as JSON values."""
    from flhe_app.tasks.base import shuffler, train

    batch = len(examples.labels)

    def one() -> None:
        shuffle = shuffler(0, 0, 0)
        train(net, examples, epochs=1, learning_rate=0.001, batch_size=batch, shuffle=shuffle)

    with quiet(1):
        (found,) = measure([Contender("training", {"batch": one})], repeats).values()
    count = sum(parameter.numel() for parameter in net.parameters())
    return {"seconds_per_batch": found.times["batch"].min, "batch": batch, "parameters": count}


def _train(model: str, repeats: int) -> dict[str, Any]:
    from flhe_app.tasks import task_named
    from flhe_app.tasks.base import new_model
    from flhe_lab.bench.synthetic import generated

    task = task_named(model)
    return trained(new_model(task, 0), generated(task, BATCH[model], 0).train, repeats)


QUICK_ROUNDS = 3


def curves_step(model: str, plan: Plan) -> Step:
    """Learning curves of a model, plain and encrypted on the same batches."""
    data_dir = plan.data_dir
    # A digest of how it is trained and encrypted.
    digest = hashlib.sha256(repr(COMPARISONS[model]).encode()).hexdigest()
    key = f"curves-{learned(model, data_dir).name}-{digest[:8]}"

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
        Chart("lines", ("accuracy",), _says(curves), xlabel="round"),
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


def _says(curves: Sequence[Curve]) -> str:
    """Return the title: how far the encrypted curves end from the plain one."""
    plain, *others = curves
    ends = [abs(o.settled_after(n := len(o.accuracy)) - plain.settled_after(n)) for o in others]
    points = max(1, math.ceil(1000 * max(ends))) / 10
    return f"Encrypted training ends within {points} percentage points of plain training's accuracy"


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
        ("FLASHE Fig. 9", "BatchCrypt Fig. 6", "ESAFL Fig. 3", "SASH Fig. 5, other models"),
    ),
)


PARTS = ("training", "encryption", "decryption", "idle")
"""An iteration, as the papers' figures stack it; idle holds all else: transfers, server, waiting."""

TOTAL = "iteration"


@dataclass(frozen=True, slots=True)
class Round:
    """One round as the slowest client sees it."""

    parts: dict[str, Marked]  # PARTS as measured or sampled, and TOTAL; this and idle are projected
    breakdown: Breakdown  # The model's own account


def work_of(cost: Cost, train_s: float) -> Work:
    """What the round simulator is asked."""
    down = cost.upload_bytes if cost.down_bytes is None else cost.down_bytes
    return Work(
        train_s,
        cost.encrypt_s.value,
        cost.decrypt_s.value,
        cost.add_s.value,
        round(cost.upload_bytes.value),
        round(down.value),
    )


def played(cost: Cost, train_s: Marked, links: Sequence[Link]) -> Round:
    """Play one round of as many clients as there are links."""
    whole = typical(simulate(work_of(cost, train_s.value), links))
    own = whole.train_s + whole.encrypt_s + whole.decrypt_s
    idle, total = projected(whole.total_s - own), projected(whole.total_s)
    numbers = (train_s, cost.encrypt_s, cost.decrypt_s, idle, total)
    return Round(dict(zip((*PARTS, TOTAL), numbers, strict=True)), whole)


def row(model: str) -> str:
    """Name and size, as the papers round it."""
    return f"{NAMES[model]} ({VALUES[model] / 1e6:.2f}M)"


Costs = Callable[[str, Plan, Found], Iterable[Cost]]
"""(model, plan, found) -> everybody's costs at that model."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a paper evaluates."""

    models: tuple[str, ...]  # By growing size
    cohort: int  # Clients
    link: Wan  # Their network
    prices: Prices  # Of machines and traffic
    batches: int  # That a client trains in an iteration
    quick: str  # The only model of a quick run

    def steps(self, of: Callable[[str, Plan], Step]) -> Callable[[Plan], list[Step]]:
        """Everybody's costs at each model, in turns, and training; `of` is the step of a model."""

        def steps(plan: Plan) -> list[Step]:
            return [of(model, plan) for model in self.shown(plan)] + self.training(plan)

        return steps

    def costs(self, of: Callable[[str, Plan], Step], names: Sequence[str]) -> Costs:
        """Costs of those names, by model."""

        def costs_at(model: str, plan: Plan, found: Found) -> list[Cost]:
            seen = read(found[of(model, plan).key])
            return [seen[name] for name in names]

        return costs_at

    def shown(self, plan: Plan) -> tuple[str, ...]:
        """Models that a run measures."""
        return (self.quick,) if plan.quick else self.models

    def training(self, plan: Plan) -> list[Step]:
        """Seconds of a batch of each model."""
        return [training_step(model, plan) for model in self.shown(plan)]

    def train_s(self, model: str, plan: Plan, found: Found) -> Marked:
        """Seconds that a client trains in an iteration."""
        return batch_s(model, found, plan) * self.batches

    def iteration(self, cost: Cost, train_s: Marked) -> Round:
        """One round."""
        return played(cost, train_s, self.link.links(self.cohort))

    def ends(self, seen: Round, rounds: float) -> Projection:
        """Training to convergence, over so many rounds."""
        return project(seen.breakdown, rounds, self.prices, self.link, self.cohort)

    def filled(
        self,
        costs: Costs,
        numbers: Callable[[str, Cost, Round], Numbers],
        modes: Sequence[str] = (),
        told: Callable[[str, str], Numbers] = lambda _model, _mode: {},
    ) -> Fill:
        """A table, model by model: what was measured here, and below it the paper's `modes`.

        `numbers` takes (model, cost, its iteration), `told` (model, mode).
        """

        def fill(plan: Plan, found: Found) -> Iterator[Line]:
            for model in self.shown(plan):
                train_s = self.train_s(model, plan, found)
                for cost in costs(model, plan, found):
                    each = numbers(model, cost, self.iteration(cost, train_s))
                    yield Line(row(model), cost.who, cost.group, each)
                for mode in modes:
                    yield Line(row(model), mode, "paper", told(model, mode))

        return fill
