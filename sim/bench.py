"""`flhe bench`: what encryption costs, beside what nobody can beat and what a user would pick instead.

All contenders take turns within each repeat, so a machine that slows down slows all of them, and a
ratio of two rows of one run means something where a single time does not. The first turn is not
counted. One thread means one processor: the process is pinned where the system allows it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError, FlheError
from flhe.sim.contenders import Contender, FlasheContender, Kind, Setting, limits, scheme_named

PHASES = ("encrypt", "add", "decrypt")
TOLERANCE = 1e-3
"""Largest error of a mean that still counts as the mean: far above any contender's, far below wrong."""

Progress = Callable[[int, int, str], None]
"""(turns done, turns in all, what is running) -> None."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one phase over the repeats."""

    min: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times | None:
        """Minimum and median; None of nothing."""
        return cls(min(seconds), statistics.median(seconds)) if seconds else None

    def projected(self, factor: float) -> Times:
        """Of `factor` times as much work."""
        return Times(self.min * factor, self.median * factor)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's result; None where it has none."""

    name: str
    kind: Kind
    values: int
    cohort: int
    dropouts: int
    threads: int
    encrypt_s: Times | None
    add_s: Times | None
    decrypt_s: Times | None
    upload_bytes: int | None
    bytes_per_value: float | None
    max_error: float | None
    note: str | None


def bench(
    schemes: Sequence[str],
    setting: Setting,
    *,
    repeats: int = 20,
    with_peers: bool = False,
    top_k: float | None = None,
    select: float | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Time everything; check every mean.

    With `top_k`, FLASHE of so large a share of each update is a row of its own; with `select`, FedML-HE
    with so large a share encrypted, and what it leaves in clear.

    Raises
    ------
    ConfigError
        An unknown scheme, or a setting that cannot be measured.
    FlheError
        A mean that is not the mean.
    """
    if top_k is not None and not 0 < top_k < 1:
        raise ConfigError(f"--top-k {top_k}: must be a share between 0 and 1")
    if select is not None and not 0 < select < 1:
        raise ConfigError(f"--select {select}: must be a share between 0 and 1")
    if select is not None and "fedml-he" not in schemes:
        raise ConfigError("--select is timed with scheme fedml-he: name that scheme")
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")
    with pinned(setting.threads):
        updates = setting.updates()
        contenders = [scheme_named(name, setting, updates) for name in schemes]
        flashe = [c for c in contenders if isinstance(c, FlasheContender)]
        if "sash" in schemes:
            from flhe.sim.sash_contender import MATRIX, MaskPart, SashContender

            contenders += [MaskPart(setting), SashContender(setting, updates, MATRIX)]
            contenders.append(MaskPart(setting, MATRIX))
        if "esafl" in schemes:
            from flhe.sim.esafl_contender import NARROW, EsaflContender

            contenders.append(EsaflContender(setting, updates, NARROW))
        if select is not None:
            from flhe.sim.fedml_contender import ClearPart, FedmlContender

            part = FedmlContender(setting, updates, select)
            contenders += [part, ClearPart(part, setting)]
        if top_k is not None:
            from flhe.sim.sparse_contender import SparseContender

            contenders.append(SparseContender(setting, updates, top_k))
        contenders += limits(flashe[0] if flashe else FlasheContender(setting, updates))
        if with_peers:
            from flhe.sim.peers import peers

            contenders += peers(setting, updates)
        times = take_turns(contenders, repeats, progress)
    return [_row(c, setting, times[c.name]) for c in contenders]


def take_turns(
    contenders: Sequence[Contender], repeats: int, progress: Progress | None
) -> dict[str, dict[str, list[float]]]:
    """Seconds by contender's name and phase; all take turns, the first of which is not counted."""
    times: dict[str, dict[str, list[float]]] = {
        c.name: {phase: [] for phase in PHASES} for c in contenders
    }
    for turn in range(repeats + 1):
        for contender in contenders:
            if turn > contender.max_repeats:
                continue
            if progress is not None:
                progress(turn, repeats + 1, contender.name)
            for phase in PHASES:
                work = getattr(contender, phase)
                if work is None:
                    continue
                began = time.perf_counter()
                work()
                if turn > 0:  # the first turn warms up
                    times[contender.name][phase].append(time.perf_counter() - began)
    return times


def _row(contender: Contender, setting: Setting, times: dict[str, list[float]]) -> Row:
    error = contender.max_error()
    if error is not None and not error <= TOLERANCE:
        raise FlheError(f"{contender.name}: its mean is off by {error:.3g}; its times mean nothing")
    size = contender.upload_bytes
    # Of whom a sample is measured: whole update to sample. Their names and notes say "projected".
    factor = getattr(contender, "projection", 1.0)
    phases = {phase: Times.of(times[phase]) for phase in PHASES}
    whole = {phase: found and found.projected(factor) for phase, found in phases.items()}
    return Row(
        name=contender.name,
        kind=contender.kind,
        values=setting.values,
        cohort=setting.cohort,
        dropouts=setting.dropouts,
        threads=setting.threads,
        encrypt_s=whole["encrypt"],
        add_s=whole["add"],
        decrypt_s=whole["decrypt"],
        upload_bytes=size,
        bytes_per_value=None if size is None else size / setting.values,
        max_error=error,
        note=contender.note,
    )


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on `threads` processors, and libraries to as many threads."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if threads > len(before):
        raise ConfigError(f"--threads {threads}: this process may use {len(before)} processors")
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Flower's notes of every stage off the terminal; errors still show."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def machine() -> dict[str, Any]:
    """What it ran on."""
    import numpy

    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": version("numba"),
        "cryptography": version("cryptography"),
        "flhe": version("flhe"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def to_json(rows: Sequence[Row]) -> str:
    """Machine and rows, as one JSON document."""
    return json.dumps({"machine": machine(), "rows": [asdict(r) for r in rows]}, indent=2) + "\n"
