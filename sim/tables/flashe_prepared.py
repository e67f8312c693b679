"""FLASHE, Figure 13, measured: an upload with and without masks that are computed ahead."""

from __future__ import annotations

from typing import Any

from flhe_lab import bench
from flhe_lab.bench import Setting
from flhe_lab.bench.schemes import flashe
from flhe_lab.tables.flashe_paper import COHORT
from flhe_lab.tables.section import Say


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Least seconds of each part, in turns: encrypt, prepare, encrypt_prepared, add, decrypt; bytes."""
    setting = Setting(values, COHORT)
    contender = flashe(setting, setting.updates(), ahead=True)
    found = bench.measure(
        [contender], repeats, lambda turn, _n, _who: say(f"turn {turn} of {repeats}")
    )
    times = found[contender.name].times
    return {name: each.min for name, each in times.items()} | {"bytes": contender.upload_bytes}
