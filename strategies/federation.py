"""Federation: the server's state during a run: nodes' progress and replies.

The ledger holds what must survive a restart; this state can be asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flhe.coding.support import Support
from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.answers import combine, pack
from flhe.mods import records
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed, to_bytes
from flhe.strategies.epoch_parameters import EpochParameters, start_in
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.strategies.membership import Membership
from flhe.strategies.overhead import OPEN, sound
from flhe.strategies.report import RoundReport, means_of
from flhe.strategies.round_state import Attempt, RoundState
from flhe.strategies.suspects import Suspects
from flhe.strategies.trouble import log, warn
from flhe.sums.secure_sum import SecureSum
from flhe.training.chain import link_of
from flhe.training.contract import Contract
from flhe.training.kind import MEAN_SQUARES, Kind
from flhe.training.session import THREADS
from flhe.training.terms import Terms
from flhe.training.update import ServerReader, finite
from flhe.wire.codes import explain

T = TypeVar("T")
Read = Callable[[int, ConfigRecord, RecordDict], T]
"""(node, our record in its reply, the whole reply) -> its checked content."""

NOTHING, LOST = -1, -2
"""States of a node besides a round: it has no model; its model differs from the others'."""

REUSED, UNCONFIRMED, NO_KEY, LEFT, CLAIMED, SUM_RANGE = 1012, 1013, 1020, 1021, 1022, 1031
APPS_FAULT = (1001, 1018)
"""Codes of an app that would fail again."""
BEHIND = (1011, 1012, 1014, 1019, 1023, 1024)
"""Codes of `flhe.wire.codes` for a node that cannot follow: it needs a checkpoint."""
REFUSES = (1011, 1012, 1014, 1023)
"""Those of them that refuse a received sum."""
SPOILT = (1014, 1023)
"""Those that report that the sum is not the one of its senders' ciphertexts."""


