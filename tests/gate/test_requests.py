"""Requests of a SuperNode: the honest one passes, and no mutant of it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunResponse, Run

from flhe.errors import AuthenticationError, ProtocolError
from flhe.gate.ledger import Ledger
from flhe.gate.requests import HEADERS, ROUTES, Caller, read
from flhe.gate.spool import Spool
from flhe.node.store import Store
from tests.fuzz.mutations import blind
from tests.gate.superlink import superlink
from tests.gate.test_judge import MUTANTS
from tests.gate.test_proxy import KEYS, register

NODE, RUN = 100, 7
KEY = b"the SuperNode's"
MESSAGE, PART, FAB = "a" * 64, "b" * 64, "c" * 64
FIELDS: dict[str, dict[str, Any]] = {
    "register-node": {"public_key": KEY},
    "activate-node": {"public_key": KEY, "heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL},
    "deactivate-node": {"node_id": NODE},
    "unregister-node": {"node_id": NODE},
    "send-node-heartbeat": {"heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL},
    "pull-messages": {},
    "get-run": {"run_id": RUN},
    "get-fab": {"hash_str": FAB, "run_id": RUN},
    "pull-object": {"run_id": RUN, "object_id": PART},
    "confirm-message-received": {"run_id": RUN, "message_object_id": MESSAGE},
}
"""Fields of the requests that go up as they are; `node` is added where there is one."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What a SuperLink has named: a node, a run, an app, a message of two objects."""
    found = Ledger(Store(tmp_path / "gate"))
    found.note("activate-node", ActivateNodeResponse(node_id=NODE).SerializeToString())
    asked = Message(metadata=Metadata(run_id=RUN, message_id=MESSAGE))
    tree = ObjectTree(object_id=MESSAGE, children=[ObjectTree(object_id=PART)])
    down = PullMessagesResponse(messages_list=[asked], message_object_trees=[tree])
    found.note("pull-messages", down.SerializeToString())
    said = GetRunResponse(run=Run(run_id=RUN, fab_hash=FAB))
    found.note("get-run", said.SerializeToString())
    return found


def honest(name: str, **other: str) -> bytes:
    kind = ROUTES[name].kind
    node = {"node": Node(node_id=NODE)} if "node" in kind.DESCRIPTOR.fields_by_name else {}
    return bytes(kind(**node, **FIELDS[name] | other).SerializeToString(deterministic=True))


def named(name: str) -> set[bytes]:
    """All requests of a kind whose values the SuperLink has named: a message has two objects."""
    both = {honest(name, object_id=MESSAGE)} if name == "pull-object" else set()
    return {honest(name), *both}


def passing(ledger: Ledger, name: str, seeds: range) -> set[bytes]:
    """The mutants of a request that pass."""
    samples = [honest(each) for each in FIELDS]
    found = set[bytes]()
    for seed in seeds:
        body = blind(honest(name), samples, Random(seed))
        try:
            read(ROUTES[name], body, ledger, KEY)
        except ProtocolError:
            continue
        found.add(body)
    return found


def test_all_requests_are_here() -> None:
    assert FIELDS.keys() | {"push-messages", "push-object"} == ROUTES.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_no_mutant_goes_up(ledger: Ledger, name: str) -> None:
    read(ROUTES[name], honest(name), ledger, KEY)
    assert passing(ledger, name, range(MUTANTS)) <= named(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", FIELDS)
def test_no_mutant_of_many_goes_up(ledger: Ledger, name: str) -> None:
    assert passing(ledger, name, range(10_000)) <= named(name)


@pytest.mark.sweep
def test_the_spool_takes_no_mutant_that_is_not_a_tree(ledger: Ledger, tmp_path: Path) -> None:
    """A mutant of an announcement is refused, or waits for objects; nothing else is written."""
    spool = Spool(tmp_path / "spool")
    tree = ObjectTree(object_id=MESSAGE, children=[ObjectTree(object_id=PART)])
    said = Message(metadata=Metadata(run_id=RUN, reply_to_message_id=MESSAGE))
    whole = {"messages_list": [said], "message_object_trees": [tree]}
    sample = PushMessagesRequest(node=Node(node_id=NODE), **whole).SerializeToString(  # type: ignore[arg-type]
        deterministic=True
    )
    for seed in range(10_000):
        body = blind(sample, [sample], Random(seed))
        try:
            spool.announce(read(ROUTES["push-messages"], body, ledger, KEY))
        except ProtocolError:
            continue
    names = [path.name for path in (tmp_path / "spool").iterdir()]
    assert 1 <= len(names) <= 4
    assert all(len(name) == 64 for name in names)


@pytest.fixture(scope="module")
def signed_headers() -> dict[str, str]:
    """Headers that Flower's client writes."""
    with superlink(NODE) as link:
        register(link.port, KEYS)
        return dict(link.headers)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with_more_than_its_value_does_not_pass(
    signed_headers: dict[str, str], name: str
) -> None:
    headers = signed_headers
    kept, _ = Caller().check(headers)
    assert kept == {each: headers[each] for each in HEADERS}
    for value in ("", headers[name] + "\n", headers[name] + " 4711", "\N{SNOWMAN}", "A" * 5000):
        with pytest.raises((ProtocolError, AuthenticationError)):
            Caller().check({**headers, name: value})
