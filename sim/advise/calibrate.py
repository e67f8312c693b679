"""Measuring this machine, and keeping what was found: see `calibration`.

All points take turns on one processor, as in `flhe bench`; of each phase the least time counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flhe.coding.support import Support
from flhe_lab.advise import agreement_cost
from flhe_lab.advise.agreement_cost import Agreement, Sharing
from flhe_lab.advise.calibration import KEY, POINTS, VERSION, Calibration, installed
from flhe_lab.advise.check import HELD_OUT, Line, compare
from flhe_lab.advise.cost_model import SHARE, Point
from flhe_lab.bench.contender import Contender, Setting
from flhe_lab.bench.host import pinned
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.store import Store

SUPPORT, SUPPORT_VALUES = "supports", 500_000


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


def checked(progress: Progress = silent) -> tuple[Calibration, list[Line]]:
    """Measure anew, keep it, and hold what it predicts against what it was not calibrated on."""
    found, times, sizes = measure(also=HELD_OUT, progress=progress)
    Store(cache_folder()).put(KEY, found.to_json())
    return found, compare(found, HELD_OUT, times, sizes)
