"""Strategies by the name of their scheme: aliases only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flhe.rounds.optimizer import ServerOptimizer
from flhe.rounds.terms import TRAIN_METRICS, Terms
from flhe.strategies.he_strategy import HEStrategy


def flashe_fedavg(
    *,
    bits: int = 16,
    clip: float | Mapping[str, float] = 1.0,
    max_examples: int = 10_000,
    weighted: bool = True,
    masking: Literal["double", "single"] = "double",
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Any,
) -> HEStrategy:
    """FedAvg under FLASHE.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32.
    clip : float or mapping of str to float
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer.
    max_examples : int
        Largest example count of one client. The closer to the truth, the finer the quantization.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    masking : "double" or "single"
        See `Flashe`.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What every client makes of the mean update, identically; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy` (`round_timeout`, `min_replies`, ...).
    """
    terms = Terms(
        "flashe",
        bits,
        clip,
        max_examples,
        weighted,
        masking,
        tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
    )
    return HEStrategy(terms, **strategy)
