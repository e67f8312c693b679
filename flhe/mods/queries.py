"""Stages of queries: a node answers one, and if members read, opens the sum of the answers.

    query    a question                        -> this site's answer, encrypted
    total    the sum of the answers to one     -> its content, sealed for the group

The node checks a query's name and parameters, its number, and the administrator's list. If it is
asked again in the same attempt, the node resends the same bytes without calling the app.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import ClaimedError, FlheError, ProtocolError
from flhe.keys.agreement.answers import unpack
from flhe.keys.agreement.voids import Void
from flhe.keys.seal import ModelKey, seal
from flhe.mods import agreement, records
from flhe.mods.app import App
from flhe.mods.contribution import contribute
from flhe.node.node import Node
from flhe.schemes.base import Sealer
from flhe.training import query
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.query import NOTHING, QUERY, AnswerForm, Query
from flhe.training.session import Session
from flhe.wire.derive import hash_of


def answer(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """Answer a query once; of the app's answer only ciphertext leaves this node."""
    session, asked, _ = _session(node, record, app)
    number, attempt = (records.field(record, name, int) for name in ("round", "attempt"))
    together = session.terms.scheme.opened_together
    for encoded in records.bytes_list(record, "voids"):  # it may sign another set than these
        node.forget_set(asked.hash(), Void.from_bytes(encoded))
    place = session.sums.slot(number, attempt, bytes(32), asked.hash(), QUERY.purpose)
    claimed = node.claimed(place)
    numbers: NDArray[np.int64] | None = None
    if claimed is None:
        node.check_asked(place, together=together)
        form, numbers = query.encode(*app.answer(asked))
    else:
        form = AnswerForm.from_bytes(claimed)

    def make(_: Sealer) -> tuple[Plain, None]:
        if numbers is None:
            raise ClaimedError("this query was claimed here, and its answer is not kept: ask again")
        return query.part_of(session.terms, numbers), None

    of = query.sum_of(session.sums, asked, form, number, attempt)
    mode, start = session.terms.scheme.mode_ahead, form.to_bytes()
    content = contribute(node, session, of, mode, make, start)
    told = content.config_records[records.REPLY]
    told["step"], told["form"], told["digest"] = QUERY.purpose, start, form.hash()
    del told["history"]  # it belongs to no model
    return content


def total(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Open the one sum of a query, pass it to the app, and seal it for those who may open results."""
    session, asked, contract = _session(node, record, app)
    agreed, terms = session.epoch, session.terms
    arrays = message.content.get(records.SUM)
    if not isinstance(arrays, ArrayRecord):
        raise ProtocolError("the sum to be opened is missing")
    form = AnswerForm.from_bytes(records.field(record, "form", bytes))
    found = records.to_sealed(records.field(record, "header", bytes), arrays, take=True, floats=0)
    if found.slot.round != records.field(record, "round", int):  # which is due
        raise ProtocolError("the sum to be opened is of another query than the message names")
    node.policy.check_survivors(len(found.senders), contract)
    of = query.sum_of(session.sums, asked, form, found.slot.round, found.slot.attempt)
    released = unpack(records.optional(record, "release", b""))
    noted = node.record_opening if terms.scheme.opened_together else node.record_total
    lanes = session.opened(of, found, noted, released)
    opened = form.arrays(query.read(terms, found, lanes))
    app.context.state[f"total.{asked.name}"] = records.from_numpy(opened)
    # The history names the sum: equal digests of two sums would tell the server that a site between
    # them answered zero.
    history = hash_of("total", asked.hash(), found.digest())
    model = replace(Model.initial(opened), round=found.slot.round, history=history)
    digest = session.digest(model)
    content = records.reply(step="total", digest=digest)
    # The same bytes at all members, so that no single one makes the kept box. Safe as salt and in
    # the head: the digest is a PRF of all that is sealed, and public, so one key seals one content.
    box = seal(ModelKey.of(agreed), model.round, 0, model.chunks(), lambda _: digest)
    content[records.BOX] = records.from_pieces(box)
    return content


def line_of(encoded: object) -> str | None:
    """Return a stage's query as a line for the audit log; None without a readable query."""
    try:
        return Query.from_bytes(encoded).line() if isinstance(encoded, bytes) else None
    except FlheError:
        return None


def _session(node: Node, record: ConfigRecord, app: App) -> tuple[Session, Query, Contract]:
    """Return the node's session in a federation of queries, the requested query, and the contract.

    Raises PolicyError: this site does not list the query; ProtocolError: another federation.
    """
    agreed, contract = agreement.current(node, record, app)
    if not contract.asks:
        raise ProtocolError("this federation trains a model: it answers no queries")
    asked = Query.from_bytes(records.field(record, "query", bytes))
    node.policy.check_query(asked.name)
    contract.check_due(
        0, records.field(record, "round", int), node.journal(agreed.id).last_reached()
    )
    return Session(agreed, contract.terms, NOTHING), asked, contract
