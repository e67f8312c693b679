"""Shadow models: small networks that five sites train by DP-SGD, each on a random half of the records.

The records are scikit-learn's digits. Those outside the pool measure accuracy. The codec is that of
`flhe.strategies.dp_fedsgd`. Encryption is left out, because it changes no opened sum. The noise of all
sites is counted on, so a sum has the noise of the multiplier and no more. `clipped` gives what
`flhe.dpsgd.clipped_gradients` does, many times faster: a record's gradient of a layer is an outer
product, whose norm is the product of two norms.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (arXiv 1510.01799).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.dpsgd import poisson_batch
from flhe_lab.bench.federation import layout_of

SITES, BITS = 5, 28
CLIP = 1.0
"""Largest L2 norm of one record's gradient."""

Floats = NDArray[np.float64]


class Effort(NamedTuple):
    """How much is measured."""

    pool: int = 1400  # Records, each in a model's data with probability 1/2, independently
    hidden: int = 32  # Width of the layer with tanh
    rounds: int = 200
    sampling: float = 0.2  # Probability that a member is in a round's batch
    rate: float = 0.5  # Learning rate
    epsilons: tuple[float, ...] = (8, 4, 2, 1, 0.5)
    models: int = 32  # At each epsilon
    weak: tuple[float, ...] = (0.01, 0.1)  # Further noise multipliers, for single sums
    images: int = 4  # Reconstructed, one by one and together
    steps: int = 300  # Of an attack on one sum
    guesses: int = 100  # Of each of ten digits


@functools.cache
def digits() -> tuple[Floats, NDArray[np.int64]]:
    """Return pixels in [0, 1] with a 1 behind them (1797, 65), and classes, in a fixed random order."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    return np.column_stack([pixels[order] / 16, np.ones(len(order))]), classes[order]


def opened(
    sums: Sequence[Floats], multiplier: float, expected: float, honest: int | None = None
) -> Floats:
    """Return the total of the sites' `sums`, each (length,), over `expected` records; (length,).

    A `multiplier` of 0 adds floats without noise. Others need gradients of norm `CLIP` at most. The
    noise of `honest` sites is enough: of all, unless said.
    """
    if not multiplier:
        return np.asarray(np.sum(sums, axis=0) / expected)
    noise = DiscreteGaussian(CLIP, multiplier, "record", divisor=expected, bits=BITS)
    codec = noise.counting_on(honest or len(sums))
    state = codec.init(layout_of(sums[0].size))
    one = np.ones(2, np.int64)  # the count and the weight of a site
    parts = [codec.encode(Plain(x.astype(np.float32), one), state)[0] for x in sums]
    values, extras = zip(*((part.values, part.extras) for part in parts), strict=True)
    total = Plain(np.stack(values).sum(0, np.int64), np.stack(extras).sum(0))
    return codec.decode(total, range(len(sums)), state)[0].values.astype(np.float64)


def train(
    effort: Effort, multiplier: float, clip: float, seed: tuple[int, ...]
) -> tuple[NDArray[np.bool_], Floats, float]:
    """Train a model; return its members and each record's log(p / (1 - p)), (pool,), and accuracy.

    An infinite `clip` clips nothing, and takes no noise. `seed` is of the model's half of the pool and
    of its first weights; batches and noise have none.
    """
    random, (x, y) = np.random.default_rng(seed), digits()
    members = random.random(effort.pool) < 0.5
    first = random.uniform(-1 / 8, 1 / 8, (effort.hidden, x.shape[1]))
    second = random.uniform(-1, 1, (10, effort.hidden + 1)) / np.sqrt(effort.hidden)
    sites = [np.flatnonzero(members)[i::SITES] for i in range(SITES)]
    for _ in range(effort.rounds):
        batches = [site[poisson_batch(len(site), effort.sampling)] for site in sites]
        sums = [clipped(first, second, x[b], y[b], clip) for b in batches]
        step = effort.rate * opened(sums, multiplier, effort.sampling * effort.pool / 2)
        first = first - step[: first.size].reshape(first.shape)
        second = second - step[first.size :].reshape(second.shape)
    log_p = _forward(first, second, x)[1]
    own = np.minimum(log_p[np.arange(effort.pool), y[: effort.pool]], -1e-12)
    right = log_p[effort.pool :].argmax(1) == y[effort.pool :]
    return members, own - np.log(-np.expm1(own)), float(right.mean())


def clipped(first: Floats, second: Floats, x: Floats, y: NDArray[np.int64], clip: float) -> Floats:
    """Return the sum of the records' gradients, each scaled down to the L2 norm `clip`, flat."""
    hidden, log_p = _forward(first, second, x)
    upper = np.exp(log_p) - np.eye(len(second))[y]
    lower = (upper @ second[:, :-1]) * (1 - hidden[:, :-1] ** 2)
    squares = (upper**2).sum(1) * (hidden**2).sum(1) + (lower**2).sum(1) * (x**2).sum(1)
    factors = np.minimum(1, clip / np.sqrt(np.maximum(squares, 1e-300)))[:, None]
    parts = (lower * factors).T @ x, (upper * factors).T @ hidden
    return np.concatenate([part.ravel() for part in parts])


def _forward(first: Floats, second: Floats, x: Floats) -> tuple[Floats, Floats]:
    """The hidden layer with a 1 behind it, and log probabilities."""
    hidden = np.column_stack([np.tanh(x @ first.T), np.ones(len(x))])
    scores = hidden @ second.T
    scores -= scores.max(1, keepdims=True)
    return hidden, scores - np.log(np.exp(scores).sum(1, keepdims=True))
