"""What a loopback deployment has to show, and whether it did.

every run is finished, every sum right           `loopback_sums`
no secret on the wire, and a search would tell   `loopback_traffic`
a killed SuperNode stops no run, and comes back
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flhe.sim.rehearsal import app as loopback_app
from flhe.sim.rehearsal.derived_secrets import DERIVED
from flhe.sim.rehearsal.loopback import Loopback
from flhe.sim.rehearsal.node_secrets import (
    CONTRIBUTION,
    EPHEMERAL,
    GROUP,
    IDENTITY,
    MODEL,
    PAIR,
    UPDATE,
)
from flhe.sim.rehearsal.plan import SITES, VICTIM, Plan
from flhe.sim.rehearsal.sums import Result, result
from flhe.sim.rehearsal.traffic import Traffic, search
from flhe.sim.rehearsal.updates import LANES, TRAINED

MAX_ERROR = loopback_app.CLIP / 1000
"""Largest error of a mean: quantization to 16 bits makes a thirtieth of it."""
NODE_KEY = "SuperNode key"


def expected(plan: Plan) -> dict[str, int]:
    """How many secrets of each kind there are at least: every run has a key agreement of all sites.

    Beyond that, nothing may be missing of any member of any key agreement, nor of any site and round:
    see `Traffic.missing`.
    """
    sites, runs = len(SITES), len(plan.schemes)
    vectors = runs * (sites * plan.rounds - plan.kill)
    models = sum(not plan.reads(scheme) for scheme in plan.schemes) * (plan.rounds - 1)
    return {
        NODE_KEY: sites,
        IDENTITY: sites,
        EPHEMERAL: runs * sites,
        CONTRIBUTION: runs * sites,
        GROUP: runs,
        PAIR: runs * sites * (sites - 1) // 2,
        DERIVED: runs,
        UPDATE: vectors,
        TRAINED: vectors,
        LANES: vectors,
        MODEL: models,
    }


@dataclass(frozen=True, slots=True)
class Report:
    """What a deployment showed.

    Parameters
    ----------
    seconds : float
        From nothing to the end of the runs.
    results : tuple of Result
        One a run.
    killed : str
        Site whose SuperNode was killed; "" for none.
    starts : int
        How often it was started in all.
    killed_s, back_s : float
        Seconds from the beginning to its death, and to its return.
    traffic : Traffic
        What was searched, and found.
    scratch : str
        Where all files were.
    wrong : tuple of str
        All that is not as it must be, with the mend; empty for a deployment that works.
    """

    seconds: float
    results: tuple[Result, ...]
    killed: str
    starts: int
    killed_s: float
    back_s: float
    traffic: Traffic
    scratch: str
    wrong: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def check(loopback: Loopback, seconds: float) -> Report:
    """Judge a deployment whose processes have ended, while its files are there.

    Parameters
    ----------
    loopback : Loopback
        The deployment.
    seconds : float
        How long it took.
    """
    results = tuple(result(loopback, run) for run in loopback.runs)
    traffic = search(loopback)
    victim = SITES[VICTIM]
    return Report(
        seconds=seconds,
        results=results,
        killed=victim if loopback.plan.kill else "",
        starts=loopback.machines.nodes[victim].starts,
        killed_s=loopback.killed_s,
        back_s=loopback.back_s,
        traffic=traffic,
        scratch=str(loopback.scratch),
        wrong=tuple(wrong(loopback.plan, results, traffic)),
    )


def wrong(plan: Plan, results: Sequence[Result], traffic: Traffic) -> Iterator[str]:
    """All that is not as it must be, in words."""
    for each in traffic.found:
        yield f"{each.kind}: {each.count} windows of it in {each.place}: this must never travel"
    for name, there in traffic.controls.items():
        if not there:
            yield f"the search did not find {name}, which is there: its verdict is worth nothing"
    for kind, least in expected(plan).items():
        collected = traffic.searched.get(kind, 0)
        if collected < least:
            yield (
                f"no {kind} was collected, or too few ({collected} of {least}), so none was looked "
                "for: look at the state directories"
            )
    for what in traffic.missing:
        yield f"not collected: {what}; so it was not looked for"
    for found in results:
        if len(found.rounds) != plan.rounds:
            yield f"{found.scheme}: {len(found.rounds)} of {plan.rounds} rounds were reported"
        for round_ in found.rounds:
            if round_.error > MAX_ERROR:
                yield (
                    f"{found.scheme}, round {round_.number}: the model is {round_.error:.2g} off the "
                    f"mean of {', '.join(round_.sites)}, {MAX_ERROR:.2g} is allowed"
                )
            dead = plan.kill and round_.number == loopback_app.HOLD_ROUND
            away = set(SITES) - set(round_.sites) - ({SITES[VICTIM]} if dead else set())
            if away:
                names = ", ".join(sorted(away))
                yield f"{found.scheme}, round {round_.number}: without {names}; see the logs"
