"""A paper's evaluation as tables of rounds: models, among so many clients, on one network.

A line of such a table is one model and who trains it: what an iteration takes, moves, or comes to until
a model has converged. What is of the paper stands below what is of this machine. A round is made of
costs that were measured and a network that was not: seconds of work keep their marks, and whatever
waits for a link is projected, and so is the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flhe_lab.advise.prices import Prices
from flhe_lab.advise.round_model import Breakdown, Work, simulate, typical
from flhe_lab.advise.wan import Link, Wan
from flhe_lab.papers.convergence import Projection, project
from flhe_lab.tables.learned import NAMES, VALUES, batch_s, training_step
from flhe_lab.tables.phase_costs import Cost, read
from flhe_lab.tables.result import Marked, projected
from flhe_lab.tables.table import Fill, Found, Line, Numbers, Plan, Step

PARTS = ("training", "encryption", "decryption", "idle")
"""An iteration, as the paper's figures stack it; idle holds all else, transfers, the server's work and
waiting for others."""

TOTAL = "iteration"


@dataclass(frozen=True, slots=True)
class Round:
    """One round as the slowest client sees it."""

    parts: dict[
        str, Marked
    ]  # PARTS, as measured or sampled, and TOTAL; idle and total are projected
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
    quick: str  # The model that a quick run measures; the others are in proportion

    def steps(self, of: Callable[[str, Plan], Step]) -> Callable[[Plan], list[Step]]:
        """Everybody's costs at each model, in turns, and training; `of` is the step of a model."""

        def steps(plan: Plan) -> list[Step]:
            models = (self.quick,) if plan.quick else self.models
            return [of(model, plan) for model in models] + self.training(plan)

        return steps

    def costs(self, of: Callable[[str, Plan], Step], names: Sequence[str]) -> Costs:
        """Costs of those names, by model."""

        def costs_at(model: str, plan: Plan, found: Found) -> list[Cost]:
            at, factor = self.stands_for(model, plan)
            seen = read(found[of(at, plan).key])
            return [seen[name].scaled(factor) for name in names]

        return costs_at

    def stands_for(self, model: str, plan: Plan) -> tuple[str, float]:
        """The model that is measured for this one, and how many times its size this one is."""
        at = self.quick if plan.quick else model
        return at, VALUES[model] / VALUES[at]

    def training(self, plan: Plan) -> list[Step]:
        """Seconds of a batch of each model."""
        return [training_step(model, plan) for model in self.models]

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
            for model in self.models:
                train_s = self.train_s(model, plan, found)
                for cost in costs(model, plan, found):
                    each = numbers(model, cost, self.iteration(cost, train_s))
                    yield Line(row(model), cost.who, cost.group, each)
                for mode in modes:
                    yield Line(row(model), mode, "paper", told(model, mode))

        return fill
