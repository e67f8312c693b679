"""tabular: scikit-learn's breast-cancer table, and a logistic regression on it. No download."""

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier

FEATURES = 30


def load_data(partition_id: int, num_partitions: int) -> tuple:
    """Return training rows, training labels, test rows and test labels of one site."""
    table = load_breast_cancer()
    # All sites must scale alike: by the range of each column, which the data's page states.
    low, high = table.data.min(0), table.data.max(0)
    rows, labels = (table.data - low) / (high - low), table.target
    order = np.random.default_rng(7).permutation(len(labels))[partition_id::num_partitions]
    cut = len(order) * 4 // 5
    return rows[order[:cut]], labels[order[:cut]], rows[order[cut:]], labels[order[cut:]]


def initial_model() -> ArrayRecord:
    """Return a model that gives each class the same probability."""
    return to_record(np.zeros((1, FEATURES)), np.zeros(1))


def to_record(coef: np.ndarray, intercept: np.ndarray) -> ArrayRecord:
    """Return a model as a record."""
    return ArrayRecord({"coef": Array(coef), "intercept": Array(intercept)})


def fitted(record: ArrayRecord, rows: np.ndarray, labels: np.ndarray, epochs: int) -> SGDClassifier:
    """Return the model, trained further for some epochs."""
    model = SGDClassifier(loss="log_loss", max_iter=epochs, tol=None, alpha=1e-4, eta0=0.1)
    model.set_params(learning_rate="constant", random_state=0)
    coef, intercept = (record[name].numpy() for name in ("coef", "intercept"))
    return model.fit(rows, labels, coef_init=coef, intercept_init=intercept)


def evaluated(record: ArrayRecord, rows: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the log loss and the accuracy of a model."""
    margins = rows @ record["coef"].numpy()[0] + record["intercept"].numpy()[0]
    loss = np.logaddexp(0, np.where(labels == 1, -margins, margins)).mean()
    return float(loss), float(((margins > 0) == labels).mean())
