"""A paper's evaluation as tables of rounds: models, among so many clients, on one network.

A line of such a table is one model and who trains it: what an iteration takes, moves, or comes to until
a model has converged. What is of the paper stands below what is of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flhe_lab.advise.prices import Prices
from flhe_lab.advise.wan import Wan
from flhe_lab.papers.convergence import Projection, project
from flhe_lab.tables.learned import VALUES, batch_s, training_step
from flhe_lab.tables.marked import Marked
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.rounds import Round, played, row
from flhe_lab.tables.section import Found, Plan, Step
from flhe_lab.tables.table import Fill, Line, Numbers

Costs = Callable[[str, Plan, Found], Iterable[Cost]]
"""(model, plan, found) -> everybody's costs at that model."""

Part = Callable[[str, Plan, Found], Iterable[Line]]
"""(model, plan, found) -> lines of that model."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a paper evaluates.

    Parameters
    ----------
    models : tuple of str
        By growing size.
    cohort : int
        Clients.
    link : Wan
        Their network.
    prices : Prices
        Of machines and traffic.
    batches : int
        That a client trains in an iteration.
    quick : str
        The model that a quick run measures; the others are in proportion.
    """

    models: tuple[str, ...]
    cohort: int
    link: Wan
    prices: Prices
    batches: int
    quick: str

    def measured(self, plan: Plan) -> tuple[str, ...]:
        """Models whose costs are measured."""
        return (self.quick,) if plan.quick else self.models

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

    def ours(self, costs: Costs, numbers: Callable[[str, Cost, Round], Numbers]) -> Part:
        """Lines of what was measured here: (model, cost, its iteration) -> numbers."""

        def lines(model: str, plan: Plan, found: Found) -> Iterator[Line]:
            train_s = self.train_s(model, plan, found)
            for cost in costs(model, plan, found):
                seen = self.iteration(cost, train_s)
                yield Line(row(model), cost.who, cost.group, numbers(model, cost, seen))

        return lines

    def filled(self, *parts: Part) -> Fill:
        """A table of those parts, model by model."""

        def fill(plan: Plan, found: Found) -> Iterator[Line]:
            for model in self.models:
                for part in parts:
                    yield from part(model, plan, found)

        return fill


def papers(modes: Sequence[str], numbers: Callable[[str, str], Numbers]) -> Part:
    """Lines of what a paper says: (model, mode) -> numbers."""

    def lines(model: str, _plan: Plan, _found: Found) -> Iterator[Line]:
        for mode in modes:
            yield Line(row(model), mode, "paper", numbers(model, mode))

    return lines
