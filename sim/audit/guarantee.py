"""Guarantee: how well any attack can tell whether a record is in the data, by (epsilon, delta).

    TPR <= e^epsilon FPR + delta        and        1 - FPR <= e^epsilon (1 - TPR) + delta

The area under that curve bounds the AUC. The curve is concave, so it holds for means over records too.
With FPR the chance of a guess that sees nothing, it bounds how often an attack guesses a record.

Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy" (ICML 2015), Theorem
2.1; Hayes, Mahloujifar, Balle, "Bounding Training Data Reconstruction in DP-SGD" (NeurIPS 2023).
"""

from __future__ import annotations

import numpy as np

from flhe.coding.base import Mechanism
from flhe.training import accountant

DELTAS = (accountant.DEFAULT_DELTA, *(10 ** (-i / 2) for i in range(1, 10)))
"""A mechanism has an epsilon at each delta. The first is that of a report."""

Pairs = tuple[tuple[float, float], ...]
"""(epsilon, delta), which all hold; none allow everything."""


def guarantee(multiplier: float, sampling: float, sums: int) -> Pairs:
    """Return what the accountant finds for so many sums at each of `DELTAS`; nothing without noise."""
    releases = {Mechanism(multiplier, sampling): sums}
    return tuple((accountant.epsilon(releases, d), d) for d in DELTAS if multiplier)


def power(pairs: Pairs, fpr: float | None = None) -> float:
    """Return the largest rate of true positives at `fpr`, a rate of false ones; for None, the AUC."""
    at = np.linspace(0, 1, 20_001) if fpr is None else np.array([fpr])
    least = np.ones_like(at)
    for epsilon, delta in pairs:
        factor = np.exp(min(epsilon, 700.0))
        both = factor * at + delta, 1 - (1 - delta - at) / factor
        least = np.minimum.reduce([least, *both])
    return float(least.mean())
