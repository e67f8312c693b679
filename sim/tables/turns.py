"""Times contenders in turns, and says what a phase of each took, as numbers that carry marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flhe_lab.bench import PHASES, Contender, measure
from flhe_lab.tables.marked import Mark, Marked, proportional
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Say


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
    sampled: Collection[str] = (),
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `costs` takes.

    A contender with a `projection` ran one part in so many, and tells the bytes of all; one in `scales`
    was given one part in so many, and knows nothing of the rest. Bytes of those in `sampled` are of a
    sample, too.

    Raises
    ------
    FlheError
        A mean that is not the mean; two contenders of one name.
    """
    # The minimum of seven turns is not to be compared with that of three: all have as many.
    repeats = min(repeats, *(contender.max_repeats for contender in contenders.values()))
    taken = measure([*contenders.values()], repeats, lambda _n, _m, who: say(who))
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        seen, scale = taken[contender.name], (scales or {}).get(name, 1.0)
        whole = contender.projection * scale == 1.0
        mark: Mark = "measured" if whole else "sampled"
        row: dict[str, Any] = {"note": contender.note, "error": seen.error}
        for phase in PHASES:
            row[phase] = [seen.times[phase].min * scale, mark]
        size = contender.upload_bytes
        assert size is not None
        usual = "sampled" if scale != 1.0 or name in sampled else "counted"
        row["bytes"] = [size * scale, usual]
        found[name] = row
    return found


def costs(found: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Cost]:
    """Name -> cost, of what `timed` gave; `groups` of those that are not ours."""
    out = {}
    for name, row in found.items():
        numbers = [Marked.from_json(row[key]) for key in (*PHASES, "bytes")]
        out[name] = Cost(name, groups.get(name, "ours"), *numbers)
    return out
