"""Laws of the gate's verdict: what this site has signed whole passes, and nothing else does."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigProto
from flwr.proto.recorddict_pb2 import ConfigRecordValue, SintList
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.gate.judge import REASONS, judge
from flhe.gate.objects import MAX_OBJECT, object_id, write
from flhe.gate.policy import FIELDS, GatePolicy
from flhe.keys.identity import Identity
from flhe.mods import records
from tests.fuzz.mutations import blind
from tests.gate.replies import PLANTED, Pushed, Recorded, answering, asking, clear

STAGES = (
    *("advertise", "share", "confirm", "round", "sync", "evaluate", "checkpoint", "status"),
    *("query", "total"),
)
MUTANTS = int(os.environ.get("FLHE_GATE_MUTANTS", "100"))
COUNTS = (MUTANTS, pytest.param(10_000, marks=pytest.mark.sweep))


@pytest.mark.parametrize("stage", STAGES)
def test_a_signed_reply_passes(site: Recorded, stage: str) -> None:
    reply = site.pushed[stage]
    verdict = reply.verdict(site.policy)
    assert (verdict.reason, verdict.detail) == ("", "")
    assert verdict.tree is not None
    assert {*verdict.tree.below, reply.tree.object_id} == set(reply.objects)


def test_another_sites_reply_does_not_pass(site: Recorded) -> None:
    """Nor one to another message."""
    other = GatePolicy(Identity.generate().public)
    assert {reply.verdict(other).reason for reply in site.pushed.values()} == {"signature"}
    assert site.why(replace(site.pushed["round"], asked=site.pushed["sync"].asked)) == "metadata"


# --- apps that answer by themselves ---


VALUES = [float(v) for v in PLANTED]
SHAPE = tuple(int(v) for v in PLANTED.view(np.uint32))
NAME = PLANTED.tobytes().hex()
HIDDEN: dict[str, tuple[RecordDict | Error, str]] = {
    "clear": (clear(), "plain"),
    "metrics": (RecordDict({"metrics": MetricRecord({"loss": VALUES})}), "plain"),
    "config": (RecordDict({"notes": ConfigRecord({"notes": PLANTED.tobytes()})}), "plain"),
    "array name": (RecordDict({"a": ArrayRecord({NAME: Array(np.zeros(1))})}), "plain"),
    "array shape": (
        RecordDict({"a": ArrayRecord({"w": Array("uint8", SHAPE, "x", b"1")})}),
        "plain",
    ),
    "record name": (RecordDict({NAME: ConfigRecord({"a": 1})}), "plain"),
    "error": (Error(2, f"ValueError: {VALUES}"), "error-text"),
    "error code": (Error(int(PLANTED.view(np.int32)[0]), ""), "error"),
    "nothing": (RecordDict({}), "plain"),
}
"""An update in each of the places that a reply has, and why it is stopped."""


@pytest.mark.parametrize("name", HIDDEN)
def test_an_app_without_the_mod_gets_nothing_out(site: Recorded, name: str) -> None:
    answer, reason = HIDDEN[name]
    verdict = site.answering("round", answer).verdict(site.policy)
    assert (verdict.tree, verdict.reason) == (None, reason)
    assert verdict.code == (2 if name == "error" else 1033)


@pytest.mark.parametrize("name", ["message_type", "group_id", "run_id", "dst_task_id"])
def test_a_reply_with_other_metadata_does_not_pass(site: Recorded, name: str) -> None:
    _, reply = site.seen["round"]
    value = NAME if isinstance(getattr(reply.metadata, name), str) else 4711

    def change(made: Message) -> None:
        made.metadata.__dict__[f"_{name}"] = value

    assert site.why(site.answering("round", reply.content, change)) == "metadata"


def boxed(shape: int, stype: str) -> ArrayRecord:
    return ArrayRecord({"0000": Array("uint8", (shape,), stype, b"1")})


ADDED: dict[str, tuple[str, ArrayRecord | ConfigRecord | MetricRecord, str]] = {
    "array": ("arrays", ArrayRecord([PLANTED]), "record"),
    "sealed by name": (records.BOX, ArrayRecord([PLANTED]), "array"),
    "sealed by type": (records.BOX, boxed(1, records.SEALED), "array"),
    "wrong shape": (records.BOX, boxed(4711, records.CHECKPOINT), "array"),
    "no array": (records.BOX, ArrayRecord({}), "array"),
    "config": ("flhe.notes", ConfigRecord({"a": b"1"}), "record"),
    "opened": ("flhe.opened", ConfigRecord({"round": 1, "seen": 4711}), "field"),
    "metric": ("flhe.means.1", MetricRecord({"age": 47.0}), "metric"),
    "precise": ("flhe.means.1", MetricRecord({"loss": 0.4711}), "metric"),
    "list": ("flhe.means.1", MetricRecord({"loss": [0.5]}), "metric"),
    "number": ("flhe.means.01", MetricRecord({"loss": 0.5}), "record"),
    "unsigned": ("flhe.means.1", MetricRecord({"loss": 0.5}), "signature"),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_record_beside_the_sealed_ones_does_not_pass(site: Recorded, name: str) -> None:
    record, content, reason = ADDED[name]
    assert site.why(site.adding("status", record, content)) == reason


def test_the_fields_their_signature_and_the_order_of_records(site: Recorded) -> None:
    own = ConfigRecord({**site.seen["status"][1].content[records.REPLY], "note": b"4711"})
    assert site.why(site.adding("status", records.REPLY, own)) == "field"
    del own["note"], own["signed"]
    assert site.why(site.adding("status", records.REPLY, own)) == "unsigned"
    _, reply = site.seen["round"]
    turned = RecordDict(dict(reversed(list(reply.content.items()))))
    assert site.why(site.answering("round", turned)) == "signature"


# --- the tree ---


def test_an_object_beside_the_tree_does_not_leave(site: Recorded) -> None:
    found = copy.deepcopy(site.pushed["status"])
    content = write("ArrayChunk", (), PLANTED.tobytes())
    found.objects[object_id(content)] = content
    found.tree.children.append(ObjectTree(object_id=object_id(content)))
    assert site.why(found) == "malformed"
    found.tree.CopyFrom(site.pushed["status"].tree)
    place = found.tree.children[0]
    place.children.append(ObjectTree(object_id=object_id(content)))
    assert site.why(found) == "malformed"
    for _ in range(90):  # a deep one
        place = place.children.add(object_id="0" * 64)
    assert site.why(found) == "malformed"


def rewritten(pushed: Pushed, old: str, content: bytes) -> Pushed:
    """The same reply with one object replaced, and all ids above it."""
    found = copy.deepcopy(pushed)
    new = object_id(content)
    found.objects[new] = content

    def walk(tree: ObjectTree) -> None:
        before, children = tree.object_id, [child.object_id for child in tree.children]
        for child in tree.children:
            walk(child)
        if before == old:
            tree.object_id = new
            return
        data = found.objects[before]
        for was, child in zip(children, tree.children, strict=True):
            data = data.replace(was.encode(), child.object_id.encode())
        tree.object_id = object_id(data)
        found.objects[tree.object_id] = data

    walk(found.tree)
    found.said.metadata.message_id = found.tree.object_id
    return found


def test_json_with_spaces_does_not_pass(site: Recorded) -> None:
    """The control: the same rewriting without a change passes."""
    reply = site.pushed["round"]
    old = reply.tree.children[0].object_id
    content = reply.objects[old]
    body = content.partition(b"\0")[2]
    assert site.why(rewritten(reply, old, content)) == ""
    children = tuple(child.object_id for child in reply.tree.children[0].children)
    spaced = write("RecordDict", children, json.dumps(json.loads(body), indent=1).encode())
    verdict = rewritten(reply, old, spaced).verdict(site.policy)
    assert (verdict.reason, verdict.tree) == ("malformed", None)


def said(**changes: object) -> Callable[[bytes], bytes]:
    """A JSON body with other fields."""
    return lambda body: json.dumps({**json.loads(body), **changes}).encode()


def item(**value: Any) -> Callable[[bytes], bytes]:
    """The body of a record with one value more."""
    more = ConfigProto(items=[ConfigProto.Item(key="x", value=ConfigRecordValue(**value))])
    return lambda body: body + more.SerializeToString()


MALFORMED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "negative": ("Array", said(shape=[-1])),
    "no list": ("Array", said(shape=4)),
    "chunk that is not there": ("Array", said(arraychunk_ids=[1])),
    "number for a type": ("Array", said(dtype=1)),
    "another field": ("Array", said(note=4711)),
    "no object": ("Array", lambda _: b"[]"),
    "other names": ("RecordDict", said(more="4711")),
    "empty chunk": ("ArrayChunk", lambda _: b""),
    "long chunk": ("ArrayChunk", lambda _: bytes(MAX_OBJECT)),
    "unknown field": ("ConfigRecord", lambda body: body + b"\x7a\x00"),
    "unknown field of the root": ("Message", lambda body: body + b"\x7a\x00"),
    "value twice": ("ConfigRecord", lambda body: body + body),
    "no value": ("ConfigRecord", item()),
    "empty list": ("ConfigRecord", item(sint_list=SintList())),
    "small number of the large type": ("ConfigRecord", item(uint64=4711)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_an_object_that_flower_would_not_write_does_not_pass(site: Recorded, what: str) -> None:
    kind, change = MALFORMED[what]
    reply = site.pushed["round"]
    old = next(name for name, data in reply.objects.items() if data.startswith(f"{kind} ".encode()))
    head, _, body = reply.objects[old].partition(b"\0")
    children = tuple(filter(None, head.split(b" ")[1].decode().split(",")))
    assert site.why(rewritten(reply, old, write(kind, children, change(body)))) == "malformed"


# --- the limit ---


def test_an_app_that_takes_the_identity_passes(site: Recorded) -> None:
    """It signs an update in clear as if it were ciphertext; docs/gate.md says so."""
    asked, reply = site.seen["status"]
    made = RecordDict({name: copy.deepcopy(record) for name, record in reply.content.items()})
    array = Array("uint8", (16,), records.SEALED, PLANTED.tobytes())
    made[records.UPDATE] = ArrayRecord({"0000": array})
    assert site.why(answering(asked, made)) == "signature"
    records.sign(site.identity, asked, made)
    assert site.why(answering(asked, made)) == ""


# --- long replies ---


@pytest.mark.parametrize("megabytes", [17, 40])
def test_a_reply_above_the_longest_object_passes_in_pieces(megabytes: int) -> None:
    """Ciphertext is cut into arrays, and Flower cuts those into chunks; no object is that long."""
    identity = Identity.generate()
    asked = asking(RecordDict({"a": ConfigRecord({"a": 1})}), 100)
    content = records.reply(round=1, header=b"header")
    data = os.urandom(1 << 20) * megabytes
    content[records.UPDATE] = records._numbered([data], records.SEALED)
    records.sign(identity, asked, content)
    pushed = answering(asked, content)
    assert len(data) > MAX_OBJECT > max(map(len, pushed.objects.values()))
    own = GatePolicy(identity.public)
    assert pushed.verdict(own).reason == ""
    old = max(pushed.objects, key=lambda name: len(pushed.objects[name]))
    body = bytearray(pushed.objects[old])
    body[-1] ^= 1
    assert rewritten(pushed, old, bytes(body)).verdict(own).reason == "signature"


def test_a_short_reply_that_names_one_chunk_again_and_again_is_too_long(site: Recorded) -> None:
    """It would occupy the gate for as long as it likes: what an object costs counts at each place."""
    array = Array("uint8", (1,), records.SEALED, os.urandom(1 << 20))
    made = site.answering("status", RecordDict({"a": ArrayRecord({"w": array})}))
    old = next(name for name, data in made.objects.items() if data.startswith(b"Array "))
    chunk = next(name for name, data in made.objects.items() if data.startswith(b"ArrayChunk "))
    body = made.objects[old].split(b"\0")[1]
    again = json.dumps({**json.loads(body), "arraychunk_ids": [0] * 100_000}).encode()
    found = rewritten(made, old, write("Array", (chunk,), again))
    count = 0

    def read(named: str) -> bytes:
        nonlocal count
        count += 1
        return found.objects[named]

    policy = replace(site.policy, max_bytes=20 << 20)
    verdict = judge(policy, found.asked, found.said, found.tree, read, time.time())
    assert verdict.reason == "size"
    assert count < 30


# --- mutants ---


def mutants_pass(policy: GatePolicy, pushed: Pushed, seed: int) -> bool:
    """Whether a mutant of one object passes; of one that differs, and whose ids are made to fit."""
    random = Random(seed)
    samples = list(pushed.objects.values())
    old = random.choice(list(pushed.objects))
    content = blind(pushed.objects[old], samples, random)
    if content == pushed.objects[old]:
        return False
    found = rewritten(pushed, old, content)
    if old == pushed.tree.object_id:  # its announcement too
        try:
            metadata = found.said.FromString(content.partition(b"\0")[2]).metadata
            metadata.message_id = found.tree.object_id
            found.said.metadata.CopyFrom(metadata)
        except Exception:
            return found.verdict(policy).tree is not None
    verdict = found.verdict(policy)
    assert verdict.reason == "" or verdict.reason in REASONS
    if verdict.tree is None or old != pushed.tree.object_id:
        return verdict.tree is not None
    # Of the root nothing is forwarded: the gate writes it.
    return verdict.tree.content != pushed.tree.children[0]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("stage", STAGES)
def test_no_mutant_passes(site: Recorded, stage: str, count: int) -> None:
    reply = site.pushed[stage]
    assert not any(mutants_pass(site.policy, reply, seed) for seed in range(count))


ANY = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()
)


@settings(max_examples=100, deadline=None)
@given(name=st.text(), field=st.text(), value=ANY)
def test_no_record_of_an_apps_own_passes(
    site: Recorded, name: str, field: str, value: object
) -> None:
    try:
        found = site.adding("status", name, ConfigRecord({field: value}))  # type: ignore[dict-item]
    except ValueError:  # Flower refuses it first
        return
    assert found.verdict(site.policy).tree is None


def test_a_member_of_masking_keys_has_no_share_for_itself() -> None:
    """SASH's reply has a share for each member, empty at its own rank."""
    check = FIELDS[records.REPLY]["shares"]
    assert check([b"", bytes(40), bytes(40)])
    assert check([])
    assert not check([bytes((1 << 16) + 1)])
    assert not check(["a share"])
