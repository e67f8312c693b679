"""Suspects: members whose contribution may be why sums do not open, until it shows whose it is.

A member that sends a ciphertext with wrong tags spoils the sum, and nobody sees in it whose it was: to
look at one contribution would be to read it. But whoever spoils sums is in each one that is refused.
So of those who were in all of them, some are left out for a round or two: a sum that is refused
without them clears them, and one that opens costs nothing. In the end one is left.

That holds for one such member at a time: two that take turns can have others left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import dataclass, field


@dataclass(slots=True)
class Suspects:
    """Nodes that are not cleared."""

    among: set[int] = field(default_factory=set)
    """Those who were in every sum that was refused so far."""
    _unproven: set[int] = field(default_factory=set)
    """Of these, those who have been in no sum that opened since the last one that was refused."""

    def refused(self, senders: Set[int]) -> int | None:
        """Most members refuse the sum of these as altered; who it was, once one is left."""
        if not senders:  # the server was started anew since
            return None
        self.among = self.among & senders or set(senders)
        self._unproven = set(self.among)
        if len(self.among) > 1:
            return None
        [found] = self.among
        self.among, self._unproven = set(), set()
        return found

    def opened(self, senders: Set[int]) -> None:
        """The sum of these opened."""
        self._unproven -= senders

    def left_out(self, most: int) -> set[int]:
        """Whom to leave out of the next sum: half of them, `most` at most; first who has shown itself.

        Nobody, once all of them have been in sums that opened.
        """
        half = min(len(self.among) // 2, max(most, 0)) if self._unproven else 0
        mixed = secrets.SystemRandom().sample(sorted(self.among), len(self.among))
        return set(sorted(mixed, key=self._unproven.__contains__)[:half])
