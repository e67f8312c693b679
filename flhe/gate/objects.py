"""Flower's objects, read strictly: a message travels as a tree of them, each named by its SHA-256.

    object = type " " children's ids, by commas " " length of body 0x00 body

    Message      metadata, error; one RecordDict, or none beside an error
    RecordDict   JSON {name: id}: ArrayRecords, ConfigRecords and MetricRecords
    ArrayRecord  JSON {name: id}: Arrays
    Array        JSON {dtype, shape, stype, arraychunk_ids}: ArrayChunks
    ArrayChunk   bytes

An object is taken only if Flower would write the same values as the same bytes. So there is no
room beside the values: none in spaces, in the order of fields, or in fields that nobody knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigProto
from flwr.proto.recorddict_pb2 import MetricRecord as MetricProto

from flhe.errors import ProtocolError
from flhe.wire.outgoing import Held, Outgoing

MAX_OBJECT = 16 << 20
"""Most bytes of one object; Flower cuts arrays into chunks of 5 MiB."""
MAX_LIST = 1 << 20
"""Most bytes of an object that lists others."""
MAX_OBJECTS = 1 << 16
"""Most objects of one message."""
MAX_DEPTH = 5
"""Levels of a message's tree."""

Read = Callable[[str], bytes]
"""Object's id -> its bytes."""

_LONG = ("ArrayChunk", "ConfigRecord", "MetricRecord")
_HELD = ("dtype", "shape", "stype", "arraychunk_ids")


def object_id(content: bytes) -> str:
    """Return the id of an object."""
    return hashlib.sha256(content).hexdigest()


