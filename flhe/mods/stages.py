"""What a node answers at each stage.

Each stage is a function (node, stage record, message, app) -> content of the reply. All that is not
Flower's is done in `flhe.keys` and `flhe.rounds`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from flhe import records
from flhe.errors import ProtocolError, ReplyError
from flhe.keys import epoch, seal
from flhe.keys.messages import EVERYONE, Header, sign_detached
from flhe.mods.node import Node
from flhe.rounds.model import Model
from flhe.rounds.session import Session, finite
from flhe.rounds.terms import Terms
from flhe.sealed import Sealed

logger = logging.getLogger("flhe")

COUNTS = ("num-examples", "num_examples")
"""Names of an example count. The server names the weight, so it could name any metric that."""

_said: set[tuple[object, ...]] = set()


def _say_once(*text: object) -> None:
    """Warn in this node's own log, once a process."""
    if text not in _said:
        _said.add(text)
        logger.warning(*text)


class AppError(Exception):
    """The app's own code failed; its exception is the cause."""


@dataclass(frozen=True, slots=True)
class App:
    """What is inside the mod: the app and the mods that come after."""

    context: Context
    call_next: Callable[[Message, Context], Message]

    def run(self, message: Message) -> RecordDict:
        """Call it; AppError when it fails or answers with an error."""
        try:
            reply = self.call_next(message, self.context)
        except Exception as error:
            raise AppError from error
        if reply.has_error():
            raise AppError("the app answered with an error")
        return reply.content


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds spent in cryptography and encoding."""

    seconds: float = 0.0
    _since: float = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


def advertise(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """First relay: a fresh ephemeral key, signed."""
    node.policy.check_scheme(Terms.from_bytes(records.field(record, "terms", bytes)).scheme)
    number = records.field(record, "number", int)
    state, envelope = epoch.advertise(node.identity, node.run_id, number, node.policy.roster)
    node.save_agreement(state)
    return _reply(envelope=envelope)


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Second relay: a secret contribution to each peer."""
    state = node.load_agreement(epoch.Advertised)
    shared, outbound = epoch.share(state, records.bytes_list(record, "messages"))
    node.save_agreement(shared)
    return _reply(envelopes=outbound)


