"""Real replies of sites, as a SuperNode announces and pushes them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from flhe.gate.judge import Verdict, judge
from flhe.gate.policy import GatePolicy
from flhe.keys.identity import Identity
from flhe.mods import HEMod, records
from flhe.node.store import Store
from flhe.training.query import Query
from flhe.training.terms import Terms
from tests.mods.harness import TERMS, Group, Site, answer, update

PLANTED = np.full(4, 0.4711, np.float32)
"""Values of an update that must not leave."""


@dataclass
class Pushed:
    """A reply: the metadata of its request, its announcement, its tree and its objects."""

    asked: Metadata
    said: MessageProto
    tree: ObjectTree
    objects: dict[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, asked: Metadata, reply: Message) -> Pushed:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        said = message_to_proto(remove_content_from_message(reply))
        return cls(asked, said, get_object_tree(reply), objects)

    def verdict(self, policy: GatePolicy) -> Verdict:
        read = self.objects.__getitem__
        return judge(policy, self.asked, self.said, self.tree, read, time.time())


def asking(content: RecordDict, node: int, kind: str = "train") -> Message:
    """A server's message, with the id that a SuperLink gives it."""
    message = Message(content, node, kind, group_id="3")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@dataclass
class Recorded:
    """A site's identity, its gate's policy, and the requests and replies of each stage."""

    identity: Identity
    policy: GatePolicy
    seen: dict[str, tuple[Message, Message]]

    @cached_property
    def pushed(self) -> dict[str, Pushed]:
        """Its replies, as its SuperNode pushes them."""
        messages = self.seen.items()
        return {stage: self.answering(stage, reply.content) for stage, (_, reply) in messages}

    def answering(
        self,
        stage: str,
        answer: RecordDict | Error,
        change: Callable[[Message], None] = lambda _: None,
    ) -> Pushed:
        """An app's own reply, without HEMod."""
        asked, _ = self.seen[stage]
        return answering(asked, answer, change)

    def adding(self, stage: str, name: str, record: Any) -> Pushed:
        """A reply with one record more, or another one."""
        return self.answering(stage, RecordDict({**self.seen[stage][1].content, name: record}))

    def why(self, reply: Pushed) -> str:
        """Why the gate stops a reply; "" if it passes."""
        return reply.verdict(self.policy).reason


def record(path: Path) -> Recorded:
    """The first member's replies to a federation's stages, and its gate's policy."""
    group, seen = Group(path), dict[Path, dict[str, tuple[Message, Message]]]()

    def noted(site: Site, content: RecordDict, kind: str = "train") -> Message:
        message = asking(content, site.context.node_id, kind)
        mod = HEMod(queries={"numbers": lambda *_: records.from_numpy({"n": np.arange(3)})})
        reply = mod(message, site.context, site.app)
        stage = str(content.config_records["flhe.stage"]["stage"])
        seen.setdefault(site.home, {})[stage] = message, reply
        return reply

    with mock.patch.object(Site, "send", noted):
        first = group.agree().sites[0]
        total = group.total()
        group.ask(first, "sync", sums=[total])
        group.evaluate(first)
        group.ask(first, "checkpoint")
        group.ask(first, "status")
        asked = query(path)
    identity = Store(first.home).identity()
    replies = {stage: seen[asked.home][stage] for stage in ("query", "total")}
    return Recorded(identity, GatePolicy(identity.public), seen[first.home] | replies)


def query(path: Path) -> Site:
    """Have the same sites answer a query in a federation of its own; return the first member."""
    terms = Terms(codec=TERMS.codec, metrics=(), evaluated=())
    group = Group(path / "queries", 3, terms, {"flhe-queries": "numbers"}, asks=True)
    for site in group.sites:
        site.home.mkdir(mode=0o700, parents=True)
        shutil.copy(path / site.home.name / "identity.key", site.home)
    told = {"query": Query.of("numbers", {}).to_bytes()}
    replies = [group.ask(site, "query", **told) for site in group.agree().sites]
    total = group.total([update(reply) for reply in replies])
    opened = {records.SUM: records.from_sealed(total)}
    told |= {"header": total.header(), "form": answer(replies[0])["form"]}
    answer(group.ask(group.sites[0], "total", extra=opened, **told))
    return group.sites[0]


def answering(
    asked: Message, answer: RecordDict | Error, change: Callable[[Message], None] = lambda _: None
) -> Pushed:
    """An app's own reply, without HEMod."""
    reply = Message(answer, reply_to=asked)  # type: ignore[call-overload]
    change(reply)
    return Pushed.of(metadata_to_proto(asked.metadata), reply)


def clear() -> RecordDict:
    """What an app answers that was never meant to be sealed."""
    return RecordDict(
        {
            "arrays": ArrayRecord([PLANTED]),
            "metrics": MetricRecord({"num-examples": 10, "loss": 0.5}),
        }
    )
