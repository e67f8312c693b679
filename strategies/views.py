"""Views: what nodes reply, folded by the model that they start from.

Nodes whose models differ, or whose apps were told different things, never come into one sum: those of
most of them go on, the others are named and caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import Message

from flhe.errors import DriftError
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.overhead import ADD
from flhe.strategies.trouble import warn

V = TypeVar("V")
P = TypeVar("P")

MAX_VIEWS = 3
"""Models that are told apart in one stage; what starts from more of them is left out."""


@dataclass(slots=True)
class Views(Generic[V, P]):
    """What came of one stage of a round, for each model that nodes start from."""

    fed: Federation
    stage: str
    read: Callable[[int, Message], tuple[P, bytes]]
    """(node, reply) -> what it tells, checked, and the digest of its model."""
    add: Callable[[V | None, P], V]
    """(what there is of a model, None at first; what a node told) -> both together."""
    trouble: dict[int, str] = field(default_factory=dict)
    """Why which nodes are left out."""
    senders: dict[bytes, list[int]] = field(default_factory=dict)
    _views: dict[bytes, V] = field(default_factory=dict)

    def collect(self, replies: Iterable[Message]) -> tuple[bytes, V] | tuple[None, None]:
        """Fold `replies` as they arrive; returns where most start, and what there is of those.

        None where nobody told anything.
        """
        fed = self.fed
        for node, start in fed.grid.fold(replies, self.trouble, self._take):
            self.senders.setdefault(start, []).append(node)
        rank = fed.parameters.epoch.rank
        # Most senders; of equals, those with the lowest rank.
        chosen = max(
            self.senders,
            key=lambda s: (len(self.senders[s]), -min(map(rank, self.senders[s]))),
            default=None,
        )
        for start, nodes in self.senders.items():
            if chosen is not None and start != chosen:
                self.trouble |= {node: fed.mark_drifted(node) for node in nodes}
        warn(f"{self.stage}: node %d is left out: %s", self.trouble)
        for node in self.trouble:
            # One with another model is caught up before it counts as missing.
            if fed.model_round(node) != LOST or fed.ledger.attempt > 0:
                fed.attempt.missing.add(node)
        return (None, None) if chosen is None else (chosen, self._views[chosen])

    def _take(self, node: int, reply: Message) -> bytes:
        with self.fed.grid.meter.doing(ADD):
            try:
                part, start = self.read(node, reply)
            except DriftError:
                self.fed.at[node] = LOST
                raise
            if start not in self._views and len(self._views) == MAX_VIEWS:
                self._drop_one()
            self._views[start] = self.add(self._views.get(start), part)
        return start

    def _drop_one(self) -> None:
        """Make room for another model's updates: what is alone goes first."""
        least = min(self._views, key=lambda start: len(self.senders[start]))
        for node in self.senders.pop(least):
            self.fed.at[node] = LOST
            self.trouble[node] = "its model is one of more than three different ones"
        del self._views[least]
