"""Times contenders in turns, and says what a phase of each took, as numbers that carry marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flhe.errors import FlheError
from flhe.sim.bench import PHASES, TOLERANCE, Times, take_turns
from flhe.sim.contenders import Contender
from flhe.sim.tables.marked import Mark, Marked, proportional
from flhe.sim.tables.result import Group
from flhe.sim.tables.section import Say


@dataclass(frozen=True, slots=True)
class Cost:
    """What one contender took for one update.

    Parameters
    ----------
    who, group
        As in Entry.
    encrypt_s, add_s, decrypt_s : Marked
        Seconds: a client's, of one upload that is added, a client's; the minima of the turns.
    upload_bytes : Marked
        One client's upload; the sum comes back as long.
    """

    who: str
    group: Group
    encrypt_s: Marked
    add_s: Marked
    decrypt_s: Marked
    upload_bytes: Marked

    def work_s(self, uploads: int) -> Marked:
        """A client's encryption and decryption, and the server's additions."""
        return self.encrypt_s + self.decrypt_s + self.add_s * (uploads - 1)

    def scaled(self, factor: float) -> Cost:
        """The cost of `factor` times as many values."""
        numbers = (self.encrypt_s, self.add_s, self.decrypt_s, self.upload_bytes)
        return Cost(self.who, self.group, *(proportional(each, factor) for each in numbers))


def timed(
    contenders: Mapping[str, Contender],
    repeats: int,
    say: Say,
    scales: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `costs` takes.

    A contender with a `projection` ran one part in so many, and tells the bytes of all; one in `scales`
    was given one part in so many, and knows nothing of the rest. One with `bytes_mark` says how it
    knows its size.

    Raises
    ------
    FlheError
        A mean that is not the mean; two contenders of one name.
    """
    taking = list(contenders.values())
    if len({contender.name for contender in taking}) < len(taking):
        raise FlheError("two contenders of one name: their seconds would be mixed")
    # The minimum of seven turns is not to be compared with that of three: all have as many.
    repeats = min(repeats, *(contender.max_repeats for contender in taking))
    times = take_turns(taking, repeats, lambda _n, _m, who: say(who))
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        error = contender.max_error()
        if error is not None and not error <= TOLERANCE:
            raise FlheError(f"{name}: its mean is off by {error:.3g}; its times mean nothing")
        scale = (scales or {}).get(name, 1.0)
        factor = getattr(contender, "projection", 1.0) * scale
        mark: Mark = "measured" if factor == 1.0 else "sampled"
        row: dict[str, Any] = {"note": contender.note, "error": error}
        for phase in PHASES:
            seconds = Times.of(times[contender.name][phase])
            assert seconds is not None
            row[phase] = [seconds.min * factor, mark]
        size = contender.upload_bytes
        assert size is not None
        usual = "counted" if scale == 1.0 else "sampled"
        row["bytes"] = [size * scale, getattr(contender, "bytes_mark", usual)]
        found[name] = row
    return found


def costs(found: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Cost]:
    """Name -> cost, of what `timed` gave; `groups` of those that are not ours."""
    out = {}
    for name, row in found.items():
        numbers = [Marked.from_json(row[key]) for key in (*PHASES, "bytes")]
        out[name] = Cost(name, groups.get(name, "ours"), *numbers)
    return out
