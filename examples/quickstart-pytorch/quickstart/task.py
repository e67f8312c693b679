"""quickstart: a small network, and scikit-learn's handwritten digits. No download."""

import numpy as np
import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Sequential):
    """One convolution and two dense layers over 8 x 8 pixels."""

    def __init__(self):
        convolution = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        super().__init__(*convolution, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def load_data(context: Context) -> tuple[DataLoader, DataLoader]:
    """Return one node's training data (80%) and test data (20%)."""
    node, size = context.node_config, context.run_config["batch-size"]
    kept = np.flatnonzero(np.arange(1797) % 5)[node["partition-id"] :: node["num-partitions"]]
    cut = len(kept) * 4 // 5
    return digits(kept[:cut], size), digits(kept[cut:], size)


def digits(chosen: np.ndarray | slice, batch_size: int) -> DataLoader:
    """Return batches of images, float32 (count, 1, 8, 8), and labels."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images[chosen] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return DataLoader(TensorDataset(pixels, torch.tensor(labels[chosen])), batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model, and return the mean loss."""
    optimizer, total = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), 0.0
    for images, labels in (batch for _ in range(epochs) for batch in loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / (epochs * len(loader))


@torch.no_grad()
def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    total, correct = 0.0, 0
    for images, labels in loader:
        logits = net(images)
        total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)
