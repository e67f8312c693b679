"""What rounds took: laps, a row for each contender, and ratios to Flower's FedAvg in clear."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flhe.errors import ConfigError, FlheError
from flhe.schemes import PLAIN
from flhe.strategies.overhead import OTHER
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Progress, Times, silent
from flhe_lab.rehearsal.app import SCHEMES

FORMAT, VERSION = "flhe rounds", 1
KNOWN = ("apps_s", "cpu_s", "outside_s")
"""What rounds in one process tell besides their seconds."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One round, from the report of the round before to its own."""

    seconds: float  # Of the whole round
    phases: Mapping[str, float]  # The same by phase, in the order of a round
    train_s: float | None = None  # Of them in the apps' own training, all clients together
    evaluate_s: float | None = None  # The same of evaluation
    cpu_s: float | None = None  # Of this process's processor in the turn, all threads together
    loss: float | None = None  # Of the round's model, as clients found it

    @classmethod
    def of(
        cls, wall_s: float, phases: Iterable[tuple[str, float]], waited_s: float, **more: Any
    ) -> Lap:
        """A lap from a round's report; its server waited for its turn for `waited_s` seconds."""
        found = dict(phases)
        # The server waits between two requests, when all that passes is booked as "other".
        found[OTHER] = max(found.get(OTHER, 0.0) - waited_s, 0.0)
        return cls(wall_s - waited_s, found, **more)

    @property
    def apps_s(self) -> float | None:
        """Seconds in the apps' own code."""
        if self.train_s is None or self.evaluate_s is None:
            return None
        return self.train_s + self.evaluate_s

    @property
    def outside_s(self) -> float | None:
        """Seconds besides the apps' own code."""
        return None if self.apps_s is None else self.seconds - self.apps_s


@dataclass(frozen=True, slots=True)
class Row:
    """All counted rounds of one contender."""

    name: str
    laps: tuple[Lap, ...]

    @property
    def seconds(self) -> Times:
        """Of a whole round."""
        return times(lap.seconds for lap in self.laps)

    def known(self, name: str) -> Times | None:
        """Of what `Lap` has under this name, such as "apps_s"; None where it is not known."""
        found = [getattr(lap, name) for lap in self.laps]
        return None if None in found else times(found)

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds by phase."""
        names = {name for lap in self.laps for name in lap.phases}
        return {
            name: statistics.median(lap.phases.get(name, 0.0) for lap in self.laps)
            for name in names
        }

    def over(self, plain: Row) -> dict[str, float | None]:
        """Ratios to the rounds of `plain`.

        "cpu" is that of processor seconds. "apart" is the ratio if the apps of both had taken the same
        time: only what is beside the apps differs. Both are of medians.
        """
        own, base = self.seconds, plain.seconds
        cpu, theirs = self.known("cpu_s"), plain.known("cpu_s")
        rest, less = self.known("outside_s"), plain.known("outside_s")
        return {
            "min": own.min / base.min,
            "median": own.median / base.median,
            "cpu": cpu.median / theirs.median if cpu and theirs else None,
            "apart": 1 + (rest.median - less.median) / base.median if rest and less else None,
        }


def times(seconds: Iterable[float]) -> Times:
    """The least and the median."""
    found = list(seconds)
    return Times(min(found), statistics.median(found))


def contenders(schemes: Sequence[str]) -> tuple[str, ...]:
    """Plain FedAvg, then the schemes, each once.

    Raises ConfigError: an unknown scheme.
    """
    for name in schemes:
        if name not in (*SCHEMES, PLAIN):
            raise ConfigError(f"unknown scheme {name!r}; choose from {', '.join(SCHEMES)}")
    return tuple(dict.fromkeys((PLAIN, *schemes)))


def in_turns(
    turns: Mapping[str, Callable[[], Lap]], repeats: int, progress: Progress = silent
) -> list[Row]:
    """Let all have a round each, then all the next one; the first of each does not count."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")
    laps: dict[str, list[Lap]] = {name: [] for name in turns}
    for number in range(repeats + 1):
        for name, turn in turns.items():
            progress(number, repeats + 1, name)
            laps[name].append(turn())
    return [Row(name, tuple(found[1:])) for name, found in laps.items()]


def whole(name: str, number: int, survivors: int, clients: int) -> None:
    """Refuse a round without all clients: its seconds mean nothing. Raises FlheError."""
    if survivors != clients:
        raise FlheError(
            f"{name}, round {number}: {survivors} of {clients} clients are in its sum, so its "
            "seconds mean nothing; try again on a quieter machine"
        )


def to_data(rows: Sequence[Row], setting: Any) -> dict[str, Any]:
    """Machine, setting and rows as JSON values; null for what is not known."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine(),
        "setting": asdict(setting),
        "rows": [
            {
                "name": row.name,
                "round_s": asdict(row.seconds),
                "ratio": row.over(rows[0]),
                **{name: (of := row.known(name)) and asdict(of) for name in KNOWN},
                "phases_s": row.phases,
                "rounds": [asdict(lap) for lap in row.laps],
            }
            for row in rows
        ],
    }
