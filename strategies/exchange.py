"""Exchange: the stages of a round after training, as the server sees them.

Mean squares are added, supports collected, the scheme's mode is announced, and updates are added. Nodes
whose models differ, or whose apps were told different things, never come into one sum: those of most of
them go on, the others are named and caught up.

Under masking-key agreement (`flhe.keys.agreement.masking`) two relays follow the update: CONSIST hands
each survivor its shares and asks it to sign the set, UNMASK shows t signatures and asks for the sum of
its shares. What it gives back opens the sum of exactly those updates, for whoever may read it. Where
members hold shares of a key, CONSIST shows the sum, and some of them decrypt it in part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, getLogger
from operator import itemgetter
from typing import Any, Generic, NoReturn, TypeVar, cast

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.coding.support import Support
from flhe.errors import DriftError, ProtocolError
from flhe.keys.agreement.answers import check_answer
from flhe.keys.agreement.circle import CONSIST
from flhe.mods import records
from flhe.schemes.base import Adder, SharesAdder
from flhe.schemes.sealed import Sealed
from flhe.strategies.epoch_parameters import start_in
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.overhead import ADD, sound
from flhe.strategies.trouble import give_up, warn
from flhe.training.kind import Kind
from flhe.training.mean_squares import MEAN_SQUARES
from flhe.training.start import Start

log = getLogger("flwr").log

V = TypeVar("V")

P = TypeVar("P")


@dataclass(slots=True)
class Views(Generic[V, P]):
    """What came of one stage of a round, for each model that nodes start from."""

    fed: Federation
    stage: str
    read: Callable[[int, Message], tuple[P, Start]]
    """(node, reply) -> what it tells, checked, and where it starts."""
    add: Callable[[V | None, P], V]
    """(what there is of a model, None at first; what a node told) -> both together."""
    limit: int | None = None
    """Most models that are told apart; what starts from more of them is left out."""
    trouble: dict[int, str] = field(default_factory=dict)
    """Why which nodes are left out."""
    senders: dict[Start, list[int]] = field(default_factory=dict)
    _views: dict[Start, V] = field(default_factory=dict)

    def collect(self, replies: Iterable[Message]) -> tuple[Start, V] | tuple[None, None]:
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
                self.trouble |= {node: fed.mark_drifted(node, start, chosen) for node in nodes}
        warn(f"{self.stage}: node %d is left out: %s", self.trouble)
        for node in self.trouble:
            # One with another model is caught up before it counts as missing.
            if fed.model_round(node) != LOST or fed.ledger.attempt > 0:
                fed.attempt.missing.add(node)
        return (None, None) if chosen is None else (chosen, self._views[chosen])

    def _take(self, node: int, reply: Message) -> Start:
        with self.fed.grid.meter.doing(ADD):
            try:
                part, start = self.read(node, reply)
            except DriftError:
                self.fed.at[node] = LOST
                raise
            if start not in self._views and len(self._views) == self.limit:
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


MAX_VIEWS = 3
"""Models among which the updates of one round are told apart; more than these are left out."""


@dataclass(slots=True)
class Exchange:
    """One attempt at a round."""

    fed: Federation
    needed: int
    """Nodes without which the attempt is given up."""
    supports: dict[int, Support] = field(default_factory=dict)
    """What each node told of its coordinates."""
    _trouble: dict[int, str] = field(default_factory=dict)

    def updates(self, replies: Iterable[Message], timeout: float) -> Iterable[Message]:
        """The replies that hold updates: `replies`, or those to the last stage of the round.

        `replies` are those to its first stage; each later one waits `timeout` seconds.

        QuorumError: Too few answered a stage before.
        """
        sparse = self.fed.terms.codec.sparse
        if self.fed.parameters.needs_mean_squares:
            nodes = self.add_mean_squares(replies)
            replies = self._ask("supports" if sparse else "update", nodes, timeout)
        if sparse:
            replies = self._ask("update", self.collect_supports(replies), timeout)
        return replies

    def _ask(self, stage: str, nodes: list[int], timeout: float) -> Iterable[Message]:
        fed = self.fed
        fed.attempt.missing = set(fed.members)
        return fed.grid.send_and_receive(fed.messages("train", stage, nodes), timeout=timeout)

    def add_mean_squares(self, replies: Iterable[Message]) -> list[int]:
        """Add the mean squares in `replies` and keep their sum; returns the nodes in it.

        QuorumError: Too few of them.
        """
        fed, whole = self.fed, self.fed.parameters.sums.whole
        mode = fed.terms.scheme.mode_ahead
        total, _, nodes = self._add(MEAN_SQUARES, whole, replies, mode, "mean squares")
        fed.ledger.keep_mean_squares(whole.close(total))
        return nodes

    def collect_supports(self, replies: Iterable[Message]) -> list[int]:
        """Collect the supports in `replies`, and choose the mode; returns the nodes.

        QuorumError: Too few of them.
        """
        fed, of_epoch = self.fed, self.fed.parameters
        length = of_epoch.layout.floats

        def checked(node: int, reply: Message) -> tuple[tuple[int, Support], Start]:
            content, answer = fed.opened(node, reply)
            if records.field(answer, "step", str) != "supports":
                raise ProtocolError("it answered with another stage of the round")
            start = start_in(answer)
            support = Support.from_bytes(records.field(answer, "support", bytes), length)
            fed.heard(node, content)
            return (node, support), start

        def add(told: dict[int, Support] | None, one: tuple[int, Support]) -> dict[int, Support]:
            return {**(told or {}), one[0]: one[1]}

        views = Views(fed, "supports", checked, add)
        self.supports = views.collect(replies)[1] or {}
        if len(self.supports) < self.needed:
            give_up(
                f"round {fed.ledger.round}: {len(self.supports)} nodes answered stage 'supports', "
                f"{self.needed} needed",
                views.trouble,
            )
        rank = of_epoch.epoch.rank
        ranked = sorted(
            ((rank(node), support) for node, support in self.supports.items()), key=itemgetter(0)
        )
        trailer = of_epoch.sums.terms.trailer_lanes(of_epoch.layout)
        fed.attempt.mode, why = fed.terms.scheme.mode_of(ranked, trailer, len(fed.members))
        if why:
            log(INFO, "supports: %d told; %s", len(ranked), why)
        return list(self.supports)

    def add_updates(self, replies: Iterable[Message]) -> tuple[Sealed, Start]:
        """Fold the updates in `replies` as they arrive; their sum, and where its senders started.

        QuorumError: Too few of them.
        """
        fed, kind = self.fed, self.fed.parameters.ending
        total, start, nodes = self._add(
            kind, fed.adder, replies, fed.attempt.mode, "aggregate_train"
        )
        for node in sorted(fed.round.answered - set(nodes) - set(self._trouble)):
            log(WARNING, "aggregate_train: node %d is left out: it answered only before", node)
        return total, start

    def _add(
        self, kind: Kind, adder: Adder, replies: Iterable[Message], mode: str, where: str
    ) -> tuple[Sealed, Start, list[int]]:
        """Fold contributions as they arrive; their sum, where its senders started, and who they are.

        Those that start from different models are never added: those of most senders count, the other
        senders are named and caught up.
        """
        fed = self.fed

        def add(total: Sealed | None, part: Sealed) -> Sealed:
            began = time.perf_counter()
            total = adder.add(total, part)
            fed.round.adding_s += time.perf_counter() - began
            return total

        def receive(node: int, reply: Message) -> tuple[Sealed, Start]:
            return fed.contribution(node, reply, kind, mode, self.supports.get(node))

        views = Views(fed, where, receive, add, MAX_VIEWS)
        start, total = views.collect(replies)
        self._trouble = views.trouble
        survivors = len(total.senders) if total else 0
        log(INFO, "%s: Added %d updates, %d failures", where, survivors, len(views.trouble))
        if total is None or start is None or survivors < self.needed:
            if kind is not MEAN_SQUARES:
                fed.round.answered.update(*views.senders.values())
            what = f"round {fed.ledger.round}: {survivors} updates, {self.needed} needed"
            give_up(what, views.trouble)
        return total, start, views.senders[start]


Reader = Callable[[int, ConfigRecord], bytes]
"""(node, its answer) -> what it tells, checked."""


class MaskingAgreement:
    """One round's agreement on the sum of the survivors' seeds.

    Parameters
    ----------
    fed : Federation
        What the server knows; the shares that came with the updates of this attempt are in it.
    total : Sealed
        The updates' sum.
    timeout : float
        Seconds that each relay waits.
    retries : int
        How often UNMASK is asked for again; the answers are the same.
    """

    def __init__(self, fed: Federation, total: Sealed, timeout: float, retries: int) -> None:
        self.fed, self.timeout, self.retries = fed, timeout, retries
        self.circle, self.slot, self.total = (
            fed.parameters.circle,
            total.slot,
            fed.adder.close(total),
        )
        self.survivors = total.senders
        """U: ranks of those whose updates are in the sum."""
        self.openers = self.survivors
        """Ranks of those that are asked for what opens it."""
        self.all_open = not fed.terms.scheme.per_sum_keys
        """Whether it takes all of them, not only as many as sign."""
        if self.all_open:
            adder = cast(SharesAdder, fed.adder)
            size = adder.partial_bytes(total.length)
            self.circle = replace(self.circle, total=self.total.digest(), partial=size)
            self.openers = adder.openers(total.senders)
        ranks = {node: fed.parameters.epoch.rank(node) for node in fed.attempt.shares}
        self.nodes = {node: rank for node, rank in ranks.items() if rank in total.senders}
        """Node id to rank, of the same members."""
        self.named: dict[int, set[int]] = {}
        """Rank -> ranks of those who could not open its shares."""
        self._trouble: dict[int, str] = {}

    @property
    def culprits(self) -> list[int]:
        """Nodes whose shares more members could not open than may collude: the fault is theirs."""
        bound = self.circle.colluders
        return [node for node, rank in self.nodes.items() if len(self.named.get(rank, ())) > bound]

    def release(self) -> list[bytes]:
        """Have the survivors sign their set, and release the sum of their seeds.

        Returns
        -------
        list of bytes
            Answers to UNMASK, as many as came in time, for `flhe.keys.agreement.answers.combine`.

        QuorumError: Too few signed or answered. The round is lost: its survivors may have been
        signed, and nobody signs two sets of a round.
        """
        self.fed.ledger.spoil(self.slot.round)  # before anybody may have signed its survivors
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
        record = self.fed.stage(stage, confirmed, **fields)
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
