"""scikit-learn's breast-cancer data, split over sites, in bins that are the same for all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

BINS = 32


class Rows(NamedTuple):
    """Bins of features, uint8, shape (rows, features), and labels 0 or 1, shape (rows,)."""

    bins: NDArray[np.uint8]
    labels: NDArray[np.int64]


def _all() -> Rows:
    """All rows, shuffled once; bins divide each feature's range, as the data's page states it."""
    data = load_breast_cancer()
    low, high = data.data.min(0), data.data.max(0)
    places = np.minimum((data.data - low) / (high - low) * BINS, BINS - 1).astype(np.uint8)
    order = np.random.default_rng(7).permutation(len(data.target))
    return Rows(places[order], data.target[order].astype(np.int64))


def held_out() -> Rows:
    """A fifth of the rows: on them trees are judged."""
    rows = _all()
    return Rows(rows.bins[::5], rows.labels[::5])


def site(number: int, sites: int) -> Rows:
    """One site's part of the rest."""
    rows = _all()
    kept = np.flatnonzero(np.arange(len(rows.labels)) % 5)[number::sites]
    return Rows(rows.bins[kept], rows.labels[kept])
