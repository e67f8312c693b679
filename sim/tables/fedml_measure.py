"""One aggregation of three updates by everybody, in turns: what FedML-HE's tables are made of.

Who takes part: FedAvg in clear; ours with a share p encrypted (`flhe.sim.fedml_ours`); bare TenSEAL
with the same share encrypted and the rest float32, weighed by the server as in the paper's own TenSEAL
version; all of it encrypted and weighed by clients, as NVIDIA FLARE does (`flhe.sim.fedml_ways`).

Seconds are of the processor, on one thread: one client's from float32 to bytes, the server's on three
uploads, one client's from bytes to the float32 mean. Of several turns the minimum of each counts.
Longer vectors than the longest that is taken are projected from that one: "sampled".
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flhe.coding.flatten import Entry as LayoutEntry
from flhe.coding.flatten import Layout
from flhe.coding.select import Select
from flhe.sim.fedml_models import COHORT
from flhe.sim.fedml_ours import OurWay
from flhe.sim.fedml_tables import mask_of, updates_of
from flhe.sim.fedml_ways import Cost, PlainWay, SelectedWay, TensealWay, Vector, Watch, Way
from flhe.sim.peers import SLOTS
from flhe.sim.tables import phase_costs, turns
from flhe.sim.tables.fedml_published import MOBILENET
from flhe.sim.tables.marked import Marked, counted, measured
from flhe.sim.tables.result import Group
from flhe.sim.tables.section import Plan, Say, Step

PLAIN, OURS = phase_costs.PLAIN, phase_costs.FEDML
TENSEAL, FLARE = "TenSEAL, server weighs", "TenSEAL, clients weigh"
SHARES = (0.0, 0.1, 0.5, 1.0)
"""Encrypted, of every model: all, Fig. 7's tenth and half; and none, to tell what the rest costs."""

WARM = 20_000
"""Values of the turn that warms up."""

ENOUGH_S = 30.0
"""Seconds after which two turns are enough, unless the plan is a quick one."""


def ours(share: float) -> str:
    """The name of ours with so much encrypted."""
    return OURS if share == 1 else f"{OURS}, {share:.0%} encrypted"


def tenseals(share: float) -> str:
    """The name of TenSEAL with so much encrypted."""
    return TENSEAL if share == 1 else f"TenSEAL, {share:.0%} encrypted"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What one aggregation took.

    Parameters
    ----------
    who, group
        Whose.
    encrypt_s, aggregate_s, decrypt_s : Marked
        Seconds: of one client, of the server, of one client.
    upload_bytes, download_bytes : Marked
        Of one client.
    """

    who: str
    group: Group
    encrypt_s: Marked
    aggregate_s: Marked
    decrypt_s: Marked
    upload_bytes: Marked
    download_bytes: Marked

    @property
    def total_s(self) -> Marked:
        """The three, one after the other: clients work at the same time."""
        return self.encrypt_s + self.aggregate_s + self.decrypt_s

    def cost(self) -> turns.Cost:
        """As the round simulator takes it."""
        each = self.aggregate_s / COHORT
        return turns.Cost(
            self.who, self.group, self.encrypt_s, each, self.decrypt_s, self.upload_bytes
        )


def longest(plan: Plan) -> int:
    """Values of the longest vector that is taken whole."""
    # Shares of it fill whole ciphertexts of 4096, so that they can be projected.
    return 30 * SLOTS if plan.quick else MOBILENET.values


def step(values: int, shares: Sequence[float], plan: Plan) -> Step:
    """The measurement for vectors of `values`, or for the longest that is taken, at these shares."""
    taken = min(values, longest(plan))
    slug = "-".join(f"{share:g}" for share in shares)
    return Step(
        f"fedml-turns-{taken}-{slug}" + ("-quick" if plan.quick else ""),
        lambda say: _measure(taken, shares, plan, say),
        f"FedML-HE and TenSEAL, {taken:,} values",
        weight=1 + taken * sum(shares) * plan.repeats / 1e6,
    )


def _measure(values: int, shares: Sequence[float], plan: Plan, say: Say) -> dict[str, Any]:
    return in_turns(ways_of(values, shares), updates_of(values), plan, say)


def ways_of(values: int, shares: Sequence[float]) -> dict[str, Way]:
    """Everybody, by name, for vectors of one length."""
    server = TensealWay(server_weighs=True)
    ways: dict[str, Way] = {PLAIN: PlainWay()}
    for share in shares:
        mask = mask_of(values, share)
        ways[ours(share)] = OurWay(mask)
        if share:
            ways[tenseals(share)] = server if mask is None else SelectedWay(server, mask)
    if 1.0 in shares:
        ways[FLARE] = TensealWay(server_weighs=False)
    return ways


def in_turns(
    ways: Mapping[str, Way], updates: Sequence[Vector], plan: Plan, say: Say
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes."""
    say("warming up")
    _warm_up()
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    began = time.perf_counter()
    for turn in range(plan.repeats):
        if turn > 1 and time.perf_counter() - began > ENOUGH_S:
            break
        for name, way in ways.items():
            say(f"turn {turn + 1}: {name}")
            costs[name].append(way.cost(updates))
    return {name: _row(found) for name, found in costs.items()}


