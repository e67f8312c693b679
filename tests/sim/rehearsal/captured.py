"""A small deployment's capture without a deployment: nodes' real answers, as Flower would post them.

One run of FLASHE, one round, three sites; what the relay would have written down, what the apps noted,
and what was in the state directories on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from flhe.keys.agreement.messages import Envelope
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal import node_secrets, wire
from flhe_lab.rehearsal.app import SITES, Plan
from flhe_lab.rehearsal.search import Secrets
from tests.mods import harness

PLAN = Plan(schemes=("flashe",), rounds=1, kill=False)
TERMS = loopback_app.strategy("flashe", len(SITES), loopback_app.MAX_EXAMPLES, lambda _: None).terms


def capture(path: Path, plant: Callable[[Any], bytes] = lambda _: b"") -> Any:
    """What `traffic.search` takes; `plant` gives bytes of a leak in a log."""
    secrets = Secrets()
    secrets.add("SuperNode key", *(bytes([7 + i]) + np.random.bytes(31) for i in range(len(SITES))))
    group = harness.Group(path, len(SITES), TERMS)
    group.start = {"arrays": initial(PLAN.values)}
    for site, name in zip(group.sites, SITES, strict=True):
        (path / f"notes-{name}").mkdir()
        site.allow(loopback_notes=str(path / f"notes-{name}"))
        site.context.run_config = {"scheme": "flashe"}
    sent: list[RecordDict] = []
    app = loopback_app.client_app()

    def noted(site: harness.Site, content: RecordDict, kind: str = "train") -> Message:
        reply = app(Message(content, site.context.node_id, kind), site.context)
        for each in group.sites:
            node_secrets.look(each.home, secrets)
        sent.append(reply.content)
        return reply

    with mock.patch.object(harness.Site, "send", noted):
        group.agree()
        for site in group.sites:
            group.ask(site)
    sent.append(RecordDict({"config": MetricRecord({"max": loopback_app.MAX_EXAMPLES})}))
    (path / "captured").mkdir()
    pushed = {name: data for content in sent for name, data in objects(content).items()}
    pulled = objects(RecordDict({"arrays": initial(PLAN.values)}))
    write_calls(path / "captured", pushed, pulled)
    members = [Envelope.from_bytes(one, 1 << 16).header.sender for one in group.confirms]
    loopback = SimpleNamespace(
        plan=PLAN,
        secrets=secrets,
        runs=[SimpleNamespace(id=harness.RUN, now=harness.RUN, scheme="flashe")],
        home=lambda name: group.sites[SITES.index(name)].home,
        notes=lambda name: path / f"notes-{name}",
        machines=SimpleNamespace(captured=path / "captured"),
        logs=SimpleNamespace(folder=path),
        trust=SimpleNamespace(roster=SimpleNamespace(publics=members), sites={}),
    )
    (path / "node.log").write_bytes(b"12:00:01 a node's log: " + plant(loopback) + b"\n")
    return loopback


def post(path: str, body: bytes) -> bytes:
    """A call of Flower's, as it travels."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


def ok(body: bytes) -> bytes:
    """An answer."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def write_calls(directory: Path, pushed: Mapping[str, bytes], pulled: Mapping[str, bytes]) -> None:
    """What the relay writes down of objects by name."""
    up, down = b"", b""
    for name, data in pushed.items():
        push = PushObjectRequest(object_id=name, object_content=data)
        up += post(wire.PUSH, push.SerializeToString())
        down += ok(b"")
    for name, data in pulled.items():
        up += post(wire.PULL, PullObjectRequest(object_id=name).SerializeToString())
        answer = PullObjectResponse(object_found=True, object_available=True, object_content=data)
        down += ok(answer.SerializeToString())
    (directory / "00001.up").write_bytes(up)
    (directory / "00001.down").write_bytes(down)


def objects(content: Any) -> dict[str, bytes]:
    """What a record is sent as, by name."""
    found = get_all_nested_objects(content)
    return {each.object_id: each.deflate() for each in found.values()}
