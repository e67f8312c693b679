"""private: scikit-learn's breast-cancer patients, split over hospitals. No download."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

PATIENTS = 569
"""Of all hospitals together: a figure that they publish, because the divisor tells it."""


def new_model() -> nn.Module:
    """Return a logistic regression on 30 measurements that starts at zero."""
    model = nn.Linear(30, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def load_data(partition_id: int, num_partitions: int) -> tuple[Tensor, Tensor]:
    """Return one hospital's measurements, float32 (patients, 30), and diagnoses."""
    table = load_breast_cancer()
    # Ranges are public: one that is fitted on the patients would tell of them.
    low, high = table.data.min(0), table.data.max(0)
    rows = torch.tensor((table.data - low) / (high - low) * 2 - 1, dtype=torch.float32)
    chosen = np.random.default_rng(7).permutation(PATIENTS)[partition_id::num_partitions]
    return rows[chosen], torch.tensor(table.target[chosen])
