"""What somebody needs of a federation: what `flhe advise` is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flhe.coding.support import MAX_LENGTH
from flhe.errors import ConfigError
from flhe.keys.roster.roster import Roster
from flhe_lab.advise.prices import Prices
from flhe_lab.advise.wan import Wan

ROUNDS = 100
"""Until convergence, where nobody says."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What somebody needs."""

    values: int  # Of the model
    clients: int  # N, at least 3
    wan: Wan  # How they are connected
    prices: Prices  # What machines cost
    dropout: float = 0.0  # Chance that a client's update is missing from a round, below 1
    rounds: int = ROUNDS  # Until convergence
    train_s: float = 0.0  # Seconds of a client's training in a round
    server_may_see_model: bool = False  # Whether the server may read each sum
    clear_part: bool = False  # Whether a part of each update may travel in clear
    sparse: bool = False  # Whether only a part of it may be sent, and be seen to be which
    members_may_collude: bool = False  # Whether a third of them may conspire with the server

    def __post_init__(self) -> None:
        if not 1 <= self.values <= MAX_LENGTH:
            raise ConfigError(f"--params {self.values}: must be 1 to {MAX_LENGTH:,}")
        if not 3 <= self.clients <= 10_000:
            raise ConfigError(
                f"--clients {self.clients}: must be 3 to 10,000; of two, each reads the other's update "
                "off their sum"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout {self.dropout}: must be a share from 0, below 1")
        if self.clients - self.dropouts < 2:
            raise ConfigError(
                f"--dropout {self.dropout}: two of {self.clients} clients must remain; lower it"
            )
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: must be 1 or more")
        if not (math.isfinite(self.train_s) and self.train_s >= 0):
            raise ConfigError(f"--train {self.train_s}: must be seconds, 0 or more")
        if self.members_may_collude and not self.bound:
            raise ConfigError(
                f"--members-may-collude with --clients {self.clients}: three members cannot withstand "
                "one; four can"
            )

    @property
    def dropouts(self) -> int:
        """Clients that a usual round lacks."""
        return round(self.dropout * self.clients)

    @property
    def bound(self) -> int:
        """Members that may collude, as a roster says by default."""
        return Roster.default_collusion(self.clients)

    def lost(self, needed: int) -> float:
        """Chance that fewer than `needed` updates come."""
        n, p = self.clients, 1 - self.dropout
        return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(min(needed, n + 1)))
