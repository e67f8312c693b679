"""Example counts are found where numbers stand, and nowhere by chance."""

from __future__ import annotations

import random
import struct

import pytest
from flwr.app import MetricRecord

from flhe.wire.canonical import dumps
from flhe_lab.rehearsal import counts as leak_counts
from tests.sim.rehearsal.captured import objects

COUNT = (1 << 28) - 1_000_004
NOISE = random.Random(1).randbytes(1 << 20)


def test_a_number_in_a_record_is_as_flower_writes_it() -> None:
    contents = objects(MetricRecord({"n": COUNT, "f": 0.5})).values()
    assert sum(leak_counts.anywhere(content, COUNT) for content in contents) == 1
    assert "record" not in leak_counts.forms(5)


@pytest.mark.parametrize(
    "written",
    [
        str(COUNT).encode(),
        dumps(COUNT),
        dumps({"n": [1, COUNT]}),
        struct.pack("<q", COUNT),
        struct.pack(">q", COUNT),
        struct.pack("<d", COUNT),
        struct.pack(">d", COUNT),
    ],
    ids=["text", "CBOR", "CBOR in a map", "int64", "int64, big", "float64", "float64, big"],
)
def test_long_forms_are_found_anywhere(written: bytes) -> None:
    assert leak_counts.anywhere(NOISE + written + NOISE, COUNT) == 1
    assert leak_counts.anywhere(NOISE + written[:-1], COUNT) == 0


@pytest.mark.parametrize(
    "value",
    [
        COUNT,
        float(COUNT),
        struct.unpack("<f", struct.pack("<f", COUNT))[0],
        [1, 2, COUNT],
        dumps({"header": [1, [COUNT]]}),
        dumps([dumps([COUNT])]),
        struct.pack("<I", COUNT),
        struct.pack(">I", COUNT) + b"tail",
        struct.pack("<f", COUNT),
        b"\x08" + leak_counts.varint(COUNT),
    ],
)
def test_records_are_read_number_by_number(value: object) -> None:
    assert leak_counts.in_values([b"other", 5, "text", value], COUNT) >= 1
    assert leak_counts.in_values([b"other", 5, "text", 0.5, NOISE, (1 << 28) - 1], COUNT) == 0


@pytest.mark.parametrize(
    "field",
    [
        b"\x08" + leak_counts.varint(COUNT),
        b"\x15" + struct.pack("<I", COUNT),
        b"\x1d" + struct.pack("<f", COUNT),
    ],
)
def test_a_field_of_a_protobuf_message_is_a_number(field: bytes) -> None:
    assert leak_counts.in_body(NOISE[:1000] + field + NOISE[:1000], COUNT) == 1
    assert leak_counts.in_body(NOISE[:1000] + field[1:] + NOISE[:1000], COUNT) == 0
