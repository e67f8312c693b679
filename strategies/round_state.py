"""State of a current round: over all its attempts, and in the present one."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempt:
    """State of an attempt at a round, or at an evaluation."""

    missing: set[int] = field(default_factory=set)
    """Members that have not answered the present stage."""
    asked: int = 0
    """Number of nodes that it asked."""
    mode: str = ""
    """Mode of the scheme, if it has several."""
    app_failed: set[int] = field(default_factory=set)
    """Nodes whose app failed, or whose reply no strategy accepts."""
    spent: set[int] = field(default_factory=set)
    """Nodes that call the current round over."""
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    """Shares of the seed that came with each node's update."""


@dataclass(slots=True)
class RoundState:
    """State of a round, all its attempts together."""

    began: float = field(default_factory=time.monotonic)
    adding_s: float = 0.0
    crypto_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of cryptography that each node reported."""
    claimed: Counter[int] = field(default_factory=Counter)
    """Earlier attempts that each node has answered otherwise."""
    granted: bool = False
    """Whether it got one more attempt for those."""
    answered: set[int] = field(default_factory=set)
    """Nodes whose update came in an attempt with too few answers."""

    def grants_another(self, members: int) -> bool:
        """Return whether most nodes had answered its attempts before: True once."""
        most = 2 * sum(count > 1 for count in self.claimed.values()) > members
        before, self.granted = self.granted, self.granted or most
        return most and not before