def confirm(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Third relay: the group key is known; say so without saying it."""
    state = node.load_agreement(epoch.Shared)
    confirmed, envelope = epoch.confirm(state, records.bytes_list(record, "messages"))
    node.save_agreement(confirmed)
    return _reply(envelope=envelope)


def train(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """One round: bring the model up to date, let the app train, encrypt what changed."""
    watch = Stopwatch()
    session, model, opened = _catch_up(node, record, message, watch)
    round_ = records.field(record, "round", int)
    slot = session.slot(model, records.field(record, "attempt", int))
    if model.round != round_ - 1:
        raise ProtocolError(f"asked for round {round_}, this node's model is at {model.round}")
    if cached := node.load_output(slot):
        return _update(*cached, watch, opened)
    sealer = session.sealer()
    masks = threading.Thread(
        target=session.prepare, args=(sealer, slot), name="flhe-masks", daemon=True
    )
    masks.start()  # while the app trains
    try:
        reply = app.run(_app_message(session.terms, message, model))
    finally:
        with watch:
            masks.join()
    trained, metrics = _trained(reply)
    examples = metrics.pop(session.terms.weight_key, None)
    if type(examples) is not int and not (type(examples) is float and examples.is_integer()):
        raise ReplyError(f"the app must report a whole number as {session.terms.weight_key!r}")
    allowed = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and node.policy.allows_metric(name)
    }
    for name in set(metrics) - set(allowed):
        _say_once(
            "metric %r stays on this node: allow it with flhe-metrics (or $FLHE_METRICS)", name
        )
    for name in set(allowed) - set(session.terms.metrics):
        _say_once("metric %r is not averaged: name it in the strategy's train_metrics", name)
    if session.terms.weighted and 8 * int(examples) < session.terms.max_examples:
        _say_once(
            "max_examples=%d is far above this node's examples: updates are quantized coarsely",
            session.terms.max_examples,
        )
    with watch:
        encoded = session.encode(model, records.to_numpy(trained), int(examples), allowed)
        sealed = session.seal(sealer, encoded, slot, lambda r, a: node.claim(session, r, a))
        envelope = _sign(node, session, sealed)
        node.save_output(sealed, envelope)
    return _update(sealed, envelope, watch, opened)


def evaluate(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Open the round's sum, let the app evaluate, let allowed metrics leave."""
    watch = Stopwatch()
    session, model, opened = _catch_up(node, record, message, watch)
    reply = app.run(_app_message(session.terms, message, model))
    content = _reply(**{"crypto-s": watch.seconds})
    content.update(opened)
    for name, metrics in reply.metric_records.items():
        kept = {k: v for k, v in metrics.items() if _may_leave(node, session.terms, k, v)}
        content[name] = MetricRecord(kept)
        for key in set(metrics) - set(kept) - {session.terms.weight_key}:
            _say_once(
                "metric %r stays on this node: allow it with flhe-metrics (or $FLHE_METRICS)", key
            )
    return content


def _may_leave(node: Node, terms: Terms, key: str, value: object) -> bool:
    """Single numbers only: a list may hold one value per example."""
    if not isinstance(value, (int, float)):
        return False
    if key == terms.weight_key and key in COUNTS and node.policy.counts:
        return True
    return node.policy.allows_metric(key)


def checkpoint(node: Node, record: ConfigRecord, message: Message, _app: App) -> RecordDict:
    """Seal the model for the group, so that the server can keep what it cannot read."""
    watch = Stopwatch()
    session, model, opened = _catch_up(node, record, message, watch)
    agreed = session.epoch
    header = {
        "run_id": agreed.run_id,
        "roster_hash": agreed.roster.hash,
        "stage": "checkpoint",
        "round": model.round,
        "attempt": 0,
        "rank": agreed.rank,
        "epoch": agreed.id,
    }
    with watch:
        box = seal.seal(agreed.group_key, header, list(model.chunks()))
    content = _reply(**{"crypto-s": watch.seconds, "round": model.round})
    content.update(opened)
    content[records.UPDATE] = records.from_checkpoint(box)
    return content


Stage = Callable[[Node, ConfigRecord, Message, App], RecordDict]

STAGES: dict[tuple[str, str], Stage] = {
    ("train", "advertise"): advertise,
    ("train", "share"): share,
    ("train", "confirm"): confirm,
    ("train", "round"): train,
    ("train", "checkpoint"): checkpoint,
    ("evaluate", "evaluate"): evaluate,
}
"""(message type, stage) -> its answer."""


def _reply(**fields: object) -> RecordDict:
    return RecordDict({records.REPLY: ConfigRecord({"v": 1, **fields})})  # type: ignore[dict-item]


def _session(node: Node, record: ConfigRecord, message: Message) -> tuple[Session, Model, bool]:
    """Session, model and whether the model is new; finishes an agreement that is confirmed."""
    announced = records.field(record, "terms", bytes)
    confirms = records.bytes_list(record, "confirms")
    if confirms and node.agreement_confirmed():
        agreed = epoch.finish(node.load_agreement(epoch.Confirmed), confirms)
        terms = Terms.from_bytes(announced)
        node.policy.check_scheme(terms.scheme)
        node.start_session(agreed, terms)
        node.drop_agreement()
    agreed, terms = node.load_session()
    node.check_terms(terms, announced)
    node.policy.check_scheme(terms.scheme)
    model = node.load_model()
    fresh = model is None
    if model is None:
        initial = message.content.get(terms.arrays_key)
        if not isinstance(initial, ArrayRecord):
            raise ProtocolError("this node has no model and was sent none")
        model = Model.initial(records.to_numpy(initial))
    return Session(agreed, terms, model.layout), model, fresh


def _catch_up(
    node: Node, record: ConfigRecord, message: Message, watch: Stopwatch
) -> tuple[Session, Model, RecordDict]:
    """Bring the model up to date with the sums that the message carries.

    Returns the session, the model, and what may be said about the last sum opened: its round, whether
    this node's update is missing from it, and, by the member of rank 0 alone, the group's weighted mean
    of those training metrics that may leave.
    """
    session, model, changed = _session(node, record, message)
    opened = RecordDict()
    missed = False
    for i, header in enumerate(records.bytes_list(record, "sums")):
        arrays = message.content.get(f"{records.SUM}.{i}")
        if not isinstance(arrays, ArrayRecord):
            raise ProtocolError(f"sum {i} of the message is missing")
        total = records.to_sealed(header, arrays)
        if total.slot.round <= model.round:
            continue  # opened before; the server had not heard of it
        absent = session.epoch.rank not in total.senders
        lost = absent and node.load_output(total.slot) is not None
        with watch:
            model, totals = session.open(
                model, total, lambda r, digest: node.record_opening(session, r, digest)
            )
        changed = True
        missed |= lost
        if lost:
            logger.warning(
                "round %d: this node's update is not in the sum, it trains again", model.round
            )
        opened["flhe.opened"] = ConfigRecord({"round": model.round, "missed": missed})
        if session.epoch.rank == 0:  # one teller, so a round is told of in one view only
            means = finite(totals.metrics)
            told = {name: v for name, v in means.items() if node.policy.allows_metric(name)}
            opened[f"{records.MEANS}{model.round}"] = MetricRecord(told)  # type: ignore[arg-type]
    if changed:
        node.save_model(model)
    return session, model, opened


def _app_message(terms: Terms, message: Message, model: Model) -> Message:
    """The message as a plain FedAvg app knows it: the model, and no other arrays or records of ours."""
    content = RecordDict()
    content[terms.arrays_key] = records.from_numpy(model.arrays())
    for name, value in message.content.items():
        ours = name.startswith(records.PREFIX) or name == terms.arrays_key
        if not ours and not isinstance(value, ArrayRecord):
            content[name] = value
    message.content = content
    return message


def _trained(reply: RecordDict) -> tuple[ArrayRecord, dict[str, object]]:
    arrays, metrics = reply.array_records, reply.metric_records
    if len(arrays) != 1 or len(metrics) != 1:
        raise ReplyError("the app must reply with one ArrayRecord and one MetricRecord")
    return next(iter(arrays.values())), dict(next(iter(metrics.values())))


def _sign(node: Node, session: Session, sealed: Sealed) -> bytes:
    header = Header(
        roster_hash=session.epoch.roster.hash,
        run_id=node.run_id,
        epoch=session.epoch.number,
        round=sealed.slot.round,
        attempt=sealed.slot.attempt,
        stage="update",
        sender=node.identity.public,
        receiver=EVERYONE,
        policy_hash=session.terms.hash(),
        layout_hash=session.layout_hash,
    )
    return sign_detached(node.identity, header, sealed.digest())


def _update(sealed: Sealed, envelope: bytes, watch: Stopwatch, opened: RecordDict) -> RecordDict:
    content = _reply(header=sealed.header(), envelope=envelope, **{"crypto-s": watch.seconds})
    content.update(opened)
    content[records.UPDATE] = records.from_sealed(sealed)
    return content
