"""The gate's verdict on one reply: a function of the request, the reply and the policy alone.

A reply passes if it is an error with a known code, or if this site's identity has signed all of it
and each record is one of flhe's, with fields of their declared types and sizes. The gate writes the
metadata and an error's text itself, so the verdict has neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.proto.message_pb2 import Message, Metadata, ObjectTree

from flhe.errors import AuthenticationError, FlheError
from flhe.gate.objects import MAX_OBJECTS, Read, Tree, read_tree
from flhe.gate.policy import FIELDS, MEANS, STYPES, GatePolicy
from flhe.keys.identity import verify_statement
from flhe.mods import records
from flhe.node.policy import listed_metric
from flhe.wire import codes, outgoing
from flhe.wire.outgoing import Outgoing

CLOCK = 60.0
"""Seconds by which clocks of one machine may differ."""

REASONS = {
    "malformed": "it is not written as Flower writes a message",
    "metadata": "its metadata is not that of a reply to the message",
    "error": "its error has a code that neither Flower nor flhe has",
    "error-text": "its error has a text of its own: the gate sent the code without it",
    "plain": "it has no record of flhe: the app has no HEMod, or answered in clear",
    "record": "it has a record that flhe does not send",
    "field": "a field of flhe's record is unknown, or has another type or size",
    "array": "it has an array that is not sealed",
    "metric": "a metric is not listed at the gate, or not rounded to three digits",
    "unsigned": "flhe has not signed it",
    "signature": "the signature is not this site's, or is of another reply",
    "size": "it is longer than the gate lets pass",
    "unasked": "the server has not asked for it, has its answer, or does not take it",
}
"""Why a reply is stopped: word in the log, and its meaning."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of `tree` leaves, or else the error `code`; `reason` says why not all does."""

    tree: Tree | None
    code: int
    reason: str = ""
    detail: str = ""


class _StoppedError(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def stopped(reason: str, detail: str = "") -> Verdict:
    """Return the verdict on a reply of which nothing leaves."""
    return Verdict(None, codes.GATE.code, reason, detail)


def judge(
    policy: GatePolicy, asked: Metadata, pushed: Message, tree: ObjectTree, read: Read, now: float
) -> Verdict:
    """Return the verdict on a reply; never raises.

    `asked` is the metadata of the server's message, `pushed` the announced reply, `tree` its
    objects' ids, `read` gives the objects, `now` is the time.
    """
    try:
        found = read_tree(tree, _within(policy.max_bytes, read))
        _check_metadata(asked, pushed, found.said, tree.object_id, now)
        if found.said.HasField("error"):
            return _error(found.said)
        _check_records(policy, found.records)
        _check_signature(policy, asked, found.records)
    except _StoppedError as error:
        return stopped(error.reason, error.detail)
    except FlheError as error:
        return stopped("malformed", str(error))
    except Exception as error:  # of a parser: its text may quote the reply
        return stopped("malformed", type(error).__name__)
    return Verdict(found, 0)


def _within(most: int, read: Read) -> Read:
    """Return `read` for what a reply may hold: an object counts at each of its places.

    A small reply that names one chunk again and again would occupy the gate for hours.
    """
    objects, left = MAX_OBJECTS, most

    def counted(named: str) -> bytes:
        nonlocal objects, left
        content = read(named)
        objects, left = objects - 1, left - len(content)
        if objects < 0 or left < 0:
            raise _StoppedError("size")
        return content

    return counted


def _error(said: Message) -> Verdict:
    code = said.error.code
    text = codes.reason_of(code)
    if text is None:
        raise _StoppedError("error")
    changed = said.error.reason not in ("", text)
    return Verdict(None, code, "error-text" if changed else "")


def reply_metadata(asked: Metadata, created_at: float) -> Metadata:
    """Return the metadata of a reply, of which an app chooses nothing."""
    ttl = asked.created_at + asked.ttl - created_at
    made = Metadata(
        run_id=asked.run_id,
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        ttl=ttl,
        message_type=asked.message_type,
        created_at=created_at,
    )
    if asked.HasField("dst_task_id"):
        made.src_task_id = asked.dst_task_id
    if asked.HasField("src_task_id"):
        made.dst_task_id = asked.src_task_id
    return made


def _check_metadata(asked: Metadata, pushed: Message, said: Message, root: str, now: float) -> None:
    created, ttl = said.metadata.created_at, said.metadata.ttl
    expected = reply_metadata(asked, created)
    # Flower limits a reply's life by the request's; a shorter one is the app's to choose, and does
    # not leave.
    if not asked.created_at - CLOCK <= created <= now + CLOCK or not 0 < ttl <= asked.ttl + CLOCK:
        raise _StoppedError("metadata")
    expected.ttl = ttl
    if said.metadata != expected:
        raise _StoppedError("metadata")
    expected.message_id = root
    announced = Message(metadata=expected)
    if said.HasField("error"):
        announced.error.CopyFrom(said.error)
    elif pushed.HasField("content"):
        announced.content.SetInParent()
    if pushed != announced:
        raise _StoppedError("metadata")


def _check_records(policy: GatePolicy, found: tuple[Outgoing, ...]) -> None:
    names = [record.name for record in found]
    if records.REPLY not in names:
        raise _StoppedError("plain")
    if len(set(names)) != len(names):
        raise _StoppedError("record")
    for record in found:
        _check_record(policy, record)


def _check_record(policy: GatePolicy, record: Outgoing) -> None:
    name = record.name
    if record.kind == "config" and name in FIELDS:
        for field, value in record.rows:
            check = FIELDS[name].get(field)
            if check is None or not check(value):
                raise _StoppedError("field", field if check else "")
    elif record.kind == "array" and name in STYPES:
        form, own = "uint8", STYPES[name]
        if not 0 < len(record.rows) <= MAX_OBJECTS:
            raise _StoppedError("array")
        for at, (part, held) in enumerate(record.rows):
            fits = (part, held.dtype, held.shape) == (f"{at:04d}", form, (held.size,))
            if not fits or held.stype != own or held.size > records.PIECE:
                raise _StoppedError("array")
    elif record.kind == "metric" and MEANS.fullmatch(name):
        for metric, value in record.rows:
            rounded = type(value) is float and value == float(f"{value:.3g}")
            if not rounded or not listed_metric(metric, policy.metrics):
                raise _StoppedError("metric")
    else:
        raise _StoppedError("record")


def _check_signature(policy: GatePolicy, asked: Metadata, found: tuple[Outgoing, ...]) -> None:
    own = next(dict(record.rows) for record in found if record.name == records.REPLY)
    signature = own.get(outgoing.FIELD)
    if signature is None:
        raise _StoppedError("unsigned")
    body = outgoing.statement(asked.run_id, asked.message_id, found)
    try:
        verify_statement(policy.site, signature, outgoing.KIND, body)
    except AuthenticationError:
        raise _StoppedError("signature") from None
