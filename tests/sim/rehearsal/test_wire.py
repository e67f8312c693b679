"""What a wiretap wrote is taken apart without losing a byte, and an array is whole again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord
from flwr.app.message import array as flower_array
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ProtocolError
from flhe_lab.rehearsal import wire
from tests.sim.rehearsal.captured import objects, ok, post, write_calls

BODIES = st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=4)


def chunked(body: bytes, step: int = 7) -> bytes:
    pieces = [body[i : i + step] for i in range(0, len(body), step)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed


@settings(max_examples=200, deadline=None)
@given(BODIES, st.integers(0, 40))
def test_bodies_come_out_as_they_went_in(bodies: list[tuple[bytes, bool]], cut: int) -> None:
    streams = [chunked(body) if pieces else ok(body) for body, pieces in bodies]
    whole = b"".join(streams)
    assert [part.body for part in wire.parse(whole)] == [body for body, _ in bodies]
    left = [part.body for part in wire.parse(whole[: max(len(whole) - cut, 0)])]
    assert left == [body for body, _ in bodies][: len(left)]
    if cut and bodies:
        assert len(left) < len(bodies)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"no HTTP/1\.1"):
        list(wire.parse(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ProtocolError, match="compressed"):
        list(wire.parse(packed))


def test_an_array_is_joined_over_the_borders_of_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1000)
    values = np.random.default_rng(5).standard_normal(2000).astype(np.float32)
    values[500:750] = values[250:500]  # equal chunks travel once
    values[:250] = values[250:500]
    sent = objects(Array(values))
    half = {name: sent[name] for name in list(sent)[::2]}
    write_calls(tmp_path, half, {name: sent[name] for name in sent if name not in half})
    (connection,) = wire.read(tmp_path)
    assert len(connection.requests) == len(connection.responses) == len(sent)
    pushed, pulled = wire.objects([connection])
    assert {**pushed, **pulled} == sent
    ((_, data),) = wire.arrays({**pushed, **pulled})
    assert values.tobytes() in data
    assert values.tobytes() not in connection.up + connection.down
    assert list(wire.arrays(pushed)) == []  # chunks are missing


def test_records_are_read_and_other_calls_are_told_apart(tmp_path: Path) -> None:
    record = ConfigRecord({"count": 7, "header": b"\x01\x02", "names": ["a", "b"]})
    sent = objects(record) | objects(Array(np.ones(3)))
    write_calls(tmp_path, sent, {}, (post("/v1/fleet/other", b"question"), ok(b"answer")))
    connections = wire.read(tmp_path)
    pushed, _ = wire.objects(connections)
    assert [values for _, values in wire.records(pushed)] == [[7, b"\x01\x02", ["a", "b"]]]
    assert dict(wire.calls(connections)) == {"up": b"question", "down": b"answer"}
