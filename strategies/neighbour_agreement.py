"""The workflow that drives `flhe.keys.pairwise` over a Grid, for SASH+.

The server only carries messages. Before the update, two relays: neighbours' fresh keys, and shares of
them. With it come the masked seeds; after it, CONSIST and UNMASK. What comes out is the sum of the
seeds of exactly those whose updates are in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from typing import Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from flhe import records
from flhe.errors import FlheError, ProtocolError, QuorumError
from flhe.keys import pairwise_server
from flhe.keys.masking import Elements
from flhe.keys.messages import Envelope
from flhe.keys.pairwise_messages import MAX_MESSAGE, SET, WITH, read_key, to_bits
from flhe.keys.pairwise_plan import Plan
from flhe.math import ring
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import reasons
from flhe.strategies.masking_agreement import Refused, ask

log = getLogger("flwr").log

T = TypeVar("T")


@dataclass(slots=True)
class NeighbourAgreement:
    """One attempt's agreement on the sum of the survivors' seeds.

    Parameters
    ----------
    grid : StreamGrid
        Carries messages.
    plan : Plan
        Of the attempt.
    nodes : mapping of int to int
        Node id to rank, of the members that are asked for an update.
    fields : mapping
        What every stage says besides: federation, epoch, terms, confirmations.
    timeout : float
        Seconds that each relay waits.
    retries : int
        How often UNMASK is asked for again; the answers are the same.
    refused : callable
        Reads error replies.
    """

    grid: StreamGrid
    plan: Plan
    nodes: Mapping[int, int]
    fields: Mapping[str, Any]
    timeout: float
    retries: int
    refused: Refused
    _keys: dict[int, bytes] = field(default_factory=dict)
    _inbox: dict[int, dict[int, bytes]] = field(default_factory=dict)
    _seeds: dict[int, Elements] = field(default_factory=dict)
    _statements: dict[int, bytes] = field(default_factory=dict)
    _trouble: dict[int, str] = field(default_factory=dict)

    def prepare(self) -> dict[int, ConfigRecord]:
        """The two relays before the update; returns what goes with the request for it, by node.

        Raises
        ------
        QuorumError
            Too few members answered.
        """
        plan = self.plan
        self._keys = self._relay("mask-key", self.nodes, {}, self._key)
        self._enough("mask-key", len(self._keys))
        near = pairwise_server.to_neighbours(plan, self._keys)
        asked = {node: rank for node, rank in self.nodes.items() if rank in near}
        boxes = self._relay(
            "mask-share", asked, {r: {"keys": keys} for r, keys in near.items()}, self._boxes
        )
        self._enough("mask-share", len(boxes))
        self._inbox = pairwise_server.to_receivers(plan, boxes)
        return {
            node: ConfigRecord({"mask-ranks": list(inbox), "mask-boxes": list(inbox.values())})
            for node, rank in self.nodes.items()
            if (inbox := self._inbox.get(rank)) is not None
        }

    def take(self, node: int, answer: ConfigRecord) -> None:
        """Check and keep what came with an update: its seed, masked, and whom it is masked with.

        Raises
        ------
        ProtocolError, AuthenticationError
            Something else.
        """
        rank, plan = self.nodes[node], self.plan
        data: bytes = records.field(answer, "masked-seed", bytes)
        if len(data) != 8 * plan.length:
            raise ProtocolError("its masked seed has another length than a seed")
        seed = np.frombuffer(data, "<u8").astype(np.uint64)
        if np.any(seed >= np.uint64(ring.Q)):
            raise ProtocolError("its masked seed holds what is no field element")
        statement: bytes = records.field(answer, "masked-with", bytes)
        self._signed(rank, WITH, statement)
        with_whom = to_bits(plan, sorted((rank, *self._inbox.get(rank, {}))))
        if Envelope.from_bytes(statement, MAX_MESSAGE).payload != with_whom:
            raise ProtocolError("it has masked its seed with others than those who sent it shares")
        self._seeds[rank], self._statements[rank] = seed, statement

    def release(self, survivors: tuple[int, ...]) -> Elements:
        """Have the survivors sign their set, and open the sum of their seeds.

        Parameters
        ----------
        survivors : tuple of int
            Ranks of those whose updates are in the sum, ascending.

        Raises
        ------
        QuorumError
            Too few signed or answered, overall or around somebody. The round is lost.
        ProtocolError
            Answers that do not fit.
        """
        plan = self.plan
        there = {node: rank for node, rank in self.nodes.items() if rank in survivors}
        near = {
            rank: [self._statements[o] for o in plan.graph.around(rank) if o in survivors]
            for rank in survivors
        }
        bits = to_bits(plan, survivors)

        def signature(node: int, answer: ConfigRecord) -> bytes:
            message: bytes = records.field(answer, "signature", bytes)
            if self._signed(self.nodes[node], SET, message) != bits:
                raise ProtocolError("it signed another set of survivors")
            return message

        fields = {
            rank: {"survivors": list(survivors), "statements": near[rank]} for rank in survivors
        }
        signatures = self._relay("consist", there, fields, signature)
        log(INFO, "consist: %d of %d survivors", len(signatures), len(survivors))
        around = pairwise_server.to_neighbours(plan, signatures)

        def opened(node: int, answer: ConfigRecord) -> bytes:
            message: bytes = records.field(answer, "answer", bytes)
            if pairwise_server.read_answer(plan, survivors, message).rank != self.nodes[node]:
                raise ProtocolError("it answers for another member")
            return message

        answers: dict[int, bytes] = {}
        for _ in range(self.retries + 1):
            left = {n: r for n, r in there.items() if r in signatures and r not in answers}
            answers |= self._relay(
                "unmask", left, {r: {"signatures": around[r]} for r in left.values()}, opened
            )
            if len(answers) == len(signatures):
                break
            try:
                return self._sum(survivors, answers)
            except QuorumError as error:
                log(WARNING, "unmask: %s", error)
        log(INFO, "unmask: %d of %d survivors", len(answers), len(survivors))
        return self._sum(survivors, answers)

    def _sum(self, survivors: tuple[int, ...], answers: Mapping[int, bytes]) -> Elements:
        total = np.zeros(self.plan.length, np.uint64)
        for rank in survivors:
            total = ring.add(total, self._seeds[rank])
        found = pairwise_server.unmask_sum(
            self.plan,
            total,
            keys=self._keys,
            sharers=self._inbox,
            senders=survivors,
            answers=answers.values(),
        )
        return found.astype(np.uint64, copy=False)

    def _key(self, node: int, answer: ConfigRecord) -> bytes:
        message: bytes = records.field(answer, "key", bytes)
        if read_key(self.plan, message)[0] != self.nodes[node]:
            raise ProtocolError("it sent another member's key")
        return message

    def _boxes(self, node: int, answer: ConfigRecord) -> dict[int, bytes]:
        boxes, ranks = records.bytes_list(answer, "boxes"), answer.get("ranks")
        if not isinstance(ranks, list) or len(ranks) != len(boxes):
            raise ProtocolError("its shares are without receivers")
        found = {r: box for r, box in zip(ranks, boxes, strict=True) if isinstance(r, int)}
        neighbours = self.plan.graph.neighbours(self.nodes[node])
        if len(found) != len(boxes) or found.keys() != self._keys.keys() & set(neighbours):
            raise ProtocolError("it did not share with each of its neighbours")
        return found

    def _signed(self, rank: int, stage: str, message: bytes) -> bytes:
        """Payload of a member's signed message to all, verified."""
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        envelope.verify(self.plan.expect(stage), senders=[self.plan.members[rank]])
        return envelope.payload

    def _relay(
        self,
        stage: str,
        nodes: Mapping[int, int],
        own: Mapping[int, Mapping[str, Any]],
        read: Callable[[int, ConfigRecord], T],
    ) -> dict[int, T]:
        """Send a stage to `nodes`, each with its rank's own fields; returns answers by rank."""
        self._trouble.clear()
        found: dict[int, T] = {}
        messages = [self._message(stage, node, own.get(rank, {})) for node, rank in nodes.items()]
        replies = ask(self.grid, messages, self.nodes, self.timeout, self.refused, self._trouble)
        for node, answer in replies:
            try:
                found[self.nodes[node]] = read(node, answer)
            except FlheError as error:
                self._trouble[node] = str(error)
        for node, why in self._trouble.items():
            log(WARNING, "%s: node %d: %s", stage, node, why)
        return found

    def _message(self, stage: str, node: int, own: Mapping[str, Any]) -> Message:
        plan = self.plan
        record = records.stage_record(
            stage,
            round=plan.round,
            attempt=plan.attempt,
            start=plan.layout_hash,
            **self.fields,
            **own,
        )
        return Message(RecordDict({records.STAGE: record}), node, "train")

    def _enough(self, stage: str, count: int) -> None:
        if count < self.plan.min_set:
            raise QuorumError(
                f"round {self.plan.round}: {count} members answered stage {stage!r}, "
                f"{self.plan.min_set} needed ({reasons(self._trouble)})"
            )
