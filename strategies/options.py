"""Arguments that every strategy takes, by name and type, for editors and type checkers.

`**options: Unpack[StrategyOptions]` (PEP 692) shows them wherever a function hands them on to
`HEStrategy`. Meanings and defaults are in the docstrings of `HEStrategy` and of Flower's `FedAvg`; a
test holds names and types against both signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict

from flwr.app import MetricRecord, RecordDict

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.strategies.report import OnRound

CLOSE = 0.7
"""Least similarity of a name that is suggested, 1.0 being equal; see `difflib`."""

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
    """Which part of an update is encrypted, and noise; beside all that a run and FedAvg take."""

    select: Select | None
    noise: Laplace | None


def check_names(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuse a name that neither `function` nor `StrategyOptions` has.

    Parameters
    ----------
    function : callable
        Its last parameter takes `StrategyOptions`, or fewer, as keywords.
    given : iterable of str
        Names of those keywords.

    Raises
    ------
    TypeError
        A name is unknown. The text names the closest one, or all where none is close.
    """
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    known = dict.fromkeys([*own, *StrategyOptions.__annotations__])
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=CLOSE)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
            raise TypeError(f"{function.__name__}() takes no argument {name!r}: {hint}")
