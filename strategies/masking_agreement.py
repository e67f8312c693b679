"""The workflow that drives `flhe.keys.agreement.masking` over a Grid: the server only carries messages.

Two relays after the update: CONSIST hands each survivor its shares and asks it to sign the set, UNMASK
shows t signatures and asks for the sum of its shares. Any strategy can call it that has the shares
which came with the updates; what it gives back opens the sum of exactly those updates, for whoever
may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from typing import Any, NoReturn

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import FlheError, ProtocolError, QuorumError
from flhe.keys.agreement import masking
from flhe.mods import records
from flhe.schemes.sealed import Slot
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import reasons
from flhe.strategies.overhead import sound

log = getLogger("flwr").log

Refused = Callable[[int, Message], str]
"""(node, its error reply) -> what it means."""


@dataclass(slots=True)
class MaskingAgreement:
    """One round's agreement on the sum of the survivors' seeds.

    Parameters
    ----------
    grid : StreamGrid
        Carries messages.
    circle : Circle
        Public parameters.
    slot : Slot
        The attempt whose updates were added.
    nodes : mapping of int to int
        Node id to rank, of the members whose updates are in the sum.
    fields : mapping
        What every stage says besides: federation, epoch, terms, confirmations.
    sealed : bool
        Whether answers are sealed for the members.
    timeout : float
        Seconds that each relay waits.
    retries : int
        How often UNMASK is asked for again; the answers are the same.
    refused : callable
        Reads error replies.
    """

    grid: StreamGrid
    circle: masking.Circle
    slot: Slot
    nodes: Mapping[int, int]
    fields: Mapping[str, Any]
    sealed: bool
    timeout: float
    retries: int
    refused: Refused
    crypto_s: dict[int, float] = field(default_factory=dict)
    """Seconds of cryptography that each node told of."""
    named: dict[int, set[int]] = field(default_factory=dict)
    """Rank -> ranks of those who could not open its shares."""
    _trouble: dict[int, str] = field(default_factory=dict)

    @property
    def culprits(self) -> list[int]:
        """Nodes whose shares more members could not open than may collude: the fault is theirs."""
        bound = self.circle.colluders
        return [node for node, rank in self.nodes.items() if len(self.named.get(rank, ())) > bound]

    @property
    def survivors(self) -> tuple[int, ...]:
        """U: ranks of those whose updates are in the sum."""
        return tuple(sorted(self.nodes.values()))

    def release(self, shares: Mapping[int, Sequence[bytes]]) -> list[bytes]:
        """Have the survivors sign their set, and release the sum of their seeds.

        Parameters
        ----------
        shares : mapping of int to sequence of bytes
            Node id to the shares that came with its update, by the rank of their receiver.

        Returns
        -------
        list of bytes
            Answers to UNMASK, as many as came in time, for `masking.combine`.

        Raises
        ------
        QuorumError
            Too few signed or answered. The round is lost: its survivors may have been signed, and
            nobody signs two sets of a round.
        """
        self.circle.check_set(self.survivors)
        signatures = self._consist(shares)
        return self._unmask(signatures)

    def _consist(self, shares: Mapping[int, Sequence[bytes]]) -> dict[int, bytes]:
        survivors = self.survivors
        by_rank = {rank: shares[node] for node, rank in self.nodes.items()}
        said = masking.statement(survivors)

        def message(node: int) -> Message:
            rank = self.nodes[node]
            inbox = [by_rank[u][rank] for u in survivors]
            return self._message("consist", node, survivors=list(survivors), shares=inbox)

        signatures: dict[int, bytes] = {}
        for node, answer in self._ask([message(node) for node in self.nodes]):
            try:
                rank = self.nodes[node]
                if "bad" in answer:
                    self._note_bad(rank, answer)
                signature: bytes = records.field(answer, "signature", bytes)
                header = self.circle.header(self.slot, masking.CONSIST, rank)
                self.circle.verify(header, said, signature)
                signatures[rank] = signature
            except FlheError as error:
                self._trouble[node] = str(error)
        self._warn("consist")
        self._enough("consist", len(signatures))
        return signatures

    def _unmask(self, signatures: Mapping[int, bytes]) -> list[bytes]:
        signers = sorted(signatures)[: self.circle.thresholds.threshold]
        fields = {"signers": signers, "signatures": [signatures[rank] for rank in signers]}
        content = self._message("unmask", 0, **fields).content
        answers: dict[int, bytes] = {}
        asked = [node for node, rank in self.nodes.items() if rank in signatures]
        for turn in range(self.retries + 1):
            silent = [node for node in asked if self.nodes[node] not in answers]
            need = self.circle.thresholds.threshold
            if not silent or (turn > 0 and len(answers) >= need):
                break
            self._trouble.clear()
            for node, answer in self._ask([Message(content, n, "train") for n in silent]):
                try:
                    encoded: bytes = records.field(answer, "answer", bytes)
                    rank, _ = masking.check_answer(
                        self.circle, self.slot, self.survivors, encoded, sealed=self.sealed
                    )
                    if rank != self.nodes[node]:
                        raise ProtocolError("it answers for another member")
                    answers[rank] = encoded
                except FlheError as error:
                    self._trouble[node] = str(error)
            self._warn("unmask")
        self._enough("unmask", len(answers))
        return [answers[rank] for rank in sorted(answers)]

    def _note_bad(self, rank: int, answer: ConfigRecord) -> NoReturn:
        """Note whose shares a member could not open; it has signed nothing."""
        bad = answer.get("bad")
        ranks = bad if isinstance(bad, list) else []
        named = sorted({r for r in ranks if type(r) is int and r in self.survivors})
        for other in named:
            self.named.setdefault(other, set()).add(rank)
        raise ProtocolError(f"the shares by ranks {', '.join(map(str, named))} do not open there")

    def _message(self, stage: str, node: int, **fields: Any) -> Message:
        record = records.stage_record(
            stage, round=self.slot.round, attempt=self.slot.attempt, **self.fields, **fields
        )
        return Message(RecordDict({records.STAGE: record}), node, "train")

    def _ask(self, messages: list[Message]) -> Iterator[tuple[int, ConfigRecord]]:
        """Send, and yield (node, its record) of each answer, with its seconds noted.

        `_trouble` gets refusals, silences and replies without a record; what comes from others than
        `nodes` belongs to an exchange that is over.
        """
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = self.grid.node_of(reply)
            if node not in self.nodes:
                continue
            if reply.has_error():
                self._trouble[node] = self.refused(node, reply)
                continue
            answer = records.find_reply(reply.content)
            if answer is None:
                self._trouble[node] = "the reply holds nothing of ours"
                continue
            self.crypto_s[node] = self.crypto_s.get(node, 0.0) + sound(answer.get("crypto-s"))
            yield node, answer
        for node in self.grid.silent:
            self._trouble[node] = "no reply in time"

    def _warn(self, stage: str) -> None:
        for node, why in self._trouble.items():
            log(WARNING, "%s: node %d: %s", stage, node, why)

    def _enough(self, stage: str, count: int) -> None:
        need = self.circle.thresholds.threshold
        if count < need:
            raise QuorumError(
                f"round {self.slot.round}: {count} of {len(self.nodes)} survivors answered stage "
                f"{stage!r}, {need} needed ({reasons(self._trouble)})"
            )
        log(INFO, "%s: %d of %d survivors, %d needed", stage, count, len(self.nodes), need)
