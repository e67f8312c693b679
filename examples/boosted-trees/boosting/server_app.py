"""The server: grows trees on sums of histograms, and beside them the same trees on pooled rows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from boosting.task import Rows, held_out, site
from boosting.trees import Trees
from flhe.mods import records
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SecureSum

app = ServerApp()
Histogram = Callable[[Trees, int], NDArray[np.int64]]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, judge, compare."""
    config = context.run_config
    sites, count, depth = (int(str(config[name])) for name in ("sites", "trees", "depth"))
    rate = float(str(config["learning-rate"]))
    with SecureSum(grid, Sash(), min_nodes=sites, max_queries=count * depth) as secure:

        def summed(trees: Trees, level: int) -> NDArray[np.int64]:
            asked = {
                "depth": trees.depth,
                "rate": trees.rate,
                "level": level,
                "features": trees.features,
                "cuts": trees.cuts,
                "weights": trees.weights,
            }
            return records.to_numpy(secure.sum("gradients", asked).arrays)["gradients"]

        ours, seconds = boosted(summed, count, depth, rate)
    parts = [site(number, sites) for number in range(sites)]
    pooled = Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    theirs, plain = boosted(lambda trees, level: trees.histogram(pooled, level), count, depth, rate)
    rows = held_out()
    one, other = (roc_auc_score(rows.labels, t.margins(rows, t.count)) for t in (ours, theirs))
    print(f"{count} trees of depth {depth}, {sites} sites, {len(pooled.labels)} rows")
    print(f"AUC: {one:.6f} by sums, {other:.6f} pooled; difference {abs(one - other):.1g}")
    print(f"trees: {'the same, to the last bit' if ours == theirs else 'DIFFERENT'}")
    print(f"seconds a tree: {seconds / count:.2f} by sums, {plain / count:.4f} pooled, in clear")


def boosted(histogram: Histogram, count: int, depth: int, rate: float) -> tuple[Trees, float]:
    """Trees that are grown on what `histogram` gives, and how many seconds they took."""
    began, trees = time.monotonic(), Trees(depth, rate)
    for _ in range(count):
        trees.plant()
        for level in range(depth):
            trees.grow(histogram(trees, level), level)
    return trees, time.monotonic() - began
