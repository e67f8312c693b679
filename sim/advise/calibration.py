"""This machine's speed at each scheme: measured once, kept in the user's cache, asked by `flhe advise`.

All that is measured takes turns, on one processor, as in `flhe bench`, at sizes that span its caches.
Every scheme is timed at four clients, and one thing more where a cohort changes its work; see
`cost_model`. What is kept holds for one processor and one release of flhe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flhe.coding.support import Support
from flhe.errors import ConfigError
from flhe_lab.advise import agreement_cost
from flhe_lab.advise.agreement_cost import Agreement, Sharing
from flhe_lab.advise.cost_model import SHARE, TERMS, Fit, Point, Row, counts
from flhe_lab.advise.toml_files import load_toml
from flhe_lab.bench.contender import PHASES, Contender, Setting
from flhe_lab.bench.host import pinned
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.store import Store

VERSION = 3
"""Of what is measured, and how; another one is measured anew."""
KEY = "calibration"
SUPPORT, SUPPORT_VALUES = "supports", 500_000


DECLARED = load_toml(Path(__file__).with_name("points.toml"))
POINTS: tuple[Point, ...] = (
    *(
        Point(name, values, repeats=repeats)
        for each in DECLARED["base"]
        for name in each["names"]
        for values, repeats in each["sizes"]
    ),
    *(
        Point(name, values, cohort, dropouts, repeats, base=False)
        for name, each in DECLARED["beside"].items()
        for values, cohort, dropouts, repeats in each
    ),
)
"""What a calibration measures."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of one client's encryption, of adding one upload, of opening the sum."""

    encrypt_s: float
    add_s: float
    decrypt_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, and what follows for other sizes."""

    times: Mapping[str, Mapping[str, float]]
    """Point's key -> phase -> seconds, the least of its turns."""
    points: tuple[Point, ...]  # Those that have times
    agreements: Mapping[tuple[int, int], Agreement] = field(default_factory=dict)
    """(members, elements) -> cost, where all share with all."""
    support_s: float = 0.0  # Seconds to read one sender's support, a value of the model
    _laws: Mapping[tuple[str, str], Fit] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {point.name for point in self.points}
        laws = {(name, phase): self._law(name, phase) for name in names for phase in PHASES}
        object.__setattr__(self, "_laws", laws)

    def _law(self, name: str, phase: str) -> Fit:
        base: list[Row] = []
        more: list[Row] = []
        for point in self.points:
            if point.name == name:
                row = Row(*counts(point, phase), self.times[point.key][phase])
                (base if point.base else more).append(row)
        return Fit.of(base, more)

    def has(self, name: str) -> bool:
        """Whether that scheme was measured."""
        return any(point.name == name for point in self.points)

    def phases(self, name: str, values: int, cohort: int, dropouts: int = 0) -> Phases:
        """Seconds of each phase, for an update of `values` of `cohort` clients.

        Raises ConfigError: a scheme that was not measured.
        """
        if not self.has(name):
            raise ConfigError(f"{name}: it was not measured here; --calibrate measures it")
        point = Point(name, values, cohort, dropouts)
        return Phases(*(self._laws[name, phase].at(*counts(point, phase)) for phase in PHASES))

    def agreement(self, cohort: int, elements: int) -> Agreement:
        """What agreeing on masking keys takes, all with all."""
        return agreement_cost.interpolated(self.agreements, cohort, elements)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": VERSION,
            "times": self.times,
            "points": [asdict(point) for point in self.points],
            "agreements": [[*key, asdict(cost)] for key, cost in self.agreements.items()],
            "support_s": self.support_s,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Calibration:
        """Inverse of `to_json`; ConfigError for anything else."""
        try:
            return cls(
                found["times"],
                tuple(Point(**point) for point in found["points"]),
                {(n, length): Agreement(**cost) for n, length, cost in found["agreements"]},
                found["support_s"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"calibration: malformed ({error}); --calibrate renews it") from None


def installed(name: str) -> bool:
    """Whether what a scheme needs is there; FedAvg in clear needs nothing."""
    return name not in TERMS or not TERMS[name].scheme.needs.missing()


# --- measuring it, and keeping what was found ---


def probe(point: Point) -> Contender:
    """A contender under its point's name, in as many turns as the point says."""
    setting = Setting(point.values, point.cohort, point.dropouts)
    made = who.WHO[point.name](setting, setting.updates())
    return replace(made, name=point.key, max_repeats=point.repeats)


def measure(
    points: Sequence[Point] = POINTS,
    *,
    also: Sequence[Point] = (),
    progress: Progress = silent,
) -> tuple[Calibration, dict[str, dict[str, float]], dict[str, int]]:
    """Calibrate, and time further points in the same turns.

    Raises FlheError: a mean that is not the mean.

    Returns the calibration and, by key of `also`, seconds by phase and bytes of one upload.
    """
    ours, more = (
        tuple(point for point in some if installed(point.name)) for some in (points, also)
    )
    with pinned(1):
        probes: list[Contender] = []
        for point in (*ours, *more):
            what = f"{point.name}, {point.values:,} values: making it ready"
            progress(len(probes), len(ours) + len(more), what)
            probes.append(probe(point))
        sharing = {
            (members, length): Sharing(members, length)
            for members in agreement_cost.GROUPS
            for length in agreement_cost.ELEMENTS
        }
        others = [_support(SUPPORT_VALUES), *(each.contender() for each in sharing.values())]
        most = max(probe.max_repeats for probe in (*probes, *others))
        found = in_turns([*probes, *others], most, progress)
    times = {name: each.least for name, each in found.items()}
    sizes = {each.name: each.upload_bytes or 0 for each in probes}
    agreements = {key: Agreement(*times[each.name].values()) for key, each in sharing.items()}
    support_s = times[SUPPORT]["read"] / SUPPORT_VALUES
    calibration = Calibration({p.key: times[p.key] for p in ours}, ours, agreements, support_s)
    return calibration, {p.key: times[p.key] for p in more}, {p.key: sizes[p.key] for p in more}


def _support(values: int) -> Contender:
    """Reading one sender's random support."""
    rng = np.random.default_rng(7)  # test data
    coords = np.flatnonzero(rng.random(values) < SHARE).astype(np.uint32)
    data = Support.of(coords, values).data
    read = {"read": lambda: Support.from_bytes(data, values)}
    return Contender(SUPPORT, read, max_repeats=agreement_cost.REPEATS)


def cache_folder() -> Path:
    """Where calibrations are kept: XDG_CACHE_HOME/flhe, by default ~/.cache/flhe."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "flhe"


def load(
    folder: Path | None = None, *, renew: bool = False, progress: Progress = silent
) -> Calibration:
    """What is kept of this machine and release; measured, and kept, where there is nothing.

    Raises ConfigError: the cache cannot be used.

    They are in `folder`, by default the user's cache; `renew` measures anew.
    """
    store = Store(folder or cache_folder())
    data = None if renew else store.get(KEY)
    if data is not None and data["version"] == VERSION:
        kept = Calibration.from_json(data)
        if all(kept.has(point.name) for point in POINTS if installed(point.name)):
            return kept
    found, _, _ = measure(progress=progress)
    store.put(KEY, found.to_json())
    return found
