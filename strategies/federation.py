"""Federation: what the server knows while it runs, and what it sends to whom.

The ledger holds what must not be forgotten; here is what can be asked again: which node stands where.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import WARNING, getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flhe.coding.support import Support
from flhe.errors import DriftError, ProtocolError
from flhe.keys.agreement.masking import Circle, combine, pack
from flhe.keys.agreement.messages import open_detached
from flhe.mods import records
from flhe.schemes.base import Scheme
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot, from_bytes
from flhe.strategies.grid import StreamGrid
from flhe.strategies.ledger import Ledger
from flhe.strategies.membership import Membership
from flhe.strategies.overhead import OPEN, sound
from flhe.strategies.report import RoundReport, scalar
from flhe.sums import receipts
from flhe.training.mean_squares import fitted_layout, own_layout
from flhe.training.model import next_history
from flhe.training.reading import ServerReader, finite
from flhe.training.session import THREADS
from flhe.training.start import Start
from flhe.training.terms import Terms
from flhe.wire.codes import explain

log = getLogger("flwr").log

NOTHING, LOST = -1, -2
"""Where a node may stand besides a round: it has no model; it has another one than the others."""

REUSED, UNCONFIRMED, NO_KEY, LEFT, CLAIMED = 1012, 1013, 1020, 1021, 1022
APPS_FAULT = (1001, 1018)
"""Codes of an app that would do the same if it were asked again."""
BEHIND = (1011, 1012, 1014, 1019, 1023, 1024)
"""Codes of `flhe.wire.codes` by which a node says that it cannot follow: it needs a checkpoint."""
REFUSES = (1011, 1012, 1014, 1023, 1024)
"""Those of them by which it refuses a sum that it was sent."""


class Federation:
    """What the server knows of a running federation. Nothing in it can decrypt."""

    def __init__(
        self,
        grid: StreamGrid,
        ledger: Ledger,
        terms: Terms,
        membership: Membership,
        initial: ArrayRecord | None,
    ) -> None:
        self.grid = grid
        self.ledger = ledger
        self.terms = terms
        self.membership = membership
        self.initial = initial
        """What nodes start from: the initial model, or the present one where the server has it."""
        self.at: dict[int, int] = {}
        self.confirmed: set[int] = set()
        self.means: dict[int, MetricRecord] = {}
        self.began = time.monotonic()
        self.adding_s = 0.0
        self.crypto_s: dict[int, float] = {}
        self.survivors = 0
        self.refusers: set[int] = set()
        """Nodes that refused the last sum."""
        self.asked = 0
        """How many nodes this attempt asked."""
        self.app_failed: set[int] = set()
        """Those whose app failed in it, or replied what no strategy takes."""
        self.spent: set[int] = set()
        """Nodes that say that the round under way is over, in this attempt."""
        self.claimed: Counter[int] = Counter()
        """Attempts at this round that each node has answered otherwise before."""
        self.granted = False
        """Whether this round got one more attempt for that."""
        self.answered: set[int] = set()
        """Nodes whose update came in an attempt at this round that too few answered."""
        self.missing: set[int] = set()
        """Members that have not answered the present stage of an attempt."""
        self.mode = ""
        """Which of its ways the scheme uses in this attempt, where it has several."""
        self.dropout: float | None = None
        """Share of the members who were missing from a sum, lately; None before the first."""
        if kept := ledger.sums.get(ledger.base):
            self.survivors = len(records.to_sealed(*kept).senders)
        self._for: tuple[object, ...] = ()
        self.shares: dict[int, list[bytes]] = {}
        """Shares of the seed that came with each node's update, in this attempt."""
        self.receipts: dict[int, bytes] = {}
        """What each sender of an update signed of the result that it starts from, by rank."""
        self.barred: set[int] = set()
        """Nodes that are asked for no more updates: others could not open what came with them."""
        if ledger.model is not None:
            self.initial = records.from_numpy(ledger.model.arrays())

    @property
    def serves(self) -> bool:
        """Whether the server reads the sums, and sends everybody the model."""
        return self.terms.reader == "server"

    # --- who and where ---

    @property
    def members(self) -> dict[int, bytes]:
        """Identity key of each member, by node id; negative ids are members that nobody has seen."""
        return {} if self.ledger.agreed is None else self.ledger.agreed.members

    def connected(self) -> list[int]:
        """Nodes that the grid reaches."""
        return sorted(self.grid.get_node_ids())

    def present(self) -> list[int]:
        """Members that the grid reaches, and that have not given up their keys."""
        out = self.membership.left | self.membership.keyless
        return [node for node in self.connected() if node in self.members and node not in out]

    def stands(self, node: int) -> int:
        """Round of a node's model, as far as known."""
        return self.at.get(node, NOTHING)

    def lacks(self, node: int) -> list[int] | None:
        """Rounds whose sums bring a node to the others' model; None where only a checkpoint does."""
        if self.serves:
            return []
        ledger = self.ledger
        start = self.stands(node)
        if start == NOTHING and self.initial is not None:
            start = 0
        if start not in ledger.chain:
            return None
        rounds = [r for r in sorted(ledger.chain) if r > start]
        return rounds if all(r in ledger.sums for r in rounds) else None

    # --- the parameters of the epoch ---

    @property
    def whole(self) -> Scheme:
        """The scheme for all of a vector, and all that is no update, for this epoch's cohort."""
        self._derive()
        return self._whole

    @property
    def scheme(self) -> Scheme:
        """The scheme of what is added up in the round under way."""
        self._derive()
        return self._whole if self.maps else self._scheme

    @property
    def maps(self) -> bool:
        """Whether the round under way adds up the map that says what is selected."""
        return self.terms.mapped and self.ledger.base == 0

    @property
    def resolved(self) -> Terms:
        """The terms, for this epoch's cohort."""
        self._derive()
        return self._resolved

    @property
    def circle(self) -> Circle:
        """Public parameters of this epoch's masking-key agreement.

        The bound on collusion is what members say of their roster, whose hash they have agreed on;
        members go by their own.
        """
        agreed = self.ledger.agreed
        assert agreed is not None
        members = tuple(sorted(self.members.values()))
        elements = self.terms.elements(len(members))
        return Circle(
            self.ledger.federation,
            agreed.number,
            agreed.roster_hash,
            members,
            agreed.colluders,
            elements,
        )

    def slot(self, start: Start) -> Slot:
        """The slot of the round under way, for those who start there."""
        self._derive()
        ledger = self.ledger
        assert ledger.agreed is not None
        layout_hash = start.layout(self._layout_hash)
        if fitted_on := ledger.ranges.get(ledger.round):
            layout_hash = fitted_layout(layout_hash, from_bytes(fitted_on).digest())
        return Slot(
            ledger.federation,
            ledger.agreed.roster_hash,
            ledger.agreed.epoch,
            ledger.round,
            ledger.attempt,
            layout_hash,
            ledger.history,
        )

    def ranges_slot(self, start: Start) -> Slot:
        """The slot of the mean squares of the round under way, before their sum is known."""
        layout_hash = start.layout(self._layout_hash)
        return replace(self.slot(start), layout_hash=own_layout(layout_hash))

    @property
    def needs_ranges(self) -> bool:
        """Whether the round under way begins with mean squares, which are yet to be added."""
        ledger, clip = self.ledger, self.terms.clip
        first = len(ledger.chain) == (2 if self.terms.mapped else 1)
        due = (clip == "exchange" and not self.maps) or (clip == "history" and first)
        return due and ledger.round not in ledger.ranges

    def _derive(self) -> None:
        """Compute what depends on cohort and layout, once an epoch."""
        layout = self.ledger.layout
        assert layout is not None
        public = b"" if self.ledger.agreed is None else self.ledger.agreed.public
        key = (len(self.members), layout, public)
        if self._for != key:
            self._resolved = terms = self.terms.resolved(len(self.members))
            self._whole = terms.for_cohort(len(self.members), public)
            self._scheme = terms.selective(self._whole, layout)
            self._layout_hash = terms.layout_hash(layout, self._scheme)
            self._trailer_lanes = terms.trailer_lanes(layout)
            self._lanes = terms.lanes(layout)
            self._map_lanes = terms.map_lanes(layout)
            self._for = key

    # --- what is sent ---

    def messages(
        self, kind: str, stage: str, nodes: Iterable[int], config: ConfigRecord | None, key: str
    ) -> list[Message]:
        """A stage for each of `nodes`, with all that the node lacks; equal contents are one."""
        shared: dict[tuple[object, ...], RecordDict] = {}
        out = []
        for node in nodes:
            rounds = self.lacks(node)
            fresh = self.serves or (self.stands(node) == NOTHING and rounds is not None)
            need = (node in self.confirmed, fresh, None if rounds is None else tuple(rounds))
            if need not in shared:
                shared[need] = self.content(stage, *need)
                if config is not None:
                    shared[need][key] = config
            out.append(Message(shared[need], node, kind))
        return out

    def content(
        self, stage: str, confirmed: bool, fresh: bool, rounds: tuple[int, ...] | None
    ) -> RecordDict:
        """A stage, and what brings a node to where the others are.

        `fresh` nodes get the initial model, `rounds` are those whose sums are sent; None sends the kept
        checkpoint and the sums since.
        """
        ledger = self.ledger
        assert ledger.agreed is not None
        by_box = rounds is None
        training = ledger.phase == "training"
        if rounds is None:
            rounds = tuple(r for r in sorted(ledger.sums) if r > ledger.box_round)
        fields: dict[str, Any] = {
            "federation": records.federation_name(ledger.federation),
            "round": ledger.round,
            "attempt": ledger.attempt,
            "terms": self.terms.to_bytes(),
            "epoch": ledger.agreed.epoch,
            "confirms": [] if confirmed else list(ledger.agreed.confirms),
            "sums": [ledger.sums[r][0] for r in rounds],
            "ranges": [ledger.ranges.get(r, b"") for r in rounds],
            "releases": [ledger.releases.get(r, b"") for r in rounds],
            "told": [ledger.told.get(r, b"") for r in rounds],
            "receipts": [ledger.receipts.get(r, b"") for r in rounds],
            "base": ledger.base,
            "fitted-on": ledger.ranges.get(ledger.round, b"") if training else b"",
            "mode": self.mode,
        }
        if ledger.chain and (
            fresh or stage != "sync"
        ):  # a sync is also how one finds out who differs
            fields["history"] = ledger.history
        content = RecordDict({records.STAGE: records.stage_record(stage, **fields)})
        if fresh and self.initial is not None:
            content[self.terms.arrays_key] = self.initial
        if by_box and ledger.box is not None:
            content[records.BOX] = ledger.box
        for i, r in enumerate(rounds):
            content[f"{records.SUM}.{i}"] = ledger.sums[r][1]
        return content

    def ask(
        self, messages: list[Message], timeout: float, trouble: dict[int, str]
    ) -> Iterator[tuple[int, RecordDict]]:
        """Send, and yield (node, content) of each answer; `trouble` gets refusals and silences."""
        for reply in self.grid.send_and_receive(messages, timeout=timeout):
            node = self.grid.node_of(reply)
            if reply.has_error():
                trouble[node] = self.refused(node, reply)
            else:
                yield node, reply.content
            del reply  # before the next one is unpacked
        for node in self.grid.silent:
            trouble[node] = "no reply in time"

    def explained(self, node: int, reply: Message) -> str:
        """As `refused`, of a stage that says nothing about the node's model."""
        return self.refused(node, reply, of_model=False)

    def refused(self, node: int, reply: Message, *, of_model: bool = True) -> str:
        """Note what a refusal says of the node; returns it in words."""
        code = reply.error.code
        if code in APPS_FAULT:
            self.app_failed.add(node)
        if code == REUSED and self.ledger.base not in (self.lacks(node) or ()):
            self.spent.add(node)  # not of a sum that came with the message
        elif code == CLAIMED:
            self.claimed[node] += 1
        if (
            code == NO_KEY
            or (code == UNCONFIRMED and node not in self.confirmed)
            or (code == CLAIMED and self.claimed[node] > 1)  # it has answered one far ahead
        ):
            self.membership.keyless.add(node)
        elif code == LEFT:
            self.membership.left.add(node)
        elif of_model and code in BEHIND and self.ledger.chain:
            if code in REFUSES and self.ledger.base in (self.lacks(node) or ()):
                self.refusers.add(node)
            self.at[node] = LOST
        return explain(code, reply.error.reason)

    def grants_another(self) -> bool:
        """Whether most nodes had answered this round's attempts before: True once a round."""
        most = 2 * sum(count > 1 for count in self.claimed.values()) > len(self.members)
        before, self.granted = self.granted, self.granted or most
        return most and not before

    # --- what comes back ---

    def receive(
        self, node: int, reply: Message, supports: Mapping[int, Support] | None = None
    ) -> tuple[Sealed, Start]:
        """The verified update in a reply, and what it starts from.

        `supports` are those that nodes told in this attempt, where updates are sparse.

        Raises
        ------
        ProtocolError
            An error reply, or an update that is not this node's for this round.
        """
        content, answer = self.opened(node, reply)
        start = self.start_in(answer)
        slot = self.slot(start)
        arrays = content.get(records.UPDATE)
        if not isinstance(arrays, ArrayRecord):
            raise ProtocolError("the reply holds no encrypted update")
        told = None
        if self.terms.sparse:
            if supports is None or node not in supports:
                raise ProtocolError("an update without a support")
            told = [supports[node]]
        header = records.field(answer, "header", bytes)
        part = records.to_sealed(header, arrays, take=True, supports=told, floats=0)
        lanes = self._map_lanes if self.maps else self._lanes
        if told is not None:
            lanes = told[0].count + self._trailer_lanes
        if bool(part.supports) != self.terms.sparse:
            raise ProtocolError("the update is sparse, or should be")
        if part.mode != self.mode:
            raise ProtocolError("the update is masked in another mode than was announced")
        self.check_part(node, answer, part, slot, lanes, "update")
        self._take_receipt(node, answer, slot)
        if self.terms.masked:
            self._take_shares(node, answer)
        self.heard(node, content)
        return part, start

    def apart(self, node: int, start: Start, chosen: Start) -> str:
        """Note that a node started from elsewhere than most; returns why it is left out."""
        if start.digest == chosen.digest:
            return (
                "its app was told other settings than most: what is for one node alone belongs into "
                "that node's own config"
            )
        self.at[node] = LOST
        return "its model has drifted from the others': it will be caught up"

    @staticmethod
    def start_in(answer: ConfigRecord) -> Start:
        """What a reply says that it starts from; `check_part` sees that it was encrypted for that."""
        told: bytes = records.field(answer, "told", bytes)
        digest: bytes = records.field(answer, "digest", bytes)
        if len(told) != 32:
            raise ProtocolError("what its app was told is no hash")
        return Start(told, digest)

    def _take_receipt(self, node: int, answer: ConfigRecord, slot: Slot) -> None:
        """What a member signed of the result that it starts from; members go by it, not the server."""
        agreed = self.ledger.agreed
        assert agreed is not None
        data: bytes = records.field(answer, "receipt", bytes)
        policy = self.resolved.hash()
        receipt = receipts.opened(data, self.members[node], slot, agreed.number, policy)
        if receipt.history != slot.history:
            raise ProtocolError("its receipt is for another result than its update")
        self.receipts[agreed.rank(node)] = data

    def _take_shares(self, node: int, answer: ConfigRecord) -> None:
        """The shares of an update's seed; ProtocolError unless there is one for each other member."""
        agreed = self.ledger.agreed
        assert agreed is not None
        shares, rank = records.bytes_list(answer, "shares"), agreed.rank(node)
        size = self.circle.box_bytes
        if [len(s) for s in shares] != [size * (i != rank) for i in range(len(self.members))]:
            raise ProtocolError(
                "its update came without one share of its seed for each other member"
            )
        self.shares[node] = shares

    def opened(self, node: int, reply: Message) -> tuple[RecordDict, ConfigRecord]:
        """What a reply holds, and our record in it.

        Raises
        ------
        ProtocolError
            An error reply, one that is not a member's or holds no record of ours.
        """
        if reply.has_error():
            raise ProtocolError(self.refused(node, reply))
        answer = records.find_reply(reply.content)
        if answer is None:
            raise ProtocolError("the reply holds nothing of ours")
        if node not in self.members:
            raise ProtocolError("it is no member of this epoch")
        return reply.content, answer

    def check_part(
        self, node: int, answer: ConfigRecord, part: Sealed, slot: Slot, length: int, stage: str
    ) -> None:
        """Refuse a ciphertext that is not this node's for `slot`; ProtocolError."""
        agreed = self.ledger.agreed
        assert agreed is not None
        if replace(part.slot, history=slot.history) != slot:
            raise ProtocolError("the update belongs to another round, epoch or parameter set")
        if part.slot.history != slot.history:
            self.at[node] = LOST
            raise DriftError("its model has drifted: it has seen another initial model or sum")
        if part.senders != (agreed.rank(node),):
            raise ProtocolError("the update says that it is another member's")
        if part.length != length:
            raise ProtocolError("the update has another length than the model")
        open_detached(
            records.field(answer, "envelope", bytes),
            part.digest(),
            {
                "roster_hash": slot.roster_hash,
                "run_id": slot.run_id,
                "epoch": agreed.number,
                "round": slot.round,
                "attempt": slot.attempt,
                "stage": stage,
                "policy_hash": self.resolved.hash(),
                "layout_hash": slot.layout_hash,
            },
            senders=[self.members[node]],
        )

    def heard(self, node: int, content: RecordDict) -> None:
        """Note what a node's reply, which it gave after following, tells of its state."""
        ledger = self.ledger
        self.at[node] = ledger.base
        self.confirmed.add(node)
        self.refusers.discard(node)
        self.missing.discard(node)
        answer = records.find_reply(content)
        seconds = sound(answer.get("crypto-s") if answer else None)
        self.crypto_s[node] = self.crypto_s.get(node, 0.0) + seconds
        self.grid.meter.told(node, seconds)
        opened = records.find_config(content, "flhe.opened")
        if opened is not None and opened.get("missed") is True:
            log(WARNING, "node %d reports that its update is missing from the sum", node)
        if ledger.agreed is not None and node in self.members and ledger.agreed.rank(node) == 0:
            told = content.metric_records
            self.means |= {
                r: told[name] for r in ledger.sums if (name := f"{records.MEANS}{r}") in told
            }

    # --- a round ---

    def begin(self, round_: int, attempt: int) -> None:
        """Start a round's clocks, once, and note the attempt."""
        if attempt == 0:
            self.began = time.monotonic()
            self.adding_s = 0.0
            self.crypto_s = {}
            self.answered = set()
        if self.ledger.round != round_:
            self.claimed.clear()
            self.granted = False
        self.spent = set()
        self.app_failed = set()
        self.survivors = 0
        self.shares = {}
        self.receipts = {}
        self.missing = set(self.members)
        self.ledger.begin(round_, attempt)

    def keep(self, total: Sealed, release: Sequence[bytes] = (), told: bytes = b"") -> ArrayRecord:
        """Keep a round's sum until every member has it, or read it where the server does.

        `release` holds the answers that the senders' masking-key agreement released.
        `told` is the hash of what the senders' apps were told.
        """
        self.refusers = set()
        total = self.scheme.close(total)
        if self.serves:
            with self.grid.meter.doing(OPEN):
                arrays = self._read(total, release)
        else:
            history = next_history(self.ledger.history, total.digest())
            self.ledger.told[total.slot.round] = told
            signed = [self.receipts[rank] for rank in total.senders]
            self.ledger.receipts[total.slot.round] = receipts.pack(signed)
            arrays = self.ledger.keep(total, history, pack(release) if release else b"")
        self.survivors = len(total.senders)
        missing = 1 - self.survivors / len(self.members)
        self.dropout = missing if self.dropout is None else (self.dropout + missing) / 2
        return arrays

    def _read(self, total: Sealed, release: Sequence[bytes]) -> ArrayRecord:
        """Open the sum and apply it: the next model, for everybody."""
        model, scheme = self.ledger.model, self.scheme
        assert model is not None
        assert isinstance(scheme, Sash)
        began = time.perf_counter()
        seed = combine(self.circle, total.slot, total.senders, release)
        reader = ServerReader(self.resolved, scheme)
        after, totals = reader.open(model, total, seed, threads=THREADS)
        self.adding_s += time.perf_counter() - began
        self.ledger.keep_model(after)
        self.initial = records.from_numpy(after.arrays())
        if means := finite(totals.metrics):
            self.means[total.slot.round] = MetricRecord(dict(means))
        return self.initial

    def drop_sums(self) -> None:
        """Drop sums that every member has."""
        behind = min((max(self.stands(n), 0) for n in self.members), default=0)
        if any(round_ <= behind for round_ in self.ledger.sums):
            self.ledger.drop_sums(behind)

    def report(self, server_round: int, metrics: MetricRecord | None) -> RoundReport:
        """What the round cost and what it reached."""
        spent = self.grid.take()
        return RoundReport(
            round=server_round,
            accuracy=scalar(metrics, "accuracy", "acc"),
            loss=scalar(metrics, "loss"),
            bytes_up=spent.up,
            bytes_down=spent.down,
            crypto_s=max(self.crypto_s.values(), default=0.0) + self.adding_s,
            round_s=time.monotonic() - self.began,
            survivors=self.survivors,
            wall_s=spent.wall_s,
            server_bytes=spent.server_bytes,
            phases=spent.phases,
        )