def is_id(text: str) -> bool:
    """Return whether `text` is written like an object's id."""
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def write(kind: str, children: tuple[str, ...], body: bytes) -> bytes:
    """Return an object's bytes."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


@dataclass(frozen=True, slots=True)
class Node:
    """One object of a tree."""

    kind: str
    children: tuple[str, ...]
    body: memoryview

    @classmethod
    def read(cls, content: bytes, named: str, kinds: tuple[str, ...]) -> Node:
        """Read an object of that id, of one of those types; ProtocolError for any other."""
        if object_id(content) != named:
            raise ProtocolError("an object's id is not its hash")
        end = content.find(b"\0", 0, MAX_LIST)
        parts = content[: max(end, 0)].split(b" ")
        if len(parts) != 3:
            raise ProtocolError("an object has no head")
        kind, ids, body = parts[0].decode(), parts[1].decode(), memoryview(content)[end + 1 :]
        children = tuple(ids.split(",")) if ids else ()
        if kind not in kinds:
            raise ProtocolError("an object is of another type than its place in the tree")
        if len(content) > (MAX_OBJECT if kind in _LONG else MAX_LIST):
            raise ProtocolError("an object is too long")
        if parts[2] != b"%d" % len(body):
            raise ProtocolError("an object's head is not as Flower writes it")
        if len(set(children)) != len(children) or not all(map(is_id, children)):
            raise ProtocolError("an object names its parts wrongly")
        return cls(kind, children, body)

    def references(self) -> dict[str, str]:
        """Return the children by name."""
        found = _json(self.body)
        names = list(found.values())
        if not all(type(name) is str for name in names) or list(dict.fromkeys(names)) != list(
            self.children
        ):
            raise ProtocolError("an object's names do not match its parts")
        return found


@dataclass(frozen=True, slots=True)
class Tree:
    """A message: what its root says, its records, and all objects below the root, parts first."""

    said: MessageProto
    records: tuple[Outgoing, ...]
    content: ObjectTree | None
    below: tuple[str, ...] = ()


def ids_of(tree: ObjectTree) -> Iterator[str]:
    """Yield the ids in a tree, parts first; ProtocolError if it is too deep, too long or malformed."""
    for count, found in enumerate(_walk(tree, MAX_DEPTH)):
        if count >= MAX_OBJECTS:
            raise ProtocolError(f"a message has more than {MAX_OBJECTS} objects")
        yield found


def _walk(tree: ObjectTree, depth: int) -> Iterator[str]:
    if not depth or not is_id(tree.object_id):
        raise ProtocolError("a message's tree is not one of Flower's")
    for child in tree.children:
        yield from _walk(child, depth - 1)
    yield tree.object_id


def read_tree(tree: ObjectTree, read: Read) -> Tree:
    """Read a whole message; ProtocolError unless it is exactly as Flower writes it.

    `read` gives the objects; each is read once for each place that it has in the tree.
    """
    ids = tuple(dict.fromkeys(ids_of(tree)))
    root, _ = _place(tree, read, "Message")
    said = MessageProto.FromString(bytes(root.body))
    said.DiscardUnknownFields()
    if said.SerializeToString(deterministic=True) != root.body or said.HasField("content"):
        raise ProtocolError("a message is not written as Flower writes it")
    if said.HasField("error") == bool(root.children) or len(root.children) > 1:
        raise ProtocolError("a message needs content or an error, and not both")
    if not tree.children:
        return Tree(said, (), None)
    content = tree.children[0]
    records = tuple(_records(content, read))
    return Tree(said, records, content, tuple(i for i in ids if i != tree.object_id))


def _records(tree: ObjectTree, read: Read) -> Iterator[Outgoing]:
    top, places = _place(tree, read, "RecordDict")
    for name, named in top.references().items():
        kinds = ("ArrayRecord", "ConfigRecord", "MetricRecord")
        node, inner = _place(places[named], read, *kinds)
        if node.kind == "ArrayRecord":
            rows = tuple((n, _held(inner[i], read)) for n, i in node.references().items())
            yield Outgoing(name, "array", rows)
            continue
        if node.children:
            raise ProtocolError("a record of values has no parts")
        config = node.kind == "ConfigRecord"
        yield Outgoing(name, "config" if config else "metric", _values(node.body, config))


def _held(tree: ObjectTree, read: Read) -> Held:
    node, places = _place(tree, read, "Array")
    found = _json(node.body)
    if tuple(found) != _HELD or not all(type(found[n]) is str for n in ("dtype", "stype")):
        raise ProtocolError("an array has other fields than Flower's")
    shape, order = found["shape"], found["arraychunk_ids"]
    for numbers in (shape, order):
        if type(numbers) is not list or not all(type(n) is int and n >= 0 for n in numbers):
            raise ProtocolError("an array's numbers must be natural ones")
    if list(dict.fromkeys(order)) != list(range(len(node.children))):
        raise ProtocolError("an array names its chunks wrongly")
    hasher, sizes, size = hashlib.sha256(), list[int](), 0
    for index in order:
        chunk, _ = _place(places[node.children[index]], read, "ArrayChunk")
        if chunk.children or not chunk.body:
            raise ProtocolError("a chunk has bytes and no parts")
        hasher.update(chunk.body)
        sizes.append(len(chunk.body))
        size += len(chunk.body)
    if sizes and (set(sizes[:-1]) - {sizes[0]} or sizes[-1] > sizes[0]):
        raise ProtocolError("an array's chunks must be of one size, but for a shorter last one")
    return Held(found["dtype"], tuple(shape), found["stype"], size, hasher.digest())


def _place(tree: ObjectTree, read: Read, *kinds: str) -> tuple[Node, dict[str, ObjectTree]]:
    """Read the object of a place in the tree; ProtocolError unless the parts are its own."""
    node = Node.read(read(tree.object_id), tree.object_id, kinds)
    if tuple(child.object_id for child in tree.children) != node.children:
        raise ProtocolError("a message's tree is not that of its objects")
    return node, {child.object_id: child for child in tree.children}


def _json(body: memoryview) -> dict[str, Any]:
    """Read a JSON object; ProtocolError unless Flower would write the same bytes."""
    try:
        found = json.loads(bytes(body))
        same = type(found) is dict and json.dumps(found).encode() == body
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise ProtocolError("an object's body is not as Flower writes it")
    return dict(found)


def _values(body: memoryview, config: bool) -> tuple[tuple[str, Any], ...]:
    """Read the values of a record; ProtocolError unless Flower would write the same bytes."""
    record: Any = (ConfigProto if config else MetricProto).FromString(bytes(body))
    record.DiscardUnknownFields()
    if record.SerializeToString() != body:
        raise ProtocolError("a record is not written as Flower writes it")
    rows = tuple((item.key, _value(item.value)) for item in record.items)
    if len({name for name, _ in rows}) != len(rows):
        raise ProtocolError("a record names a value twice")
    return rows


def _value(value: Any) -> Any:
    chosen = value.WhichOneof("value")
    if chosen is None:
        raise ProtocolError("a record has a name without a value")
    found = getattr(value, chosen)
    many = chosen.endswith("list")
    listed = list(found.vals) if many else [found]
    if not listed:  # of which type, nobody could say
        raise ProtocolError("a record has an empty list")
    if chosen.startswith("uint") and max(listed) < 1 << 63:
        raise ProtocolError("a record has small numbers of the type for large ones")
    return listed if many else found
