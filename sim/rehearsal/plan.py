"""What a loopback deployment is to run."""

from __future__ import annotations

from dataclasses import dataclass

from flhe.errors import ConfigError
from flhe_lab.rehearsal.app import HOLD_ROUND, SCHEMES

SITES = ("site-a", "site-b", "site-c")
VICTIM = 1
"""Which of them is killed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    schemes: tuple[str, ...] = ("flashe", "sash")  # A run for each
    rounds: int = 3  # Of training
    values: int = 5_000  # Of the model
    server_reads: bool = False
    """Whether the server reads SASH's sums; the sites read them otherwise."""
    kill: bool = True  # Whether one SuperNode is killed in the second round
    timeout: float = 600.0  # Seconds for the runs
    patience: float = 1.0  # What every time limit is multiplied by, that of the runs too

    def __post_init__(self) -> None:
        unknown = [name for name in self.schemes if name not in SCHEMES]
        if unknown or not self.schemes or len(set(self.schemes)) < len(self.schemes):
            raise ConfigError(
                f"--scheme {', '.join(self.schemes)}: name some of {', '.join(SCHEMES)}, each once"
            )
        if self.rounds < 1 or self.values < 100:
            raise ConfigError("--rounds must be 1 or more, --values 100 or more")
        for name in ("timeout", "patience"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"--{name} {getattr(self, name):g}: must be positive and finite")
        if self.kill and self.rounds <= HOLD_ROUND:
            raise ConfigError(
                f"--rounds {self.rounds}: a node is killed in round {HOLD_ROUND} and comes back, which "
                f"takes {HOLD_ROUND + 1} rounds; use more, or --no-kill"
            )

    def reads(self, scheme: str) -> bool:
        """Whether the server reads the sums of a run."""
        return self.server_reads and scheme == "sash"
