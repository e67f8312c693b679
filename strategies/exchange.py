"""Exchange: the stages of a round after training, on the server's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Generic, TypeVar

from flwr.app import Message

from flhe.coding.support import Support
from flhe.errors import DriftError, ProtocolError
from flhe.mods import records
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed
from flhe.strategies.epoch_parameters import start_in
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.overhead import ADD
from flhe.strategies.trouble import give_up, log, warn
from flhe.training.kind import EVALUATION, MEAN_SQUARES, Kind
from flhe.training.query import QUERY

V = TypeVar("V")
P = TypeVar("P")

_NAMED = {
    MEAN_SQUARES.purpose: ("mean squares", "updates"),
    EVALUATION.purpose: ("aggregate_evaluate", "evaluations"),
    QUERY.purpose: ("query", "answers"),
}
"""Stage and noun in the log for sums of a purpose; others are updates."""

MIN_VIEWS = 3
"""Number of different models for which a stage has room at least: one for each colluder, and one."""


@dataclass(slots=True)
class Exchange:
    """One attempt at a round."""

    fed: Federation
    needed: int
    """Minimum number of nodes; with fewer the attempt is given up."""
    supports: dict[int, Support] = field(default_factory=dict)
    """Support of each node."""
    _trouble: dict[int, str] = field(default_factory=dict)

    def updates(self, replies: Iterable[Message], timeout: float) -> Iterable[Message]:
        """Return the replies with updates: `replies`, or those to the last stage of the round.

        `replies` are those to its first stage; each later one waits `timeout` seconds.

        Raises QuorumError: too few answered an earlier stage.
        """
        sparse = self.fed.terms.codec.sparse
        if self.fed.parameters.needs_mean_squares:
            total, nodes = self.add_whole(MEAN_SQUARES, replies)
            self.fed.ledger.keep_mean_squares(total)
            replies = self._ask("supports" if sparse else "update", nodes, timeout)
        if sparse:
            replies = self._ask("update", self.collect_supports(replies), timeout)
        return replies

    def _ask(self, stage: str, nodes: list[int], timeout: float) -> Iterable[Message]:
        fed = self.fed
        fed.attempt.missing = set(fed.members)
        return fed.grid.send_and_receive(fed.messages("train", stage, nodes), timeout=timeout)

    def collect_supports(self, replies: Iterable[Message]) -> list[int]:
        """Collect the supports in `replies`, and choose the mode; return the nodes.

        Raises QuorumError: too few of them.
        """
        fed, of_epoch = self.fed, self.fed.parameters
        length = of_epoch.layout.floats

        def checked(node: int, reply: Message) -> tuple[dict[int, Support], bytes]:
            answer = fed.member_answer(node, reply)
            if records.field(answer, "step", str) != "supports":
                raise ProtocolError("it answered with another stage of the round")
            start = start_in(answer)
            support = Support.from_bytes(records.field(answer, "support", bytes), length)
            fed.heard(node, answer, reply.content)
            return {node: support}, start

        views: Views[dict[int, Support], dict[int, Support]] = Views(
            fed, "supports", checked, lambda told, one: {**(told or {}), **one}
        )
        self.supports = views.collect(replies)[1] or {}
        if len(self.supports) < self.needed:
            give_up(
                f"round {fed.ledger.round}: {len(self.supports)} nodes answered stage 'supports', "
                f"{self.needed} needed",
                views.trouble,
            )
        rank = of_epoch.epoch.rank
        ranked = [(rank(node), self.supports[node]) for node in sorted(self.supports, key=rank)]
        trailer = of_epoch.sums.terms.trailer_lanes(of_epoch.layout)
        fed.attempt.mode, why = fed.terms.scheme.mode_of(ranked, trailer, len(fed.members))
        if why:
            log(INFO, "supports: %d received; %s", len(ranked), why)
        return list(self.supports)

    def add_updates(self, replies: Iterable[Message]) -> Sealed:
        """Add the updates in `replies` as they arrive, and return their sum.

        Raises QuorumError: too few of them.
        """
        fed, kind = self.fed, self.fed.parameters.ending
        total, nodes = self._add(kind, fed.adder, replies, fed.attempt.mode)
        for node in sorted(fed.round.answered - set(nodes) - set(self._trouble)):
            log(
                WARNING,
                "aggregate_train: node %d is left out: it answered earlier stages only",
                node,
            )
        return total

    def add_whole(self, kind: Kind, replies: Iterable[Message]) -> tuple[Sealed, list[int]]:
        """Add whole vectors in `replies`; return the sum, and its nodes.

        Raises QuorumError: too few of them.
        """
        mode = self.fed.terms.scheme.mode_ahead
        return self._add(kind, self.fed.parameters.sums.whole, replies, mode)

    def _add(
        self, kind: Kind, adder: Adder, replies: Iterable[Message], mode: str
    ) -> tuple[Sealed, list[int]]:
        fed = self.fed
        where, what = _NAMED.get(kind.purpose, ("aggregate_train", "updates"))

        def add(total: Sealed | None, part: Sealed) -> Sealed:
            began = time.perf_counter()
            total = adder.add(total, part)
            fed.round.adding_s += time.perf_counter() - began
            return total

        def receive(node: int, reply: Message) -> tuple[Sealed, bytes]:
            return fed.contribution(node, reply, kind, mode, self.supports.get(node))

        views = Views(fed, where, receive, add)
        start, total = views.collect(replies)
        self._trouble = views.trouble
        survivors = len(total.senders) if total else 0
        log(INFO, "%s: Added %d %s, %d failures", where, survivors, what, len(views.trouble))
        if total is None or start is None or survivors < self.needed:
            if kind.valued:
                fed.round.answered.update(*views.senders.values())
            counted = f"{survivors} {what}, {self.needed} needed"
            give_up(f"round {fed.ledger.round}: {counted}", views.trouble)
        return adder.close(total), views.senders[start]


@dataclass(slots=True)
class Views(Generic[V, P]):
    """Results of one stage of a round, for each starting model.

    Nodes whose models or app settings differ never come into one sum. The largest group goes on;
    the others are logged and caught up.
    """

    fed: Federation
    stage: str
    read: Callable[[int, Message], tuple[P, bytes]]
    """(node, reply) -> its checked content, and the digest of its model."""
    add: Callable[[V | None, P], V]
    """(result for a model so far, None at first; a node's content) -> combined result."""
    trouble: dict[int, str] = field(default_factory=dict)
    """Reason for each node that is left out."""
    senders: dict[bytes, list[int]] = field(default_factory=dict)
    _views: dict[bytes, V] = field(default_factory=dict)

    def collect(self, replies: Iterable[Message]) -> tuple[bytes, V] | tuple[None, None]:
        """Combine `replies` as they arrive; return the most common model's digest and its result.

        None if no node answered.
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
            # A node with another model is caught up before it counts as missing.
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
            room = max(MIN_VIEWS, self.fed.parameters.epoch.colluders + 1)
            if start not in self._views and len(self._views) == room:
                self._drop_one()
            self._views[start] = self.add(self._views.get(start), part)
        return start

    def _drop_one(self) -> None:
        """Make room for another model's updates: drop one that fewest have sent."""
        least = min(self._views, key=lambda start: len(self.senders[start]))
        for node in self.senders.pop(least):
            self.fed.at[node] = LOST
            self.trouble[node] = "its model is one of more different ones than members may collude"
        del self._views[least]
