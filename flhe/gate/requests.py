"""Requests of a SuperNode: which pass the gate, and what each of their fields may be.

Their bytes must be exactly what Flower's own client writes, and every value one that the SuperLink
has named before. So the gate's way up is as wide as replies, which `flhe.gate.judge` judges.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, TIMESTAMP_HEADER
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from flhe.errors import AuthenticationError, ProtocolError
from flhe.gate.ledger import Ledger
from flhe.gate.objects import MAX_OBJECT

PREFIX = "/v1/fleet/"
SMALL = 64 << 10
"""Most bytes of a request without objects."""

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00"
_BASE64 = r"[A-Za-z0-9+/]{1,700}={0,2}"
_VERSION = r"\d{1,3}(\.\d{1,3}){1,2}((a|b|rc)\d{1,3}|\.dev\d{1,8})?"
HEADERS = {
    FLEET_HTTP_PUBLIC_KEY_HEADER: re.compile(_BASE64),
    FLEET_HTTP_SIGNATURE_HEADER: re.compile(_BASE64),
    TIMESTAMP_HEADER: re.compile(_TIME, re.ASCII),
    # Words of any kind would carry data in every request.
    FLWR_PACKAGE_NAME_METADATA_KEY: re.compile("flwr|flwr-nightly"),
    FLWR_PACKAGE_VERSION_METADATA_KEY: re.compile(_VERSION, re.ASCII),
    FLWR_COMPONENT_NAME_METADATA_KEY: re.compile("SuperNode"),
}
"""Headers that pass, and their form."""


class StrangeNodeError(ProtocolError):
    """A request of a node that the SuperLink has not activated through this gate."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The SuperNode of this site: its public key in PEM, as Flower writes it."""

    key: bytes

    def check(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that pass.

        Raises ProtocolError: a header is missing or malformed; AuthenticationError: another caller,
        or a wrong signature.
        """
        kept = {}
        for name, form in HEADERS.items():
            value = headers.get(name, "")
            if not form.fullmatch(value):
                raise ProtocolError(f"header {name} is missing, or not as a SuperNode writes it")
            kept[name] = value
        try:
            public = b64decode(kept[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(kept[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        except binascii.Error:
            raise ProtocolError("a SuperNode's key or signature cannot be read") from None
        if public != self.key:
            raise AuthenticationError("the request is signed by another key than the SuperNode's")
        key = bytes_to_public_key(self.key)
        if not verify_signature(key, kept[TIMESTAMP_HEADER].encode(), signature):
            raise AuthenticationError("the request's signature does not verify")
        return kept


Check = Callable[[Any, Ledger, bytes], bool]
"""(request, what came down, the caller's key) -> whether its fields are what they may be."""


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of request: its type, its most bytes, and the check of its fields.

    Of one that is not `forwarded`, the gate keeps values, and bytes may differ from Flower's.
    """

    kind: type[Any]
    most: int
    check: Check
    forwarded: bool = True


def _run(request: Any, ledger: Ledger) -> bool:
    return ledger.knows("run", request.run_id)


def _beat(request: Any) -> bool:
    return bool(request.heartbeat_interval == HEARTBEAT_DEFAULT_INTERVAL)


ROUTES: dict[str, Route] = {
    "register-node": Route(RegisterNodeFleetRequest, SMALL, lambda r, _, key: r.public_key == key),
    "activate-node": Route(
        ActivateNodeRequest, SMALL, lambda r, _, key: r.public_key == key and _beat(r)
    ),
    "deactivate-node": Route(DeactivateNodeRequest, SMALL, lambda *_: True),
    "unregister-node": Route(UnregisterNodeFleetRequest, SMALL, lambda *_: True),
    "send-node-heartbeat": Route(SendNodeHeartbeatRequest, SMALL, lambda r, *_: _beat(r)),
    "pull-messages": Route(PullMessagesRequest, SMALL, lambda r, *_: not r.message_ids),
    "get-run": Route(GetRunRequest, SMALL, lambda r, ledger, _: _run(r, ledger)),
    "get-fab": Route(
        GetFabRequest,
        SMALL,
        lambda r, ledger, _: _run(r, ledger) and ledger.knows("fab", r.hash_str),
    ),
    "pull-object": Route(
        PullObjectRequest, SMALL, lambda r, ledger, _: ledger.has_object(r.run_id, r.object_id)
    ),
    "confirm-message-received": Route(
        ConfirmMessageReceivedRequest,
        SMALL,
        lambda r, ledger, _: (
            (asked := ledger.asked(r.message_object_id)) is not None and asked.run_id == r.run_id
        ),
    ),
    "push-messages": Route(PushMessagesRequest, MAX_OBJECT, lambda r, *_: _one(r)),
    "push-object": Route(PushObjectRequest, MAX_OBJECT + SMALL, lambda *_: True, forwarded=False),
}
"""By the last part of the path; no other request passes."""


def _one(request: PushMessagesRequest) -> bool:
    return len(request.messages_list) == 1 == len(request.message_object_trees)


def read(route: Route, body: bytes, ledger: Ledger, key: bytes) -> Any:
    """Return the request of a route.

    Raises ProtocolError: other bytes than Flower's client would write, or a value that the SuperLink
    has not named; StrangeNodeError: a node that it has not activated.
    """
    try:
        request = route.kind.FromString(body)
    except Exception:
        raise ProtocolError("the request cannot be read") from None
    request.DiscardUnknownFields()
    if route.forwarded and request.SerializeToString(deterministic=True) != body:
        raise ProtocolError("the request is not written as Flower writes it")
    named = request.DESCRIPTOR.fields_by_name
    nodes = [request.node.node_id] if "node" in named else []
    nodes += [request.node_id] if "node_id" in named else []
    if not all(ledger.knows("node", node) for node in nodes):
        raise StrangeNodeError("the SuperLink has not activated this node through the gate")
    if not route.check(request, ledger, key):
        raise ProtocolError("the request names what the SuperLink has not named")
    return request
