"""Who takes part in a measurement, and at which size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError
from flhe.schemes.sealed import Slot

Kind = Literal["scheme", "peer", "limit"]
Vector = NDArray[np.float32]
Work = Callable[[], object]

PHASES = ("encrypt", "add", "decrypt")
"""Update to upload; one upload into a sum; sum to mean."""

TOLERANCE = 1e-3
"""Largest error of a mean that still counts as the mean: far above any contender's, far below wrong."""

SLOT = Slot(0, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
"""Of all that is timed: one key and slot encrypt repeatedly, and protect nothing but random numbers."""

EXAMPLES = 1_000
"""Example count of every simulated client, and the bound that `Weigh` is given."""

MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    values: int = 1_200_000  # D, length of an update
    cohort: int = 10  # N, clients
    dropouts: int = 0
    """Clients whose upload is missing: every other one from rank 1 on, the worst case for masks."""
    threads: int = 1  # Threads of one client

    def __post_init__(self) -> None:
        for name, least in (("values", 1), ("cohort", 2), ("threads", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"--{name} {value}: must be at least {least}")
        if not 0 <= self.dropouts <= self.cohort - 2:
            raise ConfigError(
                f"--dropouts {self.dropouts} of --cohort {self.cohort}: two clients must remain"
            )

    @property
    def survivors(self) -> tuple[int, ...]:
        """Ranks of the clients whose uploads are in the sum; rank 0 always is."""
        order = [*range(1, self.cohort, 2), *range(0, self.cohort, 2)]
        gone = set(order[: self.dropouts])
        return tuple(j for j in range(self.cohort) if j not in gone)

    def updates(self) -> list[Vector]:
        """One update per client: Gaussian, sigma 0.02, always the same."""
        rng = np.random.default_rng(20)  # test data; keys and masks never come from here
        return [
            (rng.standard_normal(self.values, np.float32) * np.float32(0.02))
            for _ in range(self.cohort)
        ]


class Laps(dict[str, float]):
    """Seconds by phase that a work has clocked itself: what it made ready first is not in them."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One that takes part: what it does in each phase, and what is known of it."""

    name: str  # Of its row; no two in one measurement have the same
    phases: Mapping[str, Work]
    """Phase -> what is clocked; one that returns `Laps` is believed instead. Phases that it has
    no part in are left out: a limit does the least that anybody must do."""
    kind: Kind = "scheme"  # What it stands for
    note: str | None = None  # What one should know when reading its times
    upload_bytes: int | None = None  # What one client uploads
    sum_bytes: int | None = None  # What comes back, where that was counted apart
    error: Callable[[], float] | None = None
    """Largest error of the mean that the last turn gave; absent where there is no mean."""
    max_repeats: int = MANY
    """Repeats beyond which waiting for it teaches nothing. With 1 no turn warms it up."""
    projection: float = 1.0
    """Factor from what is run to what it stands for; names and notes of samples say "projected"."""
    counted: bool = True
    """Whether bytes are of all that it stands for, not projected too."""
    threads: int = 0  # Processors that it has; 0: as many as the others

    def turn(self) -> Laps:
        """Do everything once; seconds by phase."""
        laps = Laps()
        for phase, work in self.phases.items():
            began = time.perf_counter()
            found = work()
            laps |= found if isinstance(found, Laps) else Laps({phase: time.perf_counter() - began})
        return laps

    def checked(self) -> float | None:
        """Error of its mean, None without one.

        Raises FlheError: it is not the mean.
        """
        if self.error is None:
            return None
        error = self.error()
        if not error <= TOLERANCE:
            raise FlheError(f"{self.name}: its mean is off by {error:.3g}; its times mean nothing")
        return error


Make = Callable[[Setting, Sequence[Vector]], Contender]
"""(setting, updates) -> one that takes part."""


def part_of(make: Make, most: int) -> Make:
    """One that is given `most` values of each update; its seconds and bytes stand for all of them."""

    def made(setting: Setting, updates: Sequence[Vector]) -> Contender:
        taken = min(most, setting.values)
        part = make(replace(setting, values=taken), [update[:taken] for update in updates])
        factor = setting.values / taken
        size, whole = part.upload_bytes or 0, factor == 1.0
        return replace(
            part,
            projection=part.projection * factor,
            upload_bytes=size if whole else round(size * factor),
            sum_bytes=part.sum_bytes if whole else None,
            counted=part.counted and whole,
        )

    return made


def averaging(
    name: str,
    encrypt: Work,
    add: Work,
    decrypt: Callable[[], Vector],
    exact: Sequence[NDArray[Any]],
    **known: Any,
) -> Contender:
    """One whose `decrypt` gives the mean of `exact`, to which it is held; `known` as in `Contender`."""
    mean = np.empty(0, np.float32)

    def opened() -> None:
        nonlocal mean
        mean = decrypt()

    phases = {"encrypt": encrypt, "add": add, "decrypt": opened}
    return Contender(name, phases, error=lambda: worst(mean, exact), **known)


def worst(mean: NDArray[Any], updates: Sequence[NDArray[Any]]) -> float:
    """Largest absolute difference from the float64 mean."""
    exact = np.zeros(mean.size, np.float64)
    for update in updates:
        exact += update
    return float(np.max(np.abs(mean - exact / len(updates))))
