"""Times contenders that are in no shared list, as `phase_costs` does those that are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flhe.errors import FlheError
from flhe.sim.bench import PHASES, TOLERANCE, Times, take_turns
from flhe.sim.contenders import Contender
from flhe.sim.tables.marked import Mark, Marked
from flhe.sim.tables.phase_costs import Cost
from flhe.sim.tables.result import Group
from flhe.sim.tables.section import Say


def timed(contenders: Mapping[str, Contender], repeats: int, say: Say) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `costs` takes.

    A contender with a `projection` ran one part in so many; one with `bytes_mark` says how it knows
    its size.

    Raises
    ------
    FlheError
        A mean that is not the mean.
    """
    times = take_turns(list(contenders.values()), repeats, lambda _n, _m, who: say(who))
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        error = contender.max_error()
        if error is None or not error <= TOLERANCE:
            raise FlheError(f"{name}: its mean is off by {error}; its times mean nothing")
        factor = getattr(contender, "projection", 1.0)
        mark: Mark = "measured" if factor == 1.0 else "sampled"
        row: dict[str, Any] = {"note": contender.note}
        for phase in PHASES:
            seconds = Times.of(times[contender.name][phase])
            assert seconds is not None
            row[phase] = [seconds.min * factor, mark]
        row["bytes"] = [contender.upload_bytes, getattr(contender, "bytes_mark", "counted")]
        found[name] = row
    return found


def costs(found: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Cost]:
    """Name -> cost, of what `timed` gave; `groups` of those that are not ours."""
    out = {}
    for name, row in found.items():
        numbers = [Marked.from_json(row[key]) for key in (*PHASES, "bytes")]
        out[name] = Cost(name, groups.get(name, "ours"), *numbers)
    return out
