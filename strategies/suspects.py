"""Suspects: members that may have altered the sums that do not open, until one is identified.

A member that sends a ciphertext with wrong tags spoils the sum. The sum does not reveal it, and
reading one contribution would break its secrecy. But that member is in each refused sum. So of the
members of all refused sums, some are left out for a round or two. A sum that is refused without
them clears them, and one that opens costs nothing. In the end one is left.

This finds one such member at a time: two that take turns can have others left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flhe.errors import AlteredError

if TYPE_CHECKING:
    from flhe.strategies.federation import Federation


@dataclass(slots=True)
class Suspects:
    """Members that are not cleared, by public key: they may return under other node ids."""

    among: set[bytes] = field(default_factory=set)
    """Those in every refused sum so far."""
    accused: dict[bytes, set[bytes]] = field(default_factory=dict)
    """Member -> those whose shares it could not decrypt, in all rounds of this run."""
    _unproven: set[bytes] = field(default_factory=set)
    """Those of them in no opened sum since the last refused one."""

    def refused(self, senders: Set[bytes]) -> bytes | None:
        """Record that most members refuse a sum as altered; return the only suspect left, or None."""
        if not senders:  # the server was restarted since
            return None
        self.among = self.among & senders or set(senders)
        self._unproven = set(self.among)
        if len(self.among) > 1:
            return None
        [found] = self.among
        self.among, self._unproven = set(), set()
        return found

    def opened(self, senders: Set[bytes]) -> None:
        """Record that the sum of these opened."""
        self._unproven -= senders

    def left_out(self, most: int) -> set[bytes]:
        """Return suspects to leave out of the next sum: half, `most` at most, proven ones first.

        None, once all of them have been in opened sums.
        """
        half = min(len(self.among) // 2, max(most, 0)) if self._unproven else 0
        mixed = secrets.SystemRandom().sample(sorted(self.among), len(self.among))
        return set(sorted(mixed, key=self._unproven.__contains__)[:half])


def spoilt(fed: Federation, round_: int) -> AlteredError:
    """Return the error that ends the run: members opened a sum that is not its senders'.

    For a node that colludes with its maker it is a sum all the same, and another one from the same
    model would differ by single updates.
    """
    fed.suspect()
    nodes = fed.nodes_of(fed.suspects.among or fed.barred)
    return AlteredError(
        f"the sum of round {round_} was opened and is not the sum of its senders' ciphertexts, so "
        f"members sign no other one from this model; one of nodes {nodes} altered it, or the message "
        "was damaged: resume the run to send it again, or begin another federation"
    )
