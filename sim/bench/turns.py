"""The one way that anything is timed.

All contenders take turns within each repeat, so a machine that slows down slows all of them, and a
ratio of two rows of one run means something where a single time does not. The first turn is not
counted. One thread means one processor: `pinned` keeps the process there where the system allows it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from flhe.errors import ConfigError, FlheError
from flhe_lab.bench.contender import Contender
from flhe_lab.bench.host import pinned

Progress = Callable[[int, int, str], None]
"""(turns done, turns in all, what is running) -> None."""


def silent(_done: int, _all: int, _what: str) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one phase over the repeats."""

    min: float
    median: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of one contender."""

    contender: Contender  # Whose
    times: dict[str, Times]  # By phase; of all that it stands for, where it ran a sample
    error: float | None  # Of its mean
    repeats: int  # Turns that counted

    @property
    def least(self) -> dict[str, float]:
        """Seconds by phase, the least of the turns."""
        return {phase: times.min for phase, times in self.times.items()}


def measure(
    contenders: Sequence[Contender],
    repeats: int,
    progress: Progress = silent,
) -> dict[str, Measured]:
    """Time everybody in turns, and check every mean.

    Raises ConfigError: no repeats. FlheError: a mean that is not the mean; two contenders of one name.

    So many `repeats` count, after one that warms up. `progress` is told the turn and who runs.
    Returns what was found by name, in order.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")
    if len({contender.name for contender in contenders}) < len(contenders):
        raise FlheError("two contenders of one name: their seconds would be mixed")
    laps: dict[str, list[dict[str, float]]] = {c.name: [] for c in contenders}
    for turn in range(repeats + 1):
        for contender in contenders:
            if turn > contender.max_repeats or (turn == 0 and contender.max_repeats == 1):
                continue
            progress(turn, repeats + 1, contender.name)
            with pinned(contender.threads) if contender.threads else nullcontext():
                found = contender.turn()
            if turn > 0:  # the first turn warms up
                laps[contender.name].append(found)
    return {c.name: _measured(c, laps[c.name]) for c in contenders}


def _measured(contender: Contender, laps: Sequence[dict[str, float]]) -> Measured:
    times = {}
    for phase in dict.fromkeys(phase for lap in laps for phase in lap):
        taken = [lap.get(phase, 0.0) * contender.projection for lap in laps]
        times[phase] = Times(min(taken), statistics.median(taken))
    return Measured(contender, times, contender.checked(), len(laps))