@functools.cache
def _warm_up() -> None:
    """Have everything loaded and compiled that the first turn would wait for, once a process."""
    for way in (PlainWay(), OurWay(), OurWay(mask_of(WARM, 0.5)), TensealWay(True)):
        way.cost(updates_of(WARM))


def _row(costs: Sequence[Cost]) -> dict[str, Any]:
    phases = ("encrypt", "aggregate", "decrypt")
    return {
        **{phase: min(getattr(cost, f"{phase}_s") for cost in costs) for phase in phases},
        "up": costs[0].upload_bytes,
        "down": costs[0].download_bytes,
        "values": costs[0].values,
        "error": max(cost.error for cost in costs),
        "turns": len(costs),
    }


def read(found: Mapping[str, Any], values: int) -> dict[str, Aggregation]:
    """Name -> what it took for vectors of `values`, of what a step gave; projected where it sampled."""
    out = {}
    for name, row in found.items():
        factor, whole = values / row["values"], values == row["values"]

        def told(number: float, exact: bool, factor: float = factor, whole: bool = whole) -> Marked:
            if not whole:
                return Marked(number * factor, "sampled")
            return counted(number) if exact else measured(number)

        group: Group = "peer" if name.startswith("TenSEAL") else "ours"
        times = (told(row[phase], False) for phase in ("encrypt", "aggregate", "decrypt"))
        sizes = (told(row[way], True) for way in ("up", "down"))
        out[name] = Aggregation(name, group, *times, *sizes)
    return out


class ReducedWay:
    """Of each update only the values at agreed coordinates, under some way; the rest is remembered.

    What is not sent is added to the next update, as DoubleSqueeze does. Coordinates are the group's, as
    `Select(rest="drop")` has them: ciphertexts of different coordinates do not add up.

    Parameters
    ----------
    inner : Way
        What averages the values that are sent.
    values, count : int
        Of the whole update, and how many are sent.
    """

    def __init__(self, inner: Way, values: int, count: int) -> None:
        self.name = inner.name
        self._inner = inner
        layout = Layout((LayoutEntry("update", (values,), "float32"),))
        support = Select(count / values, "random").fixed(layout)
        self._coords = support.coords
        self._rest = [np.zeros(values, np.float32) for _ in range(COHORT)]

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once; choosing values and remembering the others counts."""
        watch, chosen = Watch(), []
        for rank, update in enumerate(updates):
            watch.start()
            whole = self._rest[rank]
            whole += update
            chosen.append(whole[self._coords])
            whole[self._coords] = 0
            watch.stop("encrypt", 1 / COHORT)
            whole[:] = 0  # every turn begins as the first: what piles up leaves the scheme's bounds
        cost = self._inner.cost(chosen)
        watch.start()
        mean = np.zeros_like(updates[0])
        mean[self._coords] = chosen[0]
        watch.stop("decrypt")
        return replace(
            cost,
            encrypt_s=cost.encrypt_s + watch.seconds["encrypt"],
            decrypt_s=cost.decrypt_s + watch.seconds["decrypt"],
            values=updates[0].size,
            measured=updates[0].size,
        )


REDUCED_SHARES = (0.3, 1.0)
"""Encrypted, of the values that are sent: Fig. 8's 30%, and Table 5's all."""


def reduced_step(values: int, count: int, plan: Plan) -> Step:
    """The measurement for `count` of `values` that are sent; a quick plan takes a part of both."""
    cut = 16 if plan.quick else 1
    whole, sent = values // cut, count // cut
    return Step(
        f"fedml-reduced-{whole}-{sent}" + ("-quick" if plan.quick else ""),
        lambda say: _measure_reduced(whole, sent, plan, say),
        f"FedML-HE and TenSEAL, {sent:,} of {whole:,} values",
        weight=1 + sent * 2.6 * plan.repeats / 1e6,
    )


def _measure_reduced(values: int, count: int, plan: Plan, say: Say) -> dict[str, Any]:
    inner = ways_of(_selected(values, count), REDUCED_SHARES)
    ways = {name: ReducedWay(way, values, count) for name, way in inner.items()}
    return in_turns(ways, updates_of(values), plan, say)


def _selected(values: int, count: int) -> int:
    """How many `Select` takes of so many, which is `count` but for rounding."""
    layout = Layout((LayoutEntry("update", (values,), "float32"),))
    return Select(count / values, "random").fixed(layout).count
