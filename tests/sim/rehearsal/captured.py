"""A small deployment's capture without a deployment: nodes' real answers, as Flower would post them.

One run of FLASHE, one round, three sites; what the relay would have written down, what the apps noted,
and what was in the state directories on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from flhe.keys.agreement.messages import Envelope
from flhe.mods import records
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal import node_secrets, wire
from flhe_lab.rehearsal.plan import SITES, Plan
from flhe_lab.rehearsal.search import Secrets
from flhe_lab.rehearsal.updates import terms_of
from tests.mods import harness
from tests.sim.rehearsal.test_wire import ok, post

PLAN = Plan(schemes=("flashe",), rounds=1, kill=False)
TERMS = replace(terms_of(PLAN, "flashe"), metrics=("loss",))


class Trains(harness.App):
    """Adds its site's update to the model, and notes both."""

    def __init__(self, site: int, notes: Path) -> None:
        super().__init__()
        self.site, self.notes = site, notes

    def content(self, message: Message) -> RecordDict:
        """What the app answers."""
        before = records.to_numpy(message.content["arrays"])
        received = np.concatenate([array.reshape(-1) for array in before.values()])
        trained = received + loopback_app.update("flashe", self.site, 1, received.size)
        np.savez(self.notes / f"{harness.RUN}-1.npz", received=received, trained=trained)
        reply, at = {}, 0
        for name, array in before.items():
            reply[name] = trained[at : at + array.size].reshape(array.shape)
            at += array.size
        told = {"num-examples": loopback_app.examples(self.site), "loss": 0.5}
        return RecordDict({"arrays": records.from_numpy(reply), "metrics": MetricRecord(told)})


def capture(path: Path, plant: Callable[[Any], bytes] = lambda _: b"") -> Any:
    """What `traffic.search` takes; `plant` gives bytes of a leak in a log."""
    secrets = Secrets()
    secrets.add("SuperNode key", *(bytes([7 + i]) + np.random.bytes(31) for i in range(len(SITES))))
    group = harness.Group(path, len(SITES), TERMS)
    group.start = {"arrays": initial(PLAN.values)}
    for index, (site, name) in enumerate(zip(group.sites, SITES, strict=True)):
        (path / f"notes-{name}").mkdir()
        site.app = Trains(index, path / f"notes-{name}")
    sent: list[RecordDict] = []
    was = harness.heard

    def noted(message: Message) -> Message:
        for site in group.sites:
            node_secrets.look(site.home, secrets)
        sent.append(message.content)
        return was(message)

    harness.heard = noted  # type: ignore[assignment]
    try:
        group.agree()
        for site in group.sites:
            group.ask(site)
    finally:
        harness.heard = was  # type: ignore[assignment]
    sent.append(RecordDict({"config": MetricRecord({"max": loopback_app.MAX_EXAMPLES})}))
    _write(path / "captured", sent, RecordDict({"arrays": initial(PLAN.values)}))
    members = [Envelope.from_bytes(one, 1 << 16).header.sender for one in group.confirms]
    loopback = SimpleNamespace(
        plan=PLAN,
        secrets=secrets,
        runs=[SimpleNamespace(id=harness.RUN, scheme="flashe")],
        home=lambda name: group.sites[SITES.index(name)].home,
        notes=lambda name: path / f"notes-{name}",
        machines=SimpleNamespace(captured=path / "captured"),
        logs=SimpleNamespace(all=lambda: [path / "node.log"]),
        trust=SimpleNamespace(roster=SimpleNamespace(publics=members), node_keys={}),
    )
    (path / "node.log").write_bytes(b"12:00:01 a node's log: " + plant(loopback) + b"\n")
    return loopback


def _write(directory: Path, sent: Iterable[RecordDict], received: RecordDict) -> None:
    directory.mkdir()
    up, down = b"", b""
    for content in sent:
        for name, data in _objects(content):
            pushed = PushObjectRequest(object_id=name, object_content=data)
            up += post(wire.PUSH, pushed.SerializeToString())
            down += ok(b"")
    for name, data in _objects(received):
        up += post(wire.PULL, PullObjectRequest(object_id=name).SerializeToString())
        answer = PullObjectResponse(object_found=True, object_available=True, object_content=data)
        down += ok(answer.SerializeToString())
    (directory / "00001.up").write_bytes(up)
    (directory / "00001.down").write_bytes(down)


def _objects(content: RecordDict | ArrayRecord) -> Iterable[tuple[str, bytes]]:
    found = get_all_nested_objects(content)
    return [(each.object_id, each.deflate()) for each in found.values()]
