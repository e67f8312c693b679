"""Arguments that every strategy takes, by name and type, for editors and type checkers.

`**options: Unpack[StrategyOptions]` (PEP 692) shows them wherever a function hands them on to
`HEStrategy`. Meanings and defaults are in the docstrings of `HEStrategy`, of `update_codec` and of
Flower's `FedAvg`; a test holds names and types against their signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict, get_args

from flwr.app import MetricRecord, RecordDict

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import Thresholds
from flhe.errors import ConfigError
from flhe.schemes.base import Scheme
from flhe.strategies.report import OnRound
from flhe.training.optimizers import Optimizer

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
    """How an encrypted run goes; see `RunSettings`."""

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


class TrainingOptions(RunOptions, total=False):
    """What is made of sums, and what of an update is encrypted."""

    optimizer: Optimizer | object | None
    select: float | Select | None
    noise: Laplace | None
    train_metrics: tuple[str, ...]


class StrategyOptions(TrainingOptions, total=False):
    """How updates are encoded, as `update_codec` takes it; beside all that `HEStrategy` takes."""

    bits: int
    clip: Thresholds
    max_examples: int
    weighted: bool
    top_k: float | None
    warmup: int
    whole: tuple[str, ...]
    small: int
    permute: bool


CODING = tuple(
    name for name in StrategyOptions.__annotations__ if name not in TrainingOptions.__annotations__
)
"""Those that make a codec."""


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


def check_scheme(scheme: Scheme, fraction_train: float) -> None:
    """Refuse, rather than at the first sum, what this server cannot add up.

    Raises
    ------
    ConfigError
        A part of the members, where only sums of all open.
    PackageError
        A package that the server needs is missing.
    """
    if scheme.needs_all_members and fraction_train not in (0.0, 1.0):
        raise ConfigError(
            f"fraction_train={fraction_train} with {scheme.title}: keys that last longer than a round "
            "open sums of all members only; have keys made for each round, or use fraction_train=1.0"
        )
    scheme.check_packages("server")
