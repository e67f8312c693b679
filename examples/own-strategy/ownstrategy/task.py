"""ownstrategy: least squares on rows that each node makes up."""

import numpy as np

TRUTH = np.array([2.0, -1.0, 0.5])


def load_data(node: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one node's rows and targets."""
    rows = np.random.default_rng(node).normal(size=(40 + 10 * node, TRUTH.size))
    return rows, rows @ TRUTH


def train(weights: np.ndarray, rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Take ten steps of gradient descent."""
    for _ in range(10):
        weights = weights - 0.1 * rows.T @ (rows @ weights - target) / len(rows)
    return weights
