"""Two data sets that scikit-learn ships, a network for each, and the settings of DP-SGD.

Of four learning rates, each is Opacus' best, on splits that are not measured. All ways share them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

SITES = 20
DELTA = 1e-5
Rows = tuple[Tensor, Tensor]  # Inputs, shape (rows, features), and labels, shape (rows,)


class Task(NamedTuple):
    """A data set as in `sklearn.datasets.load_...`, a network's widths, and DP-SGD's settings."""

    name: str
    widths: tuple[int, int, int]
    lr: float
    divisor: int  # Expected batch of all sites, rounded down as by Opacus
    steps: int = 100
    sampling: float = 0.1  # Probability with which a record is in a step's batch
    max_norm: float = 1.0  # Largest L2 norm of one record's gradient

    def data(self, seed: int) -> tuple[Rows, Rows]:
        """Return rows to train on and a fifth to test on; means of the whole set count as public."""
        from sklearn import datasets, model_selection

        rows, labels = getattr(datasets, f"load_{self.name}")(return_X_y=True)
        rows = torch.tensor((rows - rows.mean(0)) / (rows.std(0) + 1e-6), dtype=torch.float32)
        split = {"test_size": 0.2, "stratify": labels, "random_state": seed}
        parts = model_selection.train_test_split(rows, torch.tensor(labels), **split)
        return (parts[0], parts[2]), (parts[1], parts[3])

    def model(self, seed: int) -> nn.Module:
        """Return a fresh network; equal seeds give equal weights."""
        first, hidden, last = self.widths
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last))


TASKS = Task("digits", (64, 32, 10), 0.5, 143), Task("breast_cancer", (30, 16, 2), 0.25, 45)
