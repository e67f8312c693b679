"""Measuring this machine, and keeping what was found: see `calibration`.

All points take turns on one processor, as in `flhe bench`; of each phase the least time counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flhe.coding.support import Support
from flhe_lab.advise import agreement_cost
from flhe_lab.advise.calibration import KEY, POINTS, VERSION, Calibration, installed
from flhe_lab.advise.check import HELD_OUT, Line, compare
from flhe_lab.advise.cost_model import SHARE, Point
from flhe_lab.bench import Contender, Progress, Setting, pinned
from flhe_lab.bench import measure as in_turns
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.store import Store

SUPPORT_VALUES = 500_000


def probe(point: Point) -> Contender:
    """A contender under its point's name, in as many turns as the point says."""
    setting = Setting(point.values, point.cohort, point.dropouts)
    made = who.WHO[point.name].make(setting, setting.updates())
    return replace(made, name=point.key, max_repeats=point.repeats)


def timed(probes: Sequence[Contender], progress: Progress | None) -> dict[str, dict[str, float]]:
    """The least seconds of each phase by point's key, of turns that all take.

    Raises
    ------
    FlheError
        A mean that is not the mean.
    """
    found = in_turns(probes, max(probe.max_repeats for probe in probes), progress)
    return {
        name: {phase: times.min for phase, times in each.times.items()}
        for name, each in found.items()
    }


def measure(
    points: Sequence[Point] = POINTS,
    *,
    also: Sequence[Point] = (),
    progress: Progress | None = None,
) -> tuple[Calibration, dict[str, dict[str, float]], dict[str, int]]:
    """Calibrate, and time further points in the same turns.

    Returns
    -------
    Calibration
    dict
        Seconds of the points in `also`, by key and phase.
    dict
        Bytes of one upload of each of those, by key.
    """
    tell = progress or (lambda _done, _all, _what: None)
    steps = len(points) + len(also) + 1
    with pinned(1):
        probes = []
        for at, point in enumerate([p for p in (*points, *also) if installed(p.name)]):
            tell(at, steps, f"{point.name}, {point.values:,} values: making it ready")
            probes.append(probe(point))
        times = timed(probes, progress)
        sizes = {each.name: each.upload_bytes or 0 for each in probes}
        tell(steps - 1, steps, "masking keys")
        agreements = {
            (members, length): agreement_cost.share_with_all(members, length, 5)
            for members in (*agreement_cost.GROUPS, *agreement_cost.PACKED)
            for length in agreement_cost.ELEMENTS
        }
        support_s = _support(SUPPORT_VALUES)
    kept = {point for point in points if installed(point.name)}
    ours = Calibration(
        {point.key: times[point.key] for point in kept},
        tuple(point for point in points if point in kept),
        agreements,
        support_s,
    )
    more = [point.key for point in also if installed(point.name)]
    return ours, {key: times[key] for key in more}, {key: sizes[key] for key in more}


def _support(values: int) -> float:
    """Seconds to read one sender's random support, a value of the model."""
    rng = np.random.default_rng(7)  # test data
    coords = np.flatnonzero(rng.random(values) < SHARE).astype(np.uint32)
    data = Support.of(coords, values).data
    found = []
    for _ in range(5):
        began = time.perf_counter()
        Support.from_bytes(data, values)
        found.append(time.perf_counter() - began)
    return min(found) / values


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where calibrations are kept: XDG_CACHE_HOME/flhe, by default ~/.cache/flhe."""
    base = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(base) / "flhe"


def load(
    folder: Path | None = None, *, renew: bool = False, progress: Progress | None = None
) -> Calibration:
    """What is kept of this machine and release; measured, and kept, where there is nothing.

    Parameters
    ----------
    folder : Path, optional
        Where; the user's cache by default.
    renew : bool
        Measure anew.

    Raises
    ------
    ConfigError
        The cache cannot be used.
    """
    store = Store(folder or cache_folder())
    found = None if renew else _kept(store)
    if found is None:
        found, _, _ = measure(progress=progress)
        store.put(KEY, found.to_json())
    return found


def checked(progress: Progress | None = None) -> tuple[Calibration, list[Line]]:
    """Measure anew, keep it, and hold what it predicts against what it was not calibrated on."""
    found, times, sizes = measure(also=HELD_OUT, progress=progress)
    Store(cache_folder()).put(KEY, found.to_json())
    return found, compare(found, HELD_OUT, times, sizes)


def _kept(store: Store) -> Calibration | None:
    data = store.get(KEY)
    if data is None or data["version"] != VERSION:
        return None
    kept = Calibration.from_json(data)
    return kept if all(kept.has(p.name) for p in POINTS if installed(p.name)) else None
