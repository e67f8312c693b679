"""Seconds to draw noise, beside NumPy's and beside the encryption of the same vector."""

from __future__ import annotations

import numpy as np

from flhe.math import discrete_gaussian
from flhe_lab.bench.contender import Contender, Setting, Work
from flhe_lab.bench.schemes import flashe
from flhe_lab.bench.turns import measure

Timed = tuple[str, float, float]  # What one thread does; its seconds, least and median


def costs(values: int, repeats: int) -> list[Timed]:
    """Time what is done with vectors of so many values; all take turns."""
    setting, rng = Setting(values), np.random.default_rng()
    works: dict[str, Work] = {
        "draw float64 Gaussians (NumPy)": lambda: rng.normal(0.0, 2**14, values),
        "draw discrete Gaussians": lambda: discrete_gaussian.draw(values, 2**28),
        "encode and encrypt (FLASHE)": flashe(setting, setting.updates()).phases["encrypt"],
    }
    contenders = [Contender(name, {"once": work}, threads=1) for name, work in works.items()]
    found = {name: row.times["once"] for name, row in measure(contenders, repeats).items()}
    return [(name, times.min, times.median) for name, times in found.items()]
