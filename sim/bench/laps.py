"""What rounds took: each is timed as any other turn, and compared with Flower's FedAvg in clear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flhe.errors import ConfigError, FlheError
from flhe.schemes import PLAIN
from flhe.strategies.overhead import OTHER
from flhe_lab.bench.contender import Laps
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Measured
from flhe_lab.rehearsal.app import SCHEMES

FORMAT, VERSION = "flhe rounds", 2
ROUND, APPS, PROCESSOR, BESIDES = "round", "apps", "processor", "besides"
"""Seconds of a lap that belong to no single phase: all of the round; the clients' own training and
evaluation; of this process's processor, all threads together; the round without the apps. Rounds of a
deployment tell the first one alone."""


def lap(wall_s: float, phases: Iterable[tuple[str, float]], waited_s: float) -> Laps:
    """Seconds of one round from its report; its server waited for its turn for `waited_s` seconds."""
    found = dict(phases)
    # The server waits between two requests, when all that passes is booked as "other".
    found[OTHER] = max(found.get(OTHER, 0.0) - waited_s, 0.0)
    return Laps(found | {ROUND: wall_s - waited_s})


def ratios(row: Measured, plain: Measured) -> dict[str, float]:
    """Ratios to the rounds of `plain`.

    "processor" is that of processor seconds. "apart" is the ratio if the apps of both had taken the
    same time: only what is beside the apps differs. Both are of medians, where they are known.
    """
    own, base = row.times, plain.times
    found = {
        "min": own[ROUND].min / base[ROUND].min,
        "median": own[ROUND].median / base[ROUND].median,
    }
    if PROCESSOR in own:
        more = own[BESIDES].median - base[BESIDES].median
        found[PROCESSOR] = own[PROCESSOR].median / base[PROCESSOR].median
        found["apart"] = 1 + more / base[ROUND].median
    return found


def contenders(schemes: Sequence[str]) -> tuple[str, ...]:
    """Plain FedAvg, then the schemes, each once.

    Raises ConfigError: an unknown scheme.
    """
    for name in schemes:
        if name not in (*SCHEMES, PLAIN):
            raise ConfigError(f"unknown scheme {name!r}; choose from {', '.join(SCHEMES)}")
    return tuple(dict.fromkeys((PLAIN, *schemes)))


def whole(name: str, number: int, survivors: int, clients: int) -> None:
    """Refuse a round without all clients: its seconds mean nothing. Raises FlheError."""
    if survivors != clients:
        raise FlheError(
            f"{name}, round {number}: {survivors} of {clients} clients are in its sum, so its "
            "seconds mean nothing; try again on a quieter machine"
        )


def to_data(rows: Mapping[str, Measured], setting: Any) -> dict[str, Any]:
    """Machine, setting and rows as JSON values."""
    plain = rows[PLAIN]
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine(),
        "setting": asdict(setting),
        "rows": [
            {
                "name": name,
                "ratio": ratios(row, plain),
                "seconds": {what: asdict(times) for what, times in row.times.items()},
            }
            for name, row in rows.items()
        ],
    }
