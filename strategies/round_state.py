"""What a round under way has come to so far: in all its attempts, and in the present one."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempt:
    """What an attempt at a round, or at an evaluation, has come to so far."""

    missing: set[int] = field(default_factory=set)
    """Members that have not answered the present stage."""
    asked: int = 0
    """How many nodes it asked."""
    mode: str = ""
    """Which of its ways the scheme uses, where it has several."""
    app_failed: set[int] = field(default_factory=set)
    """Nodes whose app failed, or replied what no strategy takes."""
    spent: set[int] = field(default_factory=set)
    """Nodes that say that the round under way is over."""
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    """Shares of the seed that came with each node's update."""


@dataclass(slots=True)
class RoundState:
    """What a round has come to so far, all its attempts together."""

    began: float = field(default_factory=time.monotonic)
    adding_s: float = 0.0
    crypto_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of cryptography that each node told of."""
    claimed: Counter[int] = field(default_factory=Counter)
    """Attempts that each node has answered otherwise before."""
    granted: bool = False
    """Whether it got one more attempt for that."""
    answered: set[int] = field(default_factory=set)
    """Nodes whose update came in an attempt that too few answered."""

    def grants_another(self, members: int) -> bool:
        """Whether most nodes had answered its attempts before: True once."""
        most = 2 * sum(count > 1 for count in self.claimed.values()) > members
        before, self.granted = self.granted, self.granted or most
        return most and not before
