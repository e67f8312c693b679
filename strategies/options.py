"""Arguments that every strategy takes, by name and type, for editors and type checkers.

`**options: Unpack[StrategyOptions]` (PEP 692) shows them wherever a function hands them on to
`HEStrategy`. Meanings and defaults are in the docstrings of `HEStrategy` and of Flower's `FedAvg`; a
test holds names and types against both signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from flwr.app import MetricRecord, RecordDict

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.strategies.report import OnRound
from flhe.training.optimizer import ServerOptimizer

CLOSE = 0.7
"""Least similarity of a name that is suggested, 1.0 being equal; see `difflib`."""

Clip = float | Mapping[str, float] | Literal["history", "exchange"]

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""(replies' records, name of the weight) -> one record."""


class FedAvgOptions(TypedDict, total=False):
    """Flower's own: how many nodes take part, and what records are called."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: AggregateMetrics | None
    evaluate_metrics_aggr_fn: AggregateMetrics | None


class RunOptions(FedAvgOptions, total=False):
    """How an encrypted run waits, repeats, changes keys, and keeps and reports its state."""

    round_timeout: float
    stage_timeout: float
    connect_timeout: float
    min_replies: int | None
    retries: int
    patience: int
    rekey_every: int
    checkpoint_every: int
    state_dir: str | Path | None
    on_round: OnRound | None


class StrategyOptions(RunOptions, total=False):
    """How updates are encoded under every scheme; beside all that a run and FedAvg take.

    Attributes
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32; 16 unless an alias says otherwise.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer. Or have
        it fitted, layer by layer, on the updates of the rounds before ("history"), or in every round
        anew, on mean squares that are added up under the same encryption ("exchange").
    max_examples : int
        Example count of the largest client, 10,000 unless given. A client with fewer is quantized as
        much more coarsely; one with more has a clipping threshold as much lower.
    weighted : bool
        Weigh updates by example counts, as FedAvg does, unless False.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption; `TRAIN_METRICS` unless given.
    select : float or Select, optional
        Encrypt a part of each update only: a share of it, the most sensitive values by a map that a
        first round adds up under encryption (`HEMod(sensitivity=...)`). Whatever is not selected the
        server sees, of every client and in every round. `Select` has other rules, and can leave the
        rest unsent.
    noise : Laplace, optional
        Noise that clients add, to what travels in clear or to all.
    """

    bits: int
    clip: Clip
    max_examples: int
    weighted: bool
    train_metrics: tuple[str, ...]
    select: float | Select | None
    noise: Laplace | None


class AverageOptions(StrategyOptions, total=False):
    """Those of model averaging.

    Attributes
    ----------
    server_optimizer : ServerOptimizer, optional
        What the readers of sums make of the mean update, identically; by default it is added, as
        FedAvg does.
    """

    server_optimizer: ServerOptimizer | None


def check_names(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuse a name that `function` does not take.

    Parameters
    ----------
    function : callable
        Its last parameter takes one of the options above as keywords.
    given : iterable of str
        Names of those keywords.

    Raises
    ------
    TypeError
        A name is unknown. The text names the closest one, or all where none is close.
    """
    *own, options = inspect.signature(function, eval_str=True).parameters.values()
    known = dict.fromkeys(
        [p.name for p in own] + list(get_args(options.annotation)[0].__annotations__)
    )
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=CLOSE)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
            raise TypeError(f"{function.__name__}() takes no argument {name!r}: {hint}")
