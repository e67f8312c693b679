"""A trial of the gate's code: it gets updates in clear, and a sink for a SuperLink must not."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from flhe.errors import logger
from flhe.gate.delivery import Delivery
from flhe.gate.ledger import Ledger
from flhe.gate.policy import GatePolicy
from flhe.gate.proxy import Gate
from flhe.gate.requests import Caller
from flhe.gate.spool import Spool
from flhe.gate.upstream import Answer, Upstream
from flhe.node.store import Store
from flhe.wire import codes

_NODE = Node(node_id=1)


class _Known(Caller):
    """The probe itself: its requests bear no signature."""

    def check(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {}


class _Sink(Upstream):
    """Takes replies as a SuperLink does, and keeps all that is sent to it."""

    def __init__(self) -> None:
        self.sent, self.codes = b"", list[int]()

    def post(self, name: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        self.sent += body
        said: Any = PushObjectResponse(stored=True)
        if name == "push-messages":
            request = PushMessagesRequest.FromString(body)
            self.codes += [message.error.code for message in request.messages_list]
            wanted = [tree.object_id for tree in request.message_object_trees]
            said = PushMessagesResponse(objects_to_push=wanted)
        return Answer(200, said.SerializeToString())

    def close(self) -> None:
        """Close nothing."""


def leaks(policy: GatePolicy) -> list[str]:
    """Return the kinds of replies in clear that the gate's code does not stop under a policy."""
    planted = secrets.token_bytes(32)
    array = Array("uint8", (len(planted),), "numpy.ndarray", planted)
    replies: dict[str, RecordDict | Error] = {
        "an update in clear": RecordDict({"arrays": ArrayRecord({"w": array})}),
        "an error's text": Error(2, planted.hex()),
    }
    forms = planted, planted.hex().encode()
    return [what for what, reply in replies.items() if not _stops(policy, reply, forms)]


def _stops(policy: GatePolicy, answer: RecordDict | Error, forms: tuple[bytes, ...]) -> bool:
    """Return whether nothing of a reply but a code arrives at the sink."""
    asked = _asked()
    reply = Message(answer, reply_to=asked)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    sink = _Sink()
    with tempfile.TemporaryDirectory() as home, _silent():
        store = Store(Path(home))
        ledger = Ledger(store)
        ledger.note(
            "activate-node", ActivateNodeResponse(node_id=_NODE.node_id).SerializeToString()
        )
        down = PullMessagesResponse(
            messages_list=[_head(asked)], message_object_trees=[get_object_tree(asked)]
        )
        ledger.note("pull-messages", down.SerializeToString())
        gate = Gate(Delivery(policy, ledger, sink, store), _Known(b""), Spool(store.root / "spool"))
        for name, request in _requests(reply):
            gate.answer(name, {}, request.SerializeToString(deterministic=True))
        gate.close()
    expected = codes.GATE.code if isinstance(answer, RecordDict) else answer.code
    return sink.codes == [expected] and not any(form in sink.sent for form in forms)


def _asked() -> Message:
    """Return a message of a server."""
    said = Metadata(
        dst_node_id=_NODE.node_id, created_at=time.time(), ttl=3600, message_type="train"
    )
    asked = message_from_proto(MessageProto(metadata=said, content=RecordDictProto()))
    asked.metadata.__dict__["_message_id"] = asked.object_id
    return asked


def _head(message: Message) -> MessageProto:
    return message_to_proto(remove_content_from_message(message))


def _requests(reply: Message) -> Iterator[tuple[str, Any]]:
    """Yield what a SuperNode sends."""
    tree = get_object_tree(reply)
    yield (
        "push-messages",
        PushMessagesRequest(node=_NODE, messages_list=[_head(reply)], message_object_trees=[tree]),
    )
    for named, part in get_all_nested_objects(reply).items():
        pushed = PushObjectRequest(node=_NODE, session_id=tree.object_id, object_id=named)
        pushed.object_content = part.deflate()
        yield "push-object", pushed


@contextmanager
def _silent() -> Iterator[None]:
    """Keep refusals, which are what is expected, out of the caller's log."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
