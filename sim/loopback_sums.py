"""What came of a loopback deployment's runs: right sums, and who was in them.

Sums are checked against the updates themselves, which are known: a round's model minus the one before
is the mean of the updates of some set of sites, and of no other set. That says who took part, whatever
anybody reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe import records
from flhe.checkpoint import open_checkpoint
from flhe.errors import FlheError
from flhe.sim import loopback_app
from flhe.sim.bench.synthetic import initial
from flhe.sim.loopback import Loopback, Run
from flhe.sim.loopback_plan import SITES

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run.

    Parameters
    ----------
    number : int
        From 1.
    seconds : float
        As the server reports.
    sites : tuple of str
        Whose updates are in its sum.
    error : float
        Largest difference between the model's change and the mean of their updates.
    """

    number: int
    seconds: float
    sites: tuple[str, ...]
    error: float


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Parameters
    ----------
    scheme, status : str
        What ran, and what Flower says of it.
    seconds : float
        From its submission to its sealed model.
    rounds : tuple of Round
        All of them.
    """

    scheme: str
    status: str
    seconds: float
    rounds: tuple[Round, ...]


def result(loopback: Loopback, run: Run) -> Result:
    """What came of a run. FlheError where sites have different models."""
    rounds = []
    models = list(_models(loopback, run))
    for report, (before, after) in zip(run.rounds, itertools.pairwise(models), strict=True):
        sites, error = senders(run.scheme, after - before, report["round"], len(SITES))
        names = tuple(SITES[site] for site in sites)
        rounds.append(Round(report["round"], report["round_s"], names, error))
    return Result(run.scheme, run.status, run.ended - run.began, tuple(rounds))


def senders(
    scheme: str, change: NDArray[np.float64], number: int, sites: int
) -> tuple[tuple[int, ...], float]:
    """Whose updates of a round make this mean, and by how much it is off at most.

    Parameters
    ----------
    scheme : str
        Of the run.
    change : NDArray[float64]
        What the round added to the model, shape (values,).
    number : int
        The round.
    sites : int
        How many there are.
    """
    groups = (
        group
        for size in range(1, sites + 1)
        for group in itertools.combinations(range(sites), size)
    )
    off = {
        group: float(
            np.abs(change - loopback_app.mean(scheme, list(group), number, change.size)).max()
        )
        for group in groups
    }
    best = min(off, key=off.__getitem__)
    return best, off[best]


def _models(loopback: Loopback, run: Run) -> Iterator[NDArray[np.float64]]:
    """The model before the first round and after each one, as sites and the result have it."""
    yield _flat(records.to_numpy(initial(loopback.plan.values)))
    for number in range(2, loopback.plan.rounds + 1):
        received = [note["received"] for note in notes_of(loopback, run.id, number)]
        if not received or any(not np.array_equal(received[0], each) for each in received):
            raise FlheError(f"{run.scheme}: the sites' models differ in round {number}")
        yield received[0].astype(np.float64)
    if loopback.plan.reads(run.scheme):
        with np.load(run.place / "model.npz", allow_pickle=False) as arrays:
            yield _flat(dict(arrays))
    else:
        sealed = run.place / "model.flhe"
        yield _flat(open_checkpoint(sealed, loopback.home(SITES[0])).masters)


def _flat(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([array.reshape(-1) for array in arrays.values()]).astype(np.float64)


def notes_of(loopback: Loopback, run: int, number: int) -> list[dict[str, Floats]]:
    """What apps wrote down in a round."""
    found = []
    for name in SITES:
        path = loopback.notes(name) / f"{run}-{number}.npz"
        if path.exists():
            with np.load(path, allow_pickle=False) as arrays:
                found.append(dict(arrays))
    return found
