"""What a wiretap wrote, taken apart: HTTP/1.1, Flower's objects, arrays that travelled in chunks.

The SuperLink of Flower speaks protobuf over HTTP/1.1: one POST a call, answered by one body. Objects
(`push-object`, `pull-object`) are named by their SHA-256; an array is an object whose children are its
chunks, in the order that its own body lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import ProtocolError

PUSH, PULL = "/v1/fleet/push-object", "/v1/fleet/pull-object"
_HEAD_END = b"\r\n\r\n"
_OBJECT_HEAD_END = b"\x00"


@dataclass(frozen=True, slots=True)
class Part:
    """A request or a response."""

    start: str  # Its first line
    headers: dict[str, str]  # By name in lower case
    body: bytes  # Without the framing of chunked transfer

    @property
    def path(self) -> str:
        """Of a request; "" for a response."""
        fields = self.start.split(" ")
        return fields[1] if len(fields) == 3 and fields[2].startswith("HTTP/") else ""


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection: its two streams as bytes, and what they say."""

    name: str
    up: bytes
    down: bytes
    requests: tuple[Part, ...]
    responses: tuple[Part, ...]


def read(directory: Path) -> list[Connection]:
    """All connections of a wiretap, in order.

    Raises ProtocolError: something else than HTTP/1.1, or bodies that a search cannot see through.
    """
    found = []
    for path in sorted(directory.glob("*.up")):
        up, down = path.read_bytes(), path.with_suffix(".down").read_bytes()
        parts = (tuple(parse(stream)) for stream in (up, down))
        found.append(Connection(path.stem, up, down, *parts))
    return found


def parse(stream: bytes) -> Iterator[Part]:
    """Requests or responses one behind the other; one that was cut off at the end is left out."""
    at = 0
    while (end := stream.find(_HEAD_END, at)) >= 0:
        lines = stream[at:end].decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        if "HTTP/1." not in lines[0]:
            raise ProtocolError("wiretap: a stream is no HTTP/1.1, this search cannot read it")
        if headers.get("content-encoding", "identity") != "identity":
            raise ProtocolError("wiretap: a body is compressed, this search cannot see through it")
        start = end + len(_HEAD_END)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, at = _chunked(stream, start)
        else:
            at = start + int(headers.get("content-length", "0"))
            body = stream[start:at]
        if at > len(stream):
            return
        yield Part(lines[0], headers, body)


def _chunked(stream: bytes, at: int) -> tuple[bytes, int]:
    """Body in chunked transfer coding, and where it ends; beyond the stream if it was cut off."""
    pieces = []
    while (end := stream.find(b"\r\n", at)) >= 0:
        size = int(stream[at:end].split(b";")[0], 16)
        pieces.append(stream[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
        if size == 0:
            return b"".join(pieces), at
    return b"".join(pieces), len(stream) + 1


def objects(connections: Iterable[Connection]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Flower's objects by id: those that went to the SuperLink, and those that came from it."""
    from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest

    up: dict[str, bytes] = {}
    down: dict[str, bytes] = {}
    for connection in connections:
        for request in connection.requests:
            if request.path == PUSH:
                pushed = PushObjectRequest.FromString(request.body)
                up[pushed.object_id] = pushed.object_content
        for request, response in zip(connection.requests, connection.responses, strict=False):
            if request.path == PULL and " 200 " in response.start:
                pulled = PullObjectResponse.FromString(response.body)
                if pulled.object_available:
                    name = PullObjectRequest.FromString(request.body).object_id
                    down[name] = pulled.object_content
    return up, down


def arrays(found: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Id and data of each array among objects whose chunks are all there, joined."""
    for name, content in found.items():
        head, _, body = content.partition(_OBJECT_HEAD_END)
        kind, _, rest = head.decode("utf-8", "replace").partition(" ")
        if kind != "Array":
            continue
        children = [child for child in rest.partition(" ")[0].split(",") if child]
        order = json.loads(body)["arraychunk_ids"]
        if all(child in found for child in children):
            chunks = [found[child].partition(_OBJECT_HEAD_END)[2] for child in children]
            yield name, b"".join(chunks[i] for i in order)
