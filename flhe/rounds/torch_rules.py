"""Torch rules: one step of torch.optim's SGD, Adam and RMSprop, a block of float64 values at a time.

With g the gradient, t the step, from 1, and lr the step's learning rate:

    sgd      b = g in the first step, then momentum * b + (1 - dampening) * g
             change = -lr * b                            nesterov: -lr * (g + momentum * b)
    adam     m = beta_1 * m + (1 - beta_1) * g
             v = beta_2 * v + (1 - beta_2) * g**2
             change = -lr / (1 - beta_1**t) * m / (sqrt(v) / sqrt(1 - beta_2**t) + eps)
    rmsprop  v = alpha * v + (1 - alpha) * g**2
             a = alpha * a + (1 - alpha) * g             centered: v - a**2 takes the place of v below
             b = momentum * b + g / (sqrt(v) + eps)
             change = -lr * b

Each gives the change and the next moments, under PyTorch's names for them. Where rounding takes
v - a**2 below zero, PyTorch gives NaN and this takes zero.

Source: PyTorch 2, documentation of torch.optim. Adam: Kingma and Ba (ICLR 2015).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from flhe.rounds.blockwise import Wide, power

Step = tuple[Wide, Mapping[str, Wide]]


def sgd(
    gradient: Wide,
    old: Mapping[str, Wide],
    lr: float,
    *,
    momentum: float,
    dampening: float,
    nesterov: bool,
    first: bool,
) -> Step:
    """Stochastic gradient descent; `first` says that nothing is in the buffer yet."""
    if not momentum:
        return -lr * gradient, {}
    # As in PyTorch, the first gradient is not dampened: a buffer starts as it, not from zero.
    buffer = gradient if first else momentum * old["momentum_buffer"] + (1 - dampening) * gradient
    along = gradient + momentum * buffer if nesterov else buffer
    return -lr * along, {"momentum_buffer": buffer}


def adam(
    gradient: Wide,
    old: Mapping[str, Wide],
    lr: float,
    *,
    betas: tuple[float, float],
    eps: float,
    step: int,
) -> Step:
    """Adam, bias correction and all."""
    beta_1, beta_2 = betas
    mean = beta_1 * old["exp_avg"] + (1 - beta_1) * gradient
    square = beta_2 * old["exp_avg_sq"] + (1 - beta_2) * (gradient * gradient)
    root = np.sqrt(square) / math.sqrt(1 - power(beta_2, step)) + eps
    change = -(lr / (1 - power(beta_1, step))) * mean / root
    return change, {"exp_avg": mean, "exp_avg_sq": square}


def rmsprop(
    gradient: Wide,
    old: Mapping[str, Wide],
    lr: float,
    *,
    alpha: float,
    eps: float,
    momentum: float,
    centered: bool,
) -> Step:
    """RMSprop."""
    square = alpha * old["square_avg"] + (1 - alpha) * (gradient * gradient)
    after, variance = {"square_avg": square}, square
    if centered:
        mean = alpha * old["grad_avg"] + (1 - alpha) * gradient
        after["grad_avg"] = mean
        variance = np.maximum(square - mean * mean, 0.0)
    along = gradient / (np.sqrt(variance) + eps)
    if momentum:
        along = momentum * old["momentum_buffer"] + along
        after["momentum_buffer"] = along
    return -lr * along, after
