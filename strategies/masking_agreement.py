"""The workflow that drives `flhe.keys.agreement.masking` over a Grid: the server only carries messages.

Two relays after the update: CONSIST hands each survivor its shares and asks it to sign the set, UNMASK
shows t signatures and asks for the sum of its shares. What it gives back opens the sum of exactly those
updates, for whoever may read it. Where members hold shares of a key, CONSIST shows the sum, and some of
them decrypt it in part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from typing import Any, NoReturn, cast

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement.answers import check_answer
from flhe.keys.agreement.circle import CONSIST
from flhe.mods import records
from flhe.schemes.base import Adder, SharesAdder
from flhe.schemes.sealed import Sealed
from flhe.strategies.federation import Federation
from flhe.strategies.overhead import sound
from flhe.strategies.trouble import give_up, warn

log = getLogger("flwr").log

Reader = Callable[[int, ConfigRecord], bytes]
"""(node, its answer) -> what it tells, checked."""


class MaskingAgreement:
    """One round's agreement on the sum of the survivors' seeds.

    Parameters
    ----------
    fed : Federation
        What the server knows; the shares that came with the updates of this attempt are in it.
    adder : Adder
        What its ciphertexts were added with.
    total : Sealed
        Their sum.
    timeout : float
        Seconds that each relay waits.
    retries : int
        How often UNMASK is asked for again; the answers are the same.
    """

    def __init__(
        self, fed: Federation, adder: Adder, total: Sealed, timeout: float, retries: int
    ) -> None:
        self.fed, self.timeout, self.retries = fed, timeout, retries
        self.circle, self.slot = fed.parameters.circle, total.slot
        self.total = adder.close(total)
        self.survivors = total.senders
        """U: ranks of those whose updates are in the sum."""
        self.openers = self.survivors
        """Ranks of those that are asked for what opens it."""
        self.all_open = not fed.terms.scheme.per_sum_keys
        """Whether it takes all of them, not only as many as sign."""
        if self.all_open:
            shares = cast(SharesAdder, adder)
            size = shares.partial_bytes(total.length)
            self.circle = replace(self.circle, total=self.total.digest(), partial=size)
            self.openers = shares.openers(total.senders)
        ranks = {node: fed.parameters.epoch.rank(node) for node in fed.attempt.shares}
        self.nodes = {node: rank for node, rank in ranks.items() if rank in total.senders}
        """Node id to rank, of the same members."""
        self.named: dict[int, set[int]] = {}
        """Rank -> ranks of those who could not open its shares."""
        self.silent: set[int] = set()
        """Ranks of those who signed and did not answer UNMASK, where that voids the round."""
        self._trouble: dict[int, str] = {}

    @property
    def culprits(self) -> list[int]:
        """Nodes whose shares do not open, at more members than may collude.

        Or at one of them, where the node itself signed the set and then gave nothing to open it with:
        neither is the fault of anybody who complains.
        """
        bound = self.circle.colluders
        found = []
        for node, rank in self.nodes.items():
            complaints = len(self.named.get(rank, ()))
            if complaints > bound or (complaints and rank in self.silent):
                found.append(node)
        return found

    def release(self) -> list[bytes]:
        """Have the survivors sign their set, and release the sum of their seeds.

        Returns
        -------
        list of bytes
            Answers to UNMASK, as many as came in time, for `flhe.keys.agreement.answers.combine`.

        Raises QuorumError: too few signed or answered. The round is lost: its survivors may have been
        signed, and nobody signs two sets of a round.
        """
        self.circle.check_set(self.survivors)
        try:
            answers = self._unmask(self._consist())
        finally:
            for node in self.culprits:
                log(WARNING, "node %d is left out from now on: its shares do not open", node)
            self.fed.barred.update(self.culprits)
        self.fed.attempt.shares = {}
        return answers

    def _consist(self) -> dict[int, bytes]:
        survivors = self.survivors
        by_rank = {rank: self.fed.attempt.shares[node] for node, rank in self.nodes.items()}
        said = self.circle.statement(survivors)
        messages = []
        arrays = records.from_sealed(self.total) if self.all_open else None
        for node, rank in self.nodes.items():
            fields: dict[str, Any] = {"survivors": list(survivors)}
            if arrays is None:
                fields["shares"] = [by_rank[u][rank] for u in survivors]
            else:
                fields["sum"] = self.total.header()
            message = self._message("consist", node, **fields)
            if arrays is not None:
                message.content[records.UPDATE] = arrays
            messages.append(message)

        def read(node: int, answer: ConfigRecord) -> bytes:
            rank = self.nodes[node]
            if "bad" in answer:
                self._note_bad(rank, answer)
            signature: bytes = records.field(answer, "signature", bytes)
            header = self.circle.header(self.slot, CONSIST, rank)
            self.circle.verify(header, said, signature)
            return signature

        signatures = self._ask("consist", messages, read)
        self._enough("consist", len(signatures), self.circle.thresholds.threshold)
        return signatures

    def _unmask(self, signatures: Mapping[int, bytes]) -> list[bytes]:
        need = self.circle.thresholds.threshold
        signers = sorted(signatures)[:need]
        fields = {"signers": signers, "signatures": [signatures[rank] for rank in signers]}
        content = self._message("unmask", 0, **fields).content
        answers: dict[int, bytes] = {}
        asked = [node for node, rank in self.nodes.items() if rank in self.openers]
        if self.all_open:
            need = len(self.openers)
        else:
            asked = [node for node in asked if self.nodes[node] in signatures]

        def read(node: int, answer: ConfigRecord) -> bytes:
            encoded: bytes = records.field(answer, "answer", bytes)
            sealed = not self.fed.server_reads
            rank, _ = check_answer(self.circle, self.slot, self.survivors, encoded, sealed=sealed)
            if rank != self.nodes[node]:
                raise ProtocolError("it answers for another member")
            return encoded

        for turn in range(self.retries + 1):
            silent = [node for node in asked if self.nodes[node] not in answers]
            if not silent or (turn > 0 and len(answers) >= need):
                break
            self._trouble.clear()
            messages = [Message(content, node, "train") for node in silent]
            answers |= self._ask("unmask", messages, read)
        if len(answers) < need:
            self.silent = {self.nodes[node] for node in asked} - answers.keys()
        self._enough("unmask", len(answers), need)
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
        confirmed = self.fed.confirmed.issuperset(self.fed.attempt.shares)
        of = {"round": self.slot.round, "attempt": self.slot.attempt}
        record = self.fed.stage(stage, confirmed, **of, **fields)
        return Message(RecordDict({records.STAGE: record}), node, "train")

    def _ask(self, stage: str, messages: list[Message], read: Reader) -> dict[int, bytes]:
        """Send; returns by rank what `read` makes of each answer, with its seconds noted."""

        def answered(node: int, content: RecordDict) -> bytes:
            answer = records.find_reply(content)
            if answer is None:
                raise ProtocolError("the reply holds nothing of ours")
            self.fed.round.note_crypto(node, sound(answer.get("crypto-s")))
            return read(node, answer)

        found = {
            self.nodes[node]: value
            for node, value in self.fed.ask(
                messages, self.timeout, self._trouble, answered, of_model=False, follows=False
            )
        }
        warn(f"{stage}: node %d: %s", self._trouble)
        return found

    def _enough(self, stage: str, count: int, need: int) -> None:
        if count < need:
            give_up(
                f"round {self.slot.round}: {count} of {len(self.nodes)} survivors answered stage "
                f"{stage!r}, {need} needed",
                self._trouble,
            )
        log(INFO, "%s: %d of %d survivors, %d needed", stage, count, len(self.nodes), need)
