"""Membership: the members of an epoch, and the reasons for a new one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

BARRED = 3
"""Rounds before a node that broke off a key agreement is asked again."""


@dataclass(slots=True)
class Membership:
    """The server's record of joining and leaving nodes."""

    patience: int
    """Rounds that a member may be away before it counts as having left; 0 for none."""
    rekey_every: int
    """Rounds after which the group agrees on fresh keys; 0 for never."""
    asked: bool = False
    """Whether fresh keys were requested."""
    lost: set[int] = field(default_factory=set)
    """Members missing from a sum that needs all, so it needs new keys without them."""
    mute: set[int] = field(default_factory=set)
    """Non-members that did not identify themselves before this round."""
    keyless: set[int] = field(default_factory=set)
    """Members that have no usable key."""
    left: set[int] = field(default_factory=set)
    """Nodes that announced that they leave."""
    _away: dict[int, int] = field(default_factory=dict)
    """Member -> first round of its absence."""
    _barred: dict[int, int] = field(default_factory=dict)
    _served: dict[int, int] = field(default_factory=dict)
    _losses: dict[int, int] = field(default_factory=dict)
    _wait: int = 0

    def see(self, round_: int, members: Iterable[int], connected: Collection[int]) -> None:
        """Record the connected members before a round."""
        away = {node for node in members if node not in connected}
        self._away = {node: self._away.get(node, round_) for node in away}

    def candidates(self, round_: int, connected: Collection[int]) -> list[int]:
        """Return the nodes that a key agreement would ask."""
        barred = {node for node, until in self._barred.items() if until > round_}
        return sorted(set(connected) - barred - self.left - self.lost - self.mute)

    def due(
        self, round_: int, since: int, members: Collection[int], connected: Collection[int]
    ) -> str:
        """Return the reason for a new epoch before this round, or "".

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
        """Agree on new keys without `nodes`, which were missing from a sum of all members.

        If fewer than `least` would remain, the group waits for them instead. Returns whether the
        group becomes smaller.
        """
        gone = (set(nodes) & set(members)) - self.lost - self.keyless
        if not gone or len(set(members) - gone - self.lost) < least:
            return False
        self.lost |= gone
        return True

    def failed(
        self, round_: int, asked: Iterable[int], members: Collection[int], *, broken: bool
    ) -> None:
        """Record a failed key agreement: nodes that were to join are asked again later.

        The previous epoch goes on, unless its keys are `broken`: members may have erased them, and
        agree again at once, among themselves.
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
        """Begin a new epoch with `members`; the other asked nodes are barred for now."""
        self.asked = False
        self._served |= dict.fromkeys(self.keyless, round_ + BARRED)  # not again in every round
        self.keyless.clear()
        self._away.clear()
        self._barred = {n: until for n, until in self._barred.items() if until > round_}
        self._barred |= {node: round_ + BARRED for node in asked if node not in members}
        for node in self.lost:  # back in the next round; nodes that go missing again return later
            self._losses[node] = times = self._losses.get(node, 0) + 1
            self._barred[node] = round_ + (1 if times == 1 else BARRED * (times - 1))
        self.lost.clear()
