"""What came of a loopback deployment, what it has to show, and whether it did.

Every run is finished, and every sum right: a round's model minus the one before is the mean of the
updates of some set of sites, and of no other set, and the updates are known. That says who took part,
whatever anybody reports. No secret is on the wire, and a search would tell (`traffic`). A killed
SuperNode stops no run, and comes back. Every site's log shows the same contracts (`contracts`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe.mods import records
from flhe.node.checkpoint import open_checkpoint
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app, contracts, node_secrets
from flhe_lab.rehearsal.app import SITES, VICTIM, Plan
from flhe_lab.rehearsal.contracts import Logged
from flhe_lab.rehearsal.loopback import Loopback, Run
from flhe_lab.rehearsal.traffic import Traffic, search
from flhe_lab.rehearsal.updates import notes_of

MAX_ERROR = app.CLIP / 1000
"""Largest error of a mean: quantization to 16 bits makes a thirtieth of it."""
NODE_KEY = "SuperNode key"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run."""

    number: int  # From 1
    seconds: float  # As the server reports
    sites: tuple[str, ...]  # Whose updates are in its sum
    error: float  # Largest difference between the model's change and the mean of their updates


@dataclass(frozen=True, slots=True)
class Result:
    """One run: what Flower says of it, and seconds from its submission to its sealed model."""

    scheme: str
    status: str
    seconds: float
    rounds: tuple[Round, ...]
    logs: tuple[Logged, ...] = ()  # What each site's audit log shows of it


@dataclass(frozen=True, slots=True)
class Report:
    """What a deployment showed."""

    seconds: float  # From nothing to the end of the runs
    results: tuple[Result, ...]  # One a run
    killed: str  # Site whose SuperNode was killed; "" for none
    starts: int  # How often it was started in all
    killed_s: float  # Seconds from the beginning to its death
    back_s: float  # The same, to its return
    traffic: Traffic  # What was searched, and found
    wrong: tuple[str, ...]
    """All that is not as it must be, with the mend; empty for a deployment that works."""


def check(loopback: Loopback, seconds: float) -> Report:
    """Judge a deployment whose processes have ended, while its files are there.

    Raises FlheError: sites have different models.
    """
    results = tuple(_result(loopback, run) for run in loopback.runs)
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
        wrong=tuple(wrong(loopback.plan, results, traffic)),
    )


def _result(loopback: Loopback, run: Run) -> Result:
    rounds = []
    models = itertools.pairwise(_models(loopback, run))
    for report, (before, after) in zip(run.rounds, models, strict=True):
        sites, error = senders(run.scheme, after - before, report["round"], len(SITES))
        names = tuple(SITES[site] for site in sites)
        rounds.append(Round(report["round"], report["round_s"], names, error))
    logs = tuple(contracts.logged(loopback, run, site) for site in SITES)
    return Result(run.scheme, run.status, run.ended - run.began, tuple(rounds), logs)


def senders(
    scheme: str, change: NDArray[np.float64], number: int, sites: int
) -> tuple[tuple[int, ...], float]:
    """Whose updates of a round make this mean, and by how much it is off at most.

    `change` is what round `number` added to the model, shape (values,); there are so many `sites`.
    """
    sizes = range(1, sites + 1)
    groups = (group for size in sizes for group in itertools.combinations(range(sites), size))
    off = {
        group: float(np.abs(change - app.mean(scheme, list(group), number, change.size)).max())
        for group in groups
    }
    best = min(off, key=off.__getitem__)
    return best, off[best]


def _models(loopback: Loopback, run: Run) -> Iterator[NDArray[np.float64]]:
    """The model before the first round and after each one, as sites and the result have it."""
    yield _flat(records.to_numpy(initial(loopback.plan.values)))
    for number in range(2, loopback.plan.rounds + 1):
        received = [note["received"] for note in notes_of(loopback, run, number)]
        if not received or any(not np.array_equal(received[0], each) for each in received):
            raise FlheError(f"{run.scheme}: the sites' models differ in round {number}")
        yield received[0].astype(np.float64)
    yield _flat(open_checkpoint(run.place / app.MODEL, loopback.home(SITES[0])).masters)


def _flat(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([array.reshape(-1) for array in arrays.values()]).astype(np.float64)


def expected(plan: Plan) -> dict[str, int]:
    """How many secrets of each kind there are at least: every run has a key agreement of all sites."""
    sites, runs = len(SITES), len(plan.schemes)
    epochs = runs * (1 + plan.renew)
    return {
        **dict.fromkeys((NODE_KEY, node_secrets.IDENTITY), sites),
        node_secrets.GROUP: epochs,
        node_secrets.PAIR: epochs * sites * (sites - 1) // 2,
    }


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
        yield from contracts.wrong(plan, found.scheme, found.logs)
        for round_ in found.rounds:
            if round_.error > MAX_ERROR:
                yield (
                    f"{found.scheme}, round {round_.number}: the model is {round_.error:.2g} off the "
                    f"mean of {', '.join(round_.sites)}, {MAX_ERROR:.2g} is allowed"
                )
            dead = plan.kill and round_.number == app.HOLD_ROUND
            away = set(SITES) - set(round_.sites) - ({SITES[VICTIM]} if dead else set())
            if away:
                names = ", ".join(sorted(away))
                yield f"{found.scheme}, round {round_.number}: without {names}; see the logs"
