"""How what was measured grows with the number of clients, and what more of them would take.

The powers of N are what theory says of a quantity, not what fits best: y = sum of c_p N^p, no c_p below
0, by least squares of relative errors. How far the points lie from it says whether theory holds.
A whole follows the sum of its parts' laws: fitted apart, it might grow more slowly than a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

NAMES = {0: "constant", 1: "linear", 2: "quadratic"}


@dataclass(frozen=True, slots=True)
class Growth:
    """A law and how well it holds."""

    powers: tuple[int, ...]  # p of each term, ascending
    factors: tuple[float, ...]  # c_p of each, not below 0
    residual: float  # Largest relative distance of a point from it
    points: int
    """Through how many it was laid; with no more points than terms, it passes through all of
    them."""

    @property
    def name(self) -> str:
        """In a word, by its largest term."""
        return NAMES[
            max((p for p, c in zip(self.powers, self.factors, strict=True) if c), default=0)
        ]

    def at(self, clients: float) -> float:
        """What it says of so many; beyond those that were run, a projection."""
        return sum(c * clients**p for p, c in zip(self.powers, self.factors, strict=True))


def growth(clients: Sequence[int], found: Sequence[float], powers: Sequence[int]) -> Growth:
    """Lay the law of these powers through the points."""
    n, y = np.asarray(clients, np.float64), np.asarray(found, np.float64)
    terms = sorted(set(powers))
    best: tuple[float, tuple[float, ...]] | None = None
    for count in range(1, min(len(terms), len(set(clients))) + 1):
        for chosen in combinations(terms, count):
            scaled = np.stack([n**p / y for p in chosen], axis=1)
            solved = np.linalg.lstsq(scaled, np.ones_like(y), rcond=None)[0]
            if solved.min() < 0:
                continue
            off = float(np.sum((scaled @ solved - 1) ** 2))
            if best is None or off < best[0] * (1 - 1e-9):
                by_power = dict(zip(chosen, solved.tolist(), strict=True))
                best = off, tuple(by_power.get(p, 0.0) for p in terms)
    assert best is not None  # one term alone has a factor above 0
    return _against(clients, found, tuple(terms), best[1])


def together(parts: Sequence[Growth], clients: Sequence[int], found: Sequence[float]) -> Growth:
    """Add up the laws of the parts of a whole; no part then exceeds the whole, at any N.

    There is one part at least. `clients` and `found` are the whole as it was measured: the residual is
    its distance from the sum.
    """
    powers = sorted({p for part in parts for p in part.powers})
    factors = dict.fromkeys(powers, 0.0)
    for part in parts:
        for p, c in zip(part.powers, part.factors, strict=True):
            factors[p] += c
    return _against(clients, found, tuple(powers), tuple(factors.values()))


def _against(
    clients: Sequence[int],
    found: Sequence[float],
    powers: tuple[int, ...],
    factors: tuple[float, ...],
) -> Growth:
    law = Growth(powers, factors, 0.0, len(found))
    residual = max(abs(law.at(n) / y - 1) for n, y in zip(clients, found, strict=True))
    return Growth(powers, factors, residual, len(found))
