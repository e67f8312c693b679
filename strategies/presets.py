"""Strategies by the name of their scheme: aliases only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flhe.coding.sparsify import Normalize
from flhe.rounds.optimizer import ServerOptimizer
from flhe.rounds.terms import TRAIN_METRICS, Terms
from flhe.schemes.flashe import Masking
from flhe.strategies.he_strategy import HEStrategy


def flashe_fedavg(
    *,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = 1.0,
    max_examples: int = 10_000,
    weighted: bool = True,
    masking: Masking = "double",
    top_k: float | None = None,
    warmup: int = 10,
    normalize: Normalize = "weight",
    permute: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Any,
) -> HEStrategy:
    """FedAvg under FLASHE.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer. Or have
        it fitted, layer by layer, on the updates of the rounds before, or in every round anew.
    max_examples : int
        Largest example count of one client. The closer to the truth, the finer the quantization.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    masking : "double", "single" or "adaptive"
        See `Flashe`; adaptive takes what saves the clients more work.
    top_k : float, optional
        Share of each layer's values that a client sends, the largest ones; the rest waits for later
        rounds (error feedback). 0.1 saves 90% of the upload.
    warmup : int
        Rounds at shares of 0.8, 0.4 and 0.2 each, before `top_k`.
    normalize : "weight" or "count"
        Divide a sparse sum by the weight of all senders, or of those who sent the coordinate.
    permute : bool
        Hide from the server which coordinates were sent; see the documentation for what it still sees.
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
        top_k=top_k,
        warmup=warmup,
        normalize=normalize,
        permute=permute,
    )
    return HEStrategy(terms, **strategy)
