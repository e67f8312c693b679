"""One aggregation of three updates by everybody, in turns: what FedML-HE's tables are made of.

Who takes part: FedAvg in clear; ours with a share p encrypted; bare TenSEAL with the same share
encrypted and the rest float32, weighed by the server as in the paper's own TenSEAL version; all of it
encrypted and weighed by clients, as NVIDIA FLARE does (`flhe_lab.bench.fedml_ways`).

Seconds are of the processor, on one thread: one client's from float32 to bytes, the server's on three
uploads, one client's from bytes to the float32 mean. Of several turns the minimum of each counts.
Longer vectors than the longest that is taken are projected from that one: "sampled".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flhe.coding.select import Select
from flhe_lab.bench import Contender, Laps, Measured, Vector, fedml_ways
from flhe_lab.bench import measure as timed
from flhe_lab.bench.fedml_models import COHORT
from flhe_lab.bench.fedml_ways import Watch, Way, mask_of, updates_of
from flhe_lab.bench.peers import SLOTS
from flhe_lab.bench.schemes import layout_of
from flhe_lab.tables import phase_costs, turns
from flhe_lab.tables.fedml_published import MOBILENET
from flhe_lab.tables.marked import Marked, counted, measured
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Plan, Say, Step

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
    server = fedml_ways.bare(server_weighs=True)
    ways: dict[str, Way] = {PLAIN: fedml_ways.plain}
    for share in shares:
        mask = mask_of(values, share)
        ways[ours(share)] = fedml_ways.ours(mask)
        if share:
            ways[tenseals(share)] = server if mask is None else fedml_ways.selected(server, mask)
    if 1.0 in shares:
        ways[FLARE] = fedml_ways.bare(server_weighs=False)
    return ways


def in_turns(
    ways: Mapping[str, Way], updates: Sequence[Vector], plan: Plan, say: Say
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes."""
    say("warming up")
    _warm_up()
    found = timed(
        [replace(way(updates), name=name) for name, way in ways.items()],
        plan.repeats,
        lambda turn, _n, who: say(f"turn {turn}: {who}"),
        enough_s=ENOUGH_S,
        warm=False,
    )
    return {name: _row(each, updates[0].size) for name, each in found.items()}


@functools.cache
def _warm_up() -> None:
    """Have everything loaded and compiled that the first turn would wait for, once a process."""
    part = fedml_ways.ours(mask_of(WARM, 0.5))
    for way in (fedml_ways.plain, fedml_ways.ours(), part, fedml_ways.bare(server_weighs=True)):
        way(updates_of(WARM)).turn()


def _row(found: Measured, values: int) -> dict[str, Any]:
    upload, download = found.contender.known_sizes()
    return {
        **{phase: found.times[phase].min for phase in ("encrypt", "aggregate", "decrypt")},
        "up": upload,
        "down": download,
        "values": values,
        "error": found.error,
        "turns": found.repeats,
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


def reduced(way: Way, values: int, count: int) -> Way:
    """Of each update only the values at agreed coordinates, under `way`; the rest is remembered.

    What is not sent is added to the next update, as DoubleSqueeze does. Coordinates are the group's, as
    `Select(rest="drop")` has them: ciphertexts of different coordinates do not add up. Choosing values
    and remembering the others counts.

    Parameters
    ----------
    way : Way
        What averages the values that are sent.
    values, count : int
        Of the whole update, and how many are sent.
    """
    coords = Select(count / values, "random").fixed(layout_of(values)).coords
    rest = [np.zeros(values, np.float32) for _ in range(COHORT)]

    def make(updates: Sequence[Vector]) -> Contender:
        watch = Watch()
        inner = way([update[coords] for update in updates])

        def turn() -> Laps:
            for whole, update in zip(rest, updates, strict=True):
                with watch.client():
                    np.add(whole, update, out=whole)
                    chosen = whole[coords]
                    whole[coords] = 0
                whole[:] = 0  # turns begin alike: what piles up leaves the scheme's bounds
            laps = inner.turn()
            with watch.phase("decrypt"):
                mean = np.zeros_like(updates[0])
                mean[coords] = chosen
            return fedml_ways.added(watch.end(mean, *inner.known_sizes()), laps)

        made = watch.contender(inner.name, turn, updates)
        return replace(made, error=inner.error)

    return make


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
    ways = {name: reduced(way, values, count) for name, way in inner.items()}
    return in_turns(ways, updates_of(values), plan, say)


def _selected(values: int, count: int) -> int:
    """How many `Select` takes of so many, which is `count` but for rounding."""
    return Select(count / values, "random").fixed(layout_of(values)).count