@dataclass
class Federation:
    """The server's state of a running federation. Nothing in it can decrypt."""

    grid: StreamGrid
    ledger: Ledger
    contract: Contract
    membership: Membership
    initial: ArrayRecord | None
    """Starting model of nodes: the initial one, or the present one if the server has it."""
    round: RoundState = field(default_factory=RoundState)
    attempt: Attempt = field(default_factory=Attempt)
    at: dict[int, int] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    means: dict[int, MetricRecord] = field(default_factory=dict)
    """Means of training metrics, by round."""
    evaluations: dict[int, MetricRecord] = field(default_factory=dict)
    """Reported means of each round's evaluation."""
    refusers: set[int] = field(default_factory=set)
    """Nodes that refused the last sum."""
    altered: set[int] = field(default_factory=set)
    """Those of them that report it as not the sum of its senders' ciphertexts."""
    summed: set[bytes] = field(default_factory=set)
    """Keys of the members whose updates are in the last sum."""
    suspects: Suspects = field(default_factory=Suspects)
    voids: dict[int, bool] = field(default_factory=dict)
    """Void rounds of this run; False if the void sum narrowed the suspects down."""
    dropout: float | None = None
    """Recent share of members missing from a sum; None before the first."""
    barred: set[bytes] = field(default_factory=set)
    """Keys of members excluded from updates: they made sums that no node opens, or accuse others."""

    @property
    def terms(self) -> Terms:
        """Terms of encoding and encryption."""
        return self.contract.terms

    def __post_init__(self) -> None:
        self.parameters = EpochParameters(self.ledger, self.terms)
        if self.ledger.model is not None:
            self.initial = records.from_numpy(self.ledger.model.arrays())

    @property
    def server_reads(self) -> bool:
        """True if the server reads the sums, and sends the model to all nodes."""
        return self.terms.scheme.reader == "server"

    @property
    def members_hold(self) -> bool:
        """True if members hold a model that the server does not have, and must be brought to it."""
        return not self.server_reads

    # --- members and nodes ---

    @property
    def members(self) -> dict[int, bytes]:
        """Identity key of each member, by node id; negative ids are members without a known node."""
        return {} if self.ledger.agreed is None else self.ledger.agreed.members

    def connected(self) -> list[int]:
        """Return the nodes that the grid reaches."""
        return sorted(self.grid.get_node_ids())

    def wait_for(self, need: int, seconds: float) -> list[int]:
        """Return the nodes that the grid reaches, once they are `need`, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while len(nodes := self.connected()) < need and time.monotonic() < deadline:
            time.sleep(0.2)
        return nodes

    def present(self) -> list[int]:
        """Return the members that the grid reaches, and that have not given up their keys."""
        out = self.membership.left | self.membership.keyless
        return [node for node in self.connected() if node in self.members and node not in out]

    def following(self) -> list[int]:
        """Return those of them that sums bring to the others' model."""
        return [node for node in self.present() if self.missing_rounds(node) is not None]

    def model_round(self, node: int) -> int:
        """Return the round of a node's model, as far as known."""
        return self.at.get(node, NOTHING)

    def has_model(self, node: int) -> bool:
        """Return whether a node is known to have the present model."""
        return self.model_round(node) == self.ledger.base

    def missing_rounds(self, node: int) -> tuple[int, ...] | None:
        """Return the rounds whose sums update a node's model; None if it needs a checkpoint."""
        if self.server_reads:
            return ()
        ledger = self.ledger
        start = self.model_round(node)
        if start == NOTHING and self.initial is not None:
            start = 0
        if start not in ledger.chain:
            return None
        rounds = tuple(r for r in sorted(ledger.chain) if r > start)
        return rounds if all(r in ledger.sums for r in rounds) else None

    def spared(self, agreed: Agreed) -> int:
        """Return how many members' word is not enough in an epoch; a first model has one holder."""
        return agreed.colluders if self.ledger.base > 0 else 0

    @property
    def adder(self) -> Adder:
        """Adder of the current round."""
        sums = self.parameters.sums
        return sums.whole if self.parameters.maps else sums.adder

    # --- requests ---

    def messages(self, kind: str, stage: str, nodes: Iterable[int]) -> list[Message]:
        """Return a stage's messages to `nodes`, with all missing sums; equal contents are shared."""
        shared: dict[tuple[object, ...], RecordDict] = {}
        out = []
        for node in nodes:
            rounds = self.missing_rounds(node)
            fresh = self.server_reads or (self.model_round(node) == NOTHING and rounds is not None)
            need = node in self.confirmed, fresh, rounds, node == self.teller
            if need not in shared:
                shared[need] = self.content(stage, *need)
            out.append(Message(shared[need], node, kind))
        return out

    @property
    def teller(self) -> int | None:
        """Member that still has to report an evaluation; None if it is away, or has reported."""
        if not self.ledger.evaluation:
            return None
        rank = self.parameters.epoch.rank
        return next((node for node in self.present() if rank(node) == 0), None)

    def stage(self, stage: str, confirmed: bool, **fields: Any) -> ConfigRecord:
        """Return a stage's own record: federation, round and epoch, and `fields`."""
        ledger, agreed = self.ledger, self.parameters.epoch
        common = {
            "federation": records.federation_name(ledger.federation),
            "round": ledger.round,
            "attempt": ledger.attempt,
            "epoch": agreed.epoch,
            "confirms": [] if confirmed else list(agreed.confirms),
        }
        return records.stage_record(stage, **{**common, **fields})

    def content(
        self,
        stage: str,
        confirmed: bool,
        fresh: bool,
        rounds: tuple[int, ...] | None,
        tells: bool = False,
    ) -> RecordDict:
        """Return a stage's content, with all that updates a node's model.

        `fresh` nodes get the initial model; `rounds` are those of the attached sums, and None
        attaches the kept checkpoint and the sums since. A node that `tells` gets the unreported
        evaluation.
        """
        ledger = self.ledger
        by_box = rounds is None
        training = ledger.phase == "training"
        if rounds is None:
            rounds = tuple(r for r in sorted(ledger.sums) if r > ledger.box_round)
        fields: dict[str, Any] = {
            "sums": [ledger.sums[r][0] for r in rounds],
            "mean-squares": [ledger.mean_squares.get(r, b"") for r in rounds],
            "releases": [ledger.releases.get(r, b"") for r in rounds],
            "vouchers": list(ledger.vouchers) if by_box else [],
            "base": ledger.base,
            "fitted-on": ledger.mean_squares.get(ledger.round, b"") if training else b"",
            "mode": self.attempt.mode,
            "voids": [void.to_bytes() for void in ledger.voids] if stage == "round" else [],
        }
        # A sync also finds the nodes that differ.
        if ledger.chain and (fresh or stage != "sync"):
            fields["history"] = ledger.history
        if tells:
            fields |= {"evaluation": ledger.evaluation, "opens-evaluation": ledger.opens_evaluation}
        content = RecordDict({records.STAGE: self.stage(stage, confirmed, **fields)})
        if fresh and self.initial is not None:
            content[self.terms.arrays_key] = self.initial
        if by_box and ledger.box is not None:
            content[records.BOX] = ledger.box
        for i, r in enumerate(rounds):
            content[f"{records.SUM}.{i}"] = ledger.sums[r][1]
        return content

    def end_epoch(self, timeout: float) -> None:
        """Have sums opened that need this epoch's keys and update no model."""

    # --- replies ---

    def ask(
        self, messages: list[Message], timeout: float, trouble: dict[int, str], read: Read[T]
    ) -> Iterator[tuple[int, T]]:
        """Send stages that update a node's model, and yield (node, `read`'s result for its reply).

        A refusal concerns the node's model. See `StreamGrid.fold`.
        """

        def answered(node: int, reply: Message) -> T:
            answer = self.answer(node, reply)
            value = read(node, answer, reply.content)
            self.heard(node, answer, reply.content)
            return value

        replies = self.grid.send_and_receive(messages, timeout=timeout)
        return self.grid.fold(replies, trouble, answered)

    def gather(
        self,
        stage: str,
        contents: Mapping[int, RecordDict],
        timeout: float,
        trouble: dict[int, str],
        read: Read[T],
    ) -> dict[int, T]:
        """Send each node a stage of no model; log failures, and return `read`'s results by node."""

        def answered(node: int, reply: Message) -> T:
            answer = self.answer(node, reply, of_model=False)
            value = read(node, answer, reply.content)
            self._note_seconds(node, answer)
            return value

        messages = [Message(content, node, "train") for node, content in contents.items()]
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        told = dict(self.grid.fold(replies, trouble, answered))
        warn(f"{stage}: node %d: %s", trouble)
        return told

    def refused(self, node: int, reply: Message, *, of_model: bool = True) -> str:
        """Record a node's refusal, of its model if `of_model`; return it in words."""
        code, claimed = reply.error.code, self.round.claimed
        if code in APPS_FAULT:
            self.attempt.app_failed.add(node)
        if code == REUSED and self.ledger.base not in (self.missing_rounds(node) or ()):
            self.attempt.spent.add(node)  # not of a sum in the message
        elif code == CLAIMED:
            claimed[node] += 1
        if (
            code == NO_KEY
            or (code == UNCONFIRMED and node not in self.confirmed)
            or (code == CLAIMED and claimed[node] > 1)  # it has answered one far ahead
        ):
            self.membership.keyless.add(node)
        elif code == LEFT:
            self.membership.left.add(node)
        elif of_model and code in BEHIND and self.ledger.chain:
            if code in REFUSES and self.ledger.base in (self.missing_rounds(node) or ()):
                self.refusers.add(node)
                if code in SPOILT:
                    self.altered.add(node)
            self.at[node] = LOST
        return explain(code, reply.error.reason)

    def contribution(
        self, node: int, reply: Message, kind: Kind, mode: str, support: Support | None = None
    ) -> tuple[Sealed, bytes]:
        """Return the verified ciphertext in a reply, and the digest of its sender's starting model.

        `kind` is the kind of sum, `mode` the announced mode of the scheme, `support` the node's
        support in this attempt.

        Raises ProtocolError: an error reply, or a ciphertext that is not this node's for this sum.
        """
        answer, content = self.member_answer(node, reply), reply.content
        of, start = self.sum_of(kind, answer)
        arrays = content.get(records.UPDATE)
        if not isinstance(arrays, ArrayRecord):
            raise ProtocolError("the reply holds no encrypted update")
        if of.sparse and support is None:
            raise ProtocolError("an update without a support")
        known = [support] if support is not None else None
        header = records.field(answer, "header", bytes)
        part = records.to_sealed(header, arrays, take=True, supports=known, floats=0)
        agreed = self.parameters.epoch
        rank, envelope = agreed.rank(node), records.field(answer, "envelope", bytes)
        of.check_part(part, envelope, rank, agreed.members[node], mode)
        if kind is not MEAN_SQUARES and self.terms.scheme.per_sum_keys:
            self.attempt.shares[node] = self.parameters.shares_in(node, answer)
        self.heard(node, answer, content)
        return part, start

    def sum_of(self, kind: Kind, answer: ConfigRecord) -> tuple[SecureSum, bytes]:
        """Return the sum that a reply's ciphertext is for, and the digest of its starting model."""
        start = start_in(answer)
        return self.parameters.sum(kind, start), start

    def mark_drifted(self, node: int) -> str:
        """Record that a node's starting model differs from most; return the reason to leave it out."""
        self.at[node] = LOST
        return "its model has drifted from the others': it will be caught up"

    def answer(self, node: int, reply: Message, *, of_model: bool = True) -> ConfigRecord:
        """Return our record in a reply; ProtocolError: an error reply, or one without it."""
        if reply.has_error():
            raise ProtocolError(self.refused(node, reply, of_model=of_model))
        answer = records.find_reply(reply.content)
        if answer is None:
            raise ProtocolError("the reply has no record of flhe")
        return answer

    def member_answer(self, node: int, reply: Message) -> ConfigRecord:
        """As `answer`; ProtocolError also for a node that is not a member."""
        answer = self.answer(node, reply)
        if node not in self.members:
            raise ProtocolError("it is not a member of this epoch")
        return answer

    def _note_seconds(self, node: int, answer: ConfigRecord) -> None:
        seconds = sound(answer.get("crypto-s"))
        self.round.crypto_s[node] += seconds
        self.grid.meter.told(node, seconds)

    def heard(self, node: int, answer: ConfigRecord, content: RecordDict) -> None:
        """Record the node's state from its reply after following."""
        ledger = self.ledger
        self.at[node] = ledger.base
        self.confirmed.add(node)
        self.refusers.discard(node)
        self.altered.discard(node)
        self.attempt.missing.discard(node)
        self._note_seconds(node, answer)
        opened = records.find_config(content, "flhe.opened")
        if opened is not None and opened.get("missed") is True:
            log(WARNING, "node %d reports that its update is missing from the sum", node)
        if ledger.agreed is not None and node in self.members and ledger.agreed.rank(node) == 0:
            means, terms = content.metric_records, self.terms
            self.means |= {
                r: means_of(means[name], terms.metrics)
                for r in ledger.sums
                if (name := f"{records.MEANS}{r}") in means
            }
            found = means.get(f"{records.EVALUATION}{ledger.evaluated}")
            if ledger.evaluation and found is not None:
                self.evaluations[ledger.evaluated] = means_of(found, terms.evaluated)
                ledger.keep_evaluation(ledger.evaluated)

    # --- a round ---

    def begin(self, round_: int, attempt: int) -> None:
        """Start a round's clocks, once, and record the attempt."""
        if attempt == 0:
            self.round = RoundState()
        self.attempt = Attempt(set(self.members))
        self.ledger.begin(round_, attempt)

    def keep(self, total: Sealed, release: Sequence[bytes] = ()) -> ArrayRecord:
        """Keep a round's sum until every member has it, or read it if the server does.

        `release` holds the released answers of the senders' masking-key agreement.
        """
        self.refusers, self.altered = set(), set()
        self.suspects.opened(self.summed)  # these start from the model that it made
        self.summed = {self.parameters.epoch.publics[rank] for rank in total.senders}
        self.ledger.survivors = len(total.senders)
        if self.server_reads:
            with self.grid.meter.doing(OPEN):
                arrays = self._read(total, release)
        else:
            link = link_of(
                self.ledger.history, total, total.digest(), self.parameters.epoch.publics
            )
            arrays = self.ledger.keep(total, link.history, pack(release))
        missing = 1 - len(total.senders) / len(self.members)
        self.dropout = missing if self.dropout is None else (self.dropout + missing) / 2
        return arrays

    def keep_evaluation(self, total: Sealed, release: Sequence[bytes] = ()) -> None:
        """Keep a sum of evaluations until it is reported, or read it if the server does."""
        round_ = total.slot.round
        if not self.server_reads:
            self.ledger.keep_evaluation(round_, to_bytes(total), pack(release))
            return
        sums = self.parameters.sums
        with self.grid.meter.doing(OPEN):
            released = combine(self.parameters.circle, total.slot, total.senders, release)
            reader = ServerReader(sums.terms, sums.whole)
            totals = reader.evaluation(total, released, threads=THREADS)
        self.evaluations[round_] = MetricRecord(dict(finite(totals.metrics)))
        self.ledger.keep_evaluation(round_)

    def _read(self, total: Sealed, release: Sequence[bytes]) -> ArrayRecord:
        model, began = self.ledger.model, time.perf_counter()
        assert model is not None
        reader = ServerReader(self.parameters.sums.terms, self.adder)
        released = combine(self.parameters.circle, total.slot, total.senders, release)
        after, totals = reader.open(model, total, released, threads=THREADS)
        self.round.adding_s += time.perf_counter() - began
        self.ledger.keep_model(after)
        self.initial = records.from_numpy(after.arrays())
        if means := finite(totals.metrics):
            self.means[total.slot.round] = MetricRecord(dict(means))
        return self.initial

    def check_voids(self, most: int, *, every: bool = False) -> None:
        """Check the void rounds since the model; those that narrowed suspects down only if `every`.

        Raises QuorumError: more than `most` consecutive rounds were void.
        """
        lost = [counts for number, counts in self.voids.items() if number > self.ledger.base]
        if (len(lost) if every else sum(lost)) > most:
            raise QuorumError(
                f"{len(lost)} consecutive rounds are void: mend what the log says, then resume the run"
            )

    def suspect(self) -> bool:
        """Record that one of the last sum's senders altered it; return if fewer are suspected now."""
        before = len(self.suspects.among)
        found, self.summed = self.suspects.refused(self.summed), set()
        if found is not None:
            self.bar(found, "its ciphertexts spoil sums")
        return len(self.suspects.among) < before

    def bar(self, key: bytes, why: str) -> None:
        """Ask a member for no more updates."""
        self.barred.add(key)
        for node in self.nodes_of({key}):
            log(WARNING, "node %d is left out from now on: %s", node, why)

    def nodes_of(self, keys: Set[bytes]) -> list[int]:
        """Return the nodes of some members, ascending."""
        return sorted(node for node, key in self.members.items() if key in keys)

    def drop_sums(self) -> None:
        """Drop sums that every member has."""
        behind = min((max(self.model_round(n), 0) for n in self.members), default=0)
        if any(round_ <= behind for round_ in self.ledger.sums):
            self.ledger.drop_sums(behind)

    def report(self, server_round: int) -> RoundReport:
        """Return the costs of the round; its model's evaluation may follow later."""
        return RoundReport.of(
            server_round,
            self.grid.meter.take(),
            crypto_s=max(self.round.crypto_s.values(), default=0.0) + self.round.adding_s,
            round_s=time.monotonic() - self.round.began,
            survivors=self.ledger.survivors,
        )
