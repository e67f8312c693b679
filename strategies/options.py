"""Arguments that every strategy takes, by name and type, for editors and type checkers (PEP 692).

The docstrings of `HEStrategy`, `update_codec` and Flower's `FedAvg` have meanings and defaults; a
test holds names and types against their signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict, get_args

from flwr.app import DEFAULT_TTL, MetricRecord, RecordDict

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import Thresholds
from flhe.errors import ConfigError
from flhe.schemes.base import Scheme
from flhe.strategies.report import OnRound
from flhe.training.accountant import DEFAULT_DELTA
from flhe.training.optimizer import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run outside the signed contract; a subclass may replace them between rounds.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    round_timeout : float
        Seconds that a round waits for updates, and an evaluation for metrics: 12 hours at most.
    stage_timeout : float
        Seconds that each relay of the key agreement, each stage of a round after training, and each
        sealed checkpoint, waits.
    connect_timeout : float
        Seconds to wait for `min_available_nodes`, and in a later round for as many members as it needs.
    min_replies : int, optional
        Updates that a round needs. By default (N - 1) // 3 + 2 of N members, the minimum of clients
        with an unpinned roster; where members open sums together, (N + c) // 2 + 1 if c of them may
        collude; all, where keys last.
    retries : int
        Number of further attempts at a round with fewer updates, before the run fails.
    patience : int
        Rounds that a member may be away before the group agrees on a key without it.
    rekey_every : int
        Rounds after which the group agrees on fresh keys; 0 for never. See also `HEStrategy.rekey`.
    checkpoint_every : int
        Rounds after which a member seals the model for those that come later; 0 for only when needed.
    state_dir : str or Path, optional
        Directory with the server's state, for resuming after a crash.
    delta : float
        Delta for the epsilon in reports of a run with differential privacy.
    on_round : callable, optional
        Receives a RoundReport after each round, with the costs of each phase; costs after the
        last one are in the strategy's `ending` once `start` has returned.
    """

    round_timeout: float = 3600.0
    stage_timeout: float = 300.0
    connect_timeout: float = 300.0
    min_replies: int | None = None
    retries: int = 2
    patience: int = 3
    rekey_every: int = 0
    checkpoint_every: int = 10
    state_dir: str | Path | None = None
    delta: float = DEFAULT_DELTA
    on_round: OnRound | None = None

    def __post_init__(self) -> None:
        for name in ("round_timeout", "stage_timeout", "connect_timeout"):
            if not 0 < (value := getattr(self, name)) < float("inf"):  # false for NaN
                raise ConfigError(f"{name}={value}: must be positive and finite, in seconds")
            if value > DEFAULT_TTL and name != "connect_timeout":
                raise ConfigError(
                    f"{name}={value}: Flower drops a message after {DEFAULT_TTL} seconds: choose "
                    "those, or fewer"
                )
        for name in ("retries", "patience", "rekey_every", "checkpoint_every"):
            if type(count := getattr(self, name)) is not int or count < 0:
                raise ConfigError(f"{name}={count!r}: must be an integer, 0 or more")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta={self.delta}: must lie between 0 and 1, below 1 / records")
        if self.min_replies is not None and self.min_replies < 2:
            raise ConfigError(
                f"min_replies={self.min_replies}: a sum of one is that client's update"
            )


AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""(replies' records, name of the weight) -> one record."""


class FedAvgOptions(TypedDict, total=False):
    """Flower's own: number of participating nodes, and names of records."""

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


class WaitOptions(TypedDict, total=False):
    """Timeouts and retries of sums; see `RunSettings`."""

    round_timeout: float
    stage_timeout: float
    connect_timeout: float
    min_replies: int | None
    retries: int
    patience: int
    rekey_every: int


class SumOptions(WaitOptions, total=False):
    """State of sums, besides; see `RunSettings`."""

    state_dir: str | Path | None


class RunOptions(FedAvgOptions, SumOptions, total=False):
    """Options of an encrypted run; see `RunSettings`."""

    checkpoint_every: int
    delta: float
    on_round: OnRound | None


class TrainingOptions(RunOptions, total=False):
    """Options of the optimizer and of the encrypted part of an update."""

    optimizer: Optimizer | object | None
    select: float | Select | None
    noise: Laplace | None
    train_metrics: tuple[str, ...]
    evaluate_metrics: tuple[str, ...]


class StrategyOptions(TrainingOptions, total=False):
    """Options of the codec, as for `update_codec`, besides all of `HEStrategy`."""

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
"""Names of the codec's options."""


def check_names(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuse a keyword that is not among the options of `function`'s last parameter.

    Raises TypeError: a name is unknown. The text names the closest one, or all if none is close.
    """
    *own, options = inspect.signature(function, eval_str=True).parameters.values()
    known = dict.fromkeys(
        [p.name for p in own] + list(get_args(options.annotation)[0].__annotations__)
    )
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
            raise TypeError(f"{function.__name__}() takes no argument {name!r}: {hint}")


def check_scheme(scheme: Scheme, fraction_train: float) -> None:
    """Fail now, rather than at the first sum, if this server cannot add up the scheme's sums.

    ConfigError: only some of the members, although only sums of all open; PackageError: a package
    that the server needs is missing.
    """
    if scheme.needs_all_members and fraction_train not in (0.0, 1.0):
        raise ConfigError(
            f"fraction_train={fraction_train} with {scheme.title}: keys that last longer than a round "
            "open sums of all members only; have keys made for each round, or use fraction_train=1.0"
        )
    scheme.check_packages("server")
