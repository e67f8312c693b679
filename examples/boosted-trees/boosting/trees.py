"""A booster of logistic loss on histograms: sites add up gradients, who reads the sums splits.

Gradients are rounded to integers of 2**-30 before they are added, here and in the pooled run alike, so
both grow the same trees, to the last bit.

Source: Chen, Guestrin, "XGBoost" (KDD 2016), Eq. 6 and 7: weight of a leaf, gain of a split.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from boosting.task import BINS, Rows

ONE = 1 << 30
LAMBDA = 1.0
"""L2 regularization of leaves."""
LEAF = -1
"""In the place of a feature: the node has no children."""


@dataclass
class Trees:
    """Trees of one depth, level by level: node k has the children 2k + 1 and 2k + 2.

    A row goes left where its bin is at most the node's. Lists hold all trees one after the other.
    """

    depth: int
    rate: float
    features: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Nodes of one tree."""
        return 2 ** (self.depth + 1) - 1

    @property
    def count(self) -> int:
        """Trees that are there."""
        return len(self.features) // self.size

    def plant(self) -> None:
        """Begin one more tree, all of whose nodes are leaves of no weight."""
        self.features += [LEAF] * self.size
        self.cuts += [0] * self.size
        self.weights += [0.0] * self.size

    def places(self, rows: Rows, tree: int) -> NDArray[np.int64]:
        """In which node of a tree each row ends, shape (rows,)."""
        start, at = tree * self.size, np.zeros(len(rows.labels), np.int64)
        features, cuts = np.array(self.features), np.array(self.cuts)
        for _ in range(self.depth):
            feature = features[start + at]
            left = rows.bins[np.arange(at.size), np.maximum(feature, 0)] <= cuts[start + at]
            at = np.where(feature == LEAF, at, 2 * at + np.where(left, 1, 2))
        return at

    def margins(self, rows: Rows, trees: int) -> NDArray[np.float64]:
        """Log-odds by the first `trees` trees, shape (rows,)."""
        weights, out = np.array(self.weights), np.zeros(len(rows.labels))
        for tree in range(trees):
            out += self.rate * weights[tree * self.size + self.places(rows, tree)]
        return out

    def histogram(self, rows: Rows, level: int) -> NDArray[np.int64]:
        """Gradients and Hessians by bin for each node of the last tree's level.

        Shape (nodes, 2, features, bins), in integers of 1 / ONE.
        """
        tree, first, nodes = self.count - 1, 2**level - 1, 2**level
        chances = 1 / (1 + np.exp(-self.margins(rows, tree)))
        slopes = np.rint(np.stack([chances - rows.labels, chances * (1 - chances)]) * ONE).astype(
            np.int64
        )
        at = self.places(rows, tree) - first
        features = rows.bins.shape[1]
        out = np.zeros((nodes, 2, features, BINS), np.int64)
        here = np.flatnonzero((at >= 0) & (at < nodes))
        for feature in range(features):
            for kind in range(2):
                index = at[here], kind, feature, rows.bins[here, feature]
                np.add.at(out, index, slopes[kind, here])
        return out

    def grow(self, histogram: NDArray[np.int64], level: int) -> None:
        """Split each node of a level where that gains most; the children are leaves of best weight."""
        start, first = (self.count - 1) * self.size, 2**level - 1
        for node, (slopes, bends) in enumerate(histogram):
            here = start + first + node
            slope, bend = int(slopes[0].sum()), int(bends[0].sum())
            if level == 0:
                self.weights[here] = _weight(slope, bend)
            left, below = slopes.cumsum(1)[:, :-1], bends.cumsum(1)[:, :-1]
            gains = _score(left, below) + _score(slope - left, bend - below) - _score(slope, bend)
            gains[(below < ONE) | (bend - below < ONE)] = 0  # XGBoost's min_child_weight = 1
            feature, cut = np.unravel_index(int(np.argmax(gains)), gains.shape)
            if gains[feature, cut] <= 0:
                continue
            self.features[here], self.cuts[here] = int(feature), int(cut)
            child = start + 2 * (first + node) + 1
            one, two = int(left[feature, cut]), int(below[feature, cut])
            self.weights[child], self.weights[child + 1] = (
                _weight(one, two),
                _weight(slope - one, bend - two),
            )


def _weight(slope: int, bend: int) -> float:
    return -(slope / ONE) / (bend / ONE + LAMBDA)


def _score(slope: NDArray[np.int64] | int, bend: NDArray[np.int64] | int) -> NDArray[np.float64]:
    return np.asarray((np.asarray(slope) / ONE) ** 2 / (np.asarray(bend) / ONE + LAMBDA))
