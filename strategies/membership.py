"""Membership: who takes part in the epoch, and when a new one is due."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

BARRED = 3
"""Rounds before a node that broke off a key agreement is asked again."""


@dataclass(slots=True)
class Membership:
    """What the server remembers of comings and goings."""

    patience: int
    """Rounds that a member may be away before it counts as having left; 0: none."""
    rekey_every: int
    """Rounds after which the group agrees on fresh keys; 0 for never."""
    asked: bool = False
    """Somebody asked for fresh keys."""
    lost: set[int] = field(default_factory=set)
    """Members without whom a round goes on, where it can only with new keys."""
    mute: set[int] = field(default_factory=set)
    """Nodes that are no members and did not say who they are before this round."""
    keyless: set[int] = field(default_factory=set)
    """Members that have no usable key."""
    left: set[int] = field(default_factory=set)
    """Nodes that said that they leave."""
    _away: dict[int, int] = field(default_factory=dict)
    """Member -> first round that it was away."""
    _barred: dict[int, int] = field(default_factory=dict)
    _served: dict[int, int] = field(default_factory=dict)
    _losses: dict[int, int] = field(default_factory=dict)
    _wait: int = 0

    def see(self, round_: int, members: Iterable[int], connected: Collection[int]) -> None:
        """Note which members are there before a round."""
        away = {node for node in members if node not in connected}
        self._away = {node: self._away.get(node, round_) for node in away}

    def candidates(self, round_: int, connected: Collection[int]) -> list[int]:
        """Nodes that a key agreement would ask."""
        barred = {node for node, until in self._barred.items() if until > round_}
        return sorted(set(connected) - barred - self.left - self.lost - self.mute)

    def due(
        self, round_: int, since: int, members: Collection[int], connected: Collection[int]
    ) -> str:
        """Why a new epoch is due before this round; "" when none is.

        `since` is the round that the epoch began with.
        """
        if round_ < self._wait and not self.lost:
            return ""
        reasons = []
        if joining := [n for n in self.candidates(round_, connected) if n not in members]:
            reasons.append(f"{len(joining)} join")
        keyless = {n for n in self.keyless & set(members) if self._served.get(n, 0) <= round_}
        if keyless := keyless & set(connected):
            reasons.append(f"{len(keyless)} lost their keys")
        if lost := self.lost & set(members):
            reasons.append(f"{len(lost)} did not answer")
        gone = {node for node, first in self._away.items() if round_ - first >= self.patience}
        if gone := (gone | self.left) & set(members):
            reasons.append(f"{len(gone)} left")
        if self.rekey_every and round_ - since >= self.rekey_every:
            reasons.append(f"{round_ - since} rounds under one key")
        if self.asked:
            reasons.append("asked for")
        return ", ".join(reasons)

    def lose(self, nodes: Collection[int], members: Collection[int], least: int) -> bool:
        """A sum takes all members, and `nodes` were missing: agree on new keys without them.

        Unless fewer than `least` would be left: then they are waited for. Returns whether the group
        becomes smaller.
        """
        gone = (set(nodes) & set(members)) - self.lost - self.keyless
        if not gone or len(set(members) - gone - self.lost) < least:
            return False
        self.lost |= gone
        return True

    def failed(
        self, round_: int, asked: Iterable[int], members: Collection[int], *, broken: bool
    ) -> None:
        """A key agreement came to nothing: nodes that were to join are asked again in a while.

        The epoch before goes on, unless its keys are `broken`: members may have erased them, and agree
        anew at once, among themselves.
        """
        self._barred |= {node: round_ + BARRED for node in asked if node not in members}
        if not broken:
            self._wait = round_ + BARRED
            return
        self.lost.clear()
        self.keyless |= set(members)
        for node in members:
            self._served.pop(node, None)

    def changed(self, round_: int, asked: Iterable[int], members: Collection[int]) -> None:
        """A new epoch began with `members`; the others that were asked are barred for now."""
        self.asked = False
        self._served |= dict.fromkeys(self.keyless, round_ + BARRED)  # not every round anew
        self.keyless.clear()
        self._away.clear()
        self._barred = {n: until for n, until in self._barred.items() if until > round_}
        self._barred |= {node: round_ + BARRED for node in asked if node not in members}
        for node in self.lost:  # back in the next round; who goes missing again and again, later
            self._losses[node] = times = self._losses.get(node, 0) + 1
            self._barred[node] = round_ + (1 if times == 1 else BARRED * (times - 1))
        self.lost.clear()
