"""RunSettings: how an encrypted run waits, repeats, changes keys, and keeps and reports its state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flhe.errors import ConfigError
from flhe.strategies.report import OnRound


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What `HEStrategy` takes besides what all agree on; a subclass may replace it between rounds.

    Parameters
    ----------
    round_timeout : float
        Seconds that a round waits for updates, and an evaluation for metrics.
    stage_timeout : float
        Seconds that each relay of the key agreement, each stage of a round after training, and each
        sealed checkpoint, waits.
    connect_timeout : float
        Seconds to wait for `min_available_nodes`, and in a later round for as many members as it needs.
    min_replies : int, optional
        Updates that a round needs. By default (N - 1) // 3 + 2 of N members, the number that clients of
        an unpinned roster insist on anyway.
    retries : int
        How often a round with fewer updates is asked for again before the run ends with an error.
    patience : int
        Rounds that a member may be away before the group agrees on a key without it.
    rekey_every : int
        Rounds after which the group agrees on fresh keys; 0 for never. See also `HEStrategy.rekey`.
    checkpoint_every : int
        Rounds after which a member seals the model for those that come later; 0 for only when needed.
    state_dir : str or Path, optional
        Directory in which the server keeps what it needs to go on after a crash.
    on_round : callable, optional
        Receives a RoundReport after each round, with what each phase of it took; what comes after the
        last one is in the strategy's `ending` when `start` has returned.

    Raises
    ------
    ConfigError
        A parameter that cannot work.
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
    on_round: OnRound | None = None

    def __post_init__(self) -> None:
        for name in ("round_timeout", "stage_timeout", "connect_timeout"):
            if not 0 < (value := getattr(self, name)) < float("inf"):  # false for NaN
                raise ConfigError(f"{name}={value}: must be positive and finite, in seconds")
        for name in ("retries", "patience", "rekey_every", "checkpoint_every"):
            if type(count := getattr(self, name)) is not int or count < 0:
                raise ConfigError(f"{name}={count!r}: must be an integer, 0 or more")
        if self.min_replies is not None and self.min_replies < 2:
            raise ConfigError(
                f"min_replies={self.min_replies}: a sum of one is that client's update"
            )
