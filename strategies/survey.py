"""Survey: a federation that answers queries. Without a model no node has to catch up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flhe.errors import ProtocolError, QuorumError, RangeError
from flhe.keys.agreement.answers import combine, pack
from flhe.mods import records
from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from flhe.strategies.federation import BEHIND, LEFT, NO_KEY, SUM_RANGE, Federation
from flhe.strategies.overhead import OPEN
from flhe.strategies.trouble import give_up, log, most_common
from flhe.sums.secure_sum import SecureSum as Sum
from flhe.training import query
from flhe.training.kind import Kind
from flhe.training.query import AnswerForm, Query
from flhe.training.session import THREADS
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, Hash
from flhe.wire.record import Form, Record

MAX_RESULT = 1 << 30
NEVER = (*BEHIND, NO_KEY, LEFT, SUM_RANGE)
"""Codes of a member that will never open this total."""


@dataclass(frozen=True, slots=True)
class Asked(Record):
    """A query, and the form of the answers that are added up."""

    FORM = Form("asked query", row=True)

    query: Query
    form: AnswerForm


@dataclass(frozen=True, slots=True)
class Outcome(Record):
    """Result of a query: the sums of all its numbers, or a box that only members open.

    `senders` is a hash of the contributors' keys; `data` are int64, little-endian, or a sealed box.
    """

    FORM = Form("outcome of a query", MAX_RESULT, version=1, row=True)

    asked: Asked
    contributors: U32
    senders: Hash
    sealed: bool
    data: bytes = field(repr=False)

    def arrays(self) -> ArrayRecord:
        """Return the result as arrays for an analyst."""
        if self.sealed:
            return records.SealedArrays(dict(records.from_pieces([self.data])))
        sums: NDArray[Any] = np.frombuffer(self.data, "<i8").astype(np.int64)
        return records.from_numpy(self.asked.form.arrays(sums))


@dataclass
class Survey(Federation):
    """The server's state of such a federation."""

    query: Query | None = None
    """The current query."""
    forms: dict[bytes, AnswerForm] = field(default_factory=dict)
    """Forms of answers to it, by hash."""
    unable: set[int] = field(default_factory=set)
    """Members that refused the last total for good: they lack its keys, or cannot hold its sums."""

    # --- instead of a model ---

    @property
    def members_hold(self) -> bool:
        """False: no member has a model."""
        return False

    def missing_rounds(self, node: int) -> tuple[int, ...]:
        """Return no rounds: there is no model to update."""
        return ()

    def mark_drifted(self, node: int) -> str:
        """Return the reason to leave out a node whose answer differs in form from most."""
        return (
            "its answer has another form than the others' (names, shapes, bound or resolution): all "
            "sites must run the same version of the app"
        )

    def sum_of(self, kind: Kind, answer: ConfigRecord) -> tuple[Sum, bytes]:
        """Return the sum that a reply's ciphertext is for, and the hash of its form."""
        assert self.query is not None
        form = AnswerForm.from_bytes(records.field(answer, "form", bytes))
        self.forms[form.hash()] = form
        at = self.ledger.round, self.ledger.attempt
        return query.sum_of(self.parameters.sums, self.query, form, *at), form.hash()

    # --- a query ---

    def questions(self, nodes: Sequence[int]) -> list[Message]:
        """Return the current query for each of `nodes`."""
        assert self.query is not None
        voids = [void.to_bytes() for void in self.ledger.voids]
        fields = {"query": self.query.to_bytes(), "voids": voids}
        made = {
            confirmed: RecordDict({records.STAGE: self.stage("query", confirmed, **fields)})
            for confirmed in (False, True)
        }
        return [Message(made[node in self.confirmed], node, "train") for node in nodes]

    def note(self, total: Sealed) -> None:
        """Record a sum's query and form before any node may open `total`."""
        assert self.query is not None
        sums, slot = self.parameters.sums, total.slot
        for form in self.forms.values():
            of = query.sum_of(sums, self.query, form, slot.round, slot.attempt)
            if of.slot == slot:
                self.ledger.asking = Asked(self.query, form).to_bytes()
        self.ledger.save()

    def keep(self, total: Sealed, release: Sequence[bytes] = ()) -> ArrayRecord:
        """Keep a sum until members have opened it, or its content if the server reads it.

        Raises ProtocolError: its senders cannot have produced it; SumRangeError: a sum beyond 63
        bits, and the query is over.
        """
        number, asked = total.slot.round, Asked.from_bytes(self.ledger.asking)
        self.ledger.survivors = len(total.senders)
        if not self.server_reads:
            self.ledger.keep_evaluation(number, to_bytes(total), pack(release))
            self.ledger.summed()
            return ArrayRecord()
        sums = self.parameters.sums
        with self.grid.meter.doing(OPEN):
            released = combine(self.parameters.circle, total.slot, total.senders, release)
            lanes = sums.whole.server_opener(released, threads=THREADS).decrypt(total)
            try:
                numbers = query.read(sums.terms, total, lanes)
            except RangeError:
                self.ledger.end_set()  # or every later query would return to it
                raise
        outcome = self._outcome(asked, total, False, numbers.astype("<i8").tobytes())
        self.ledger.keep_result(number, outcome.to_bytes())
        return outcome.arrays()

    def end_epoch(self, timeout: float) -> None:
        """Have members open the kept sum, unless too many of them never can.

        Raises QuorumError: as `open_by_members`, if they may open it later.
        """
        if not self.ledger.evaluation:
            return
        try:
            self.open_by_members(timeout)
        except QuorumError as error:
            if self.ledger.evaluation:
                raise
            log(WARNING, "%s; it is given up", error)

    def refused(self, node: int, reply: Message, *, of_model: bool = True) -> str:
        """As for all federations; also record members that cannot open a sum."""
        if reply.error.code in NEVER:
            self.unable.add(node)
        return super().refused(node, reply, of_model=of_model)

    def open_by_members(self, timeout: float) -> None:
        """Have members open the kept sum, each for itself, and keep one member's sealed result.

        Members that open one sum seal the same bytes (`flhe.mods.queries`), so each of them stands
        behind the kept box. Raises QuorumError: no more members than may collude with the server
        have sealed the same; if so few are able to, it is dropped.
        """
        ledger, asked = self.ledger, Asked.from_bytes(self.ledger.asking)
        number = ledger.evaluated
        self.unable.clear()
        total = from_bytes(ledger.evaluation)
        nodes = self.present()
        confirmed = self.confirmed.issuperset(nodes)
        fields = {
            "round": number,
            "query": asked.query.to_bytes(),
            "form": asked.form.to_bytes(),
            "header": total.header(),
            "release": ledger.opens_evaluation,
        }
        content = RecordDict({records.STAGE: self.stage("total", confirmed, **fields)})
        content[records.SUM] = records.from_sealed(total)
        boxes: dict[bytes, bytes] = {}
        trouble: dict[int, str] = {}

        def read(node: int, answer: ConfigRecord, reply: RecordDict) -> bytes:
            box = reply.get(records.BOX)
            if not isinstance(box, ArrayRecord):
                raise ProtocolError("the reply holds no sealed total")
            sealed = b"".join(records.to_pieces(box))
            name = sha256(sealed).digest()
            boxes.setdefault(name, sealed)  # one for each result: they may be large
            return name

        told = self.gather("total", dict.fromkeys(nodes, content), timeout, trouble, read)
        need = self.parameters.epoch.colluders + 1
        common = most_common(told.values()) if told else b""
        agree = [node for node in told if told[node] == common]
        if len(agree) < need:
            if len(self.members.keys() - self.unable) < need:
                ledger.keep_evaluation(number)  # or every later query would return to it
                ledger.done()
            give_up(
                f"query {number}: {len(agree)} members say the same of its sum, {need} needed",
                trouble,
            )
        ledger.keep_result(number, self._outcome(asked, total, True, boxes[common]).to_bytes())

    def _outcome(self, asked: Asked, total: Sealed, sealed: bool, data: bytes) -> Outcome:
        keys = [self.parameters.epoch.publics[rank] for rank in total.senders]
        return Outcome(asked, len(keys), hash_of("senders", keys), sealed, data)
