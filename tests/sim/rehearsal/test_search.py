"""A search for secrets and counts finds them in any place and writing, and nothing by chance."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.wire.canonical import dumps
from flhe_lab.rehearsal import counts as leak_counts
from flhe_lab.rehearsal.search import KEY, WINDOW, Search, Secrets, share_seen
from flhe_lab.rehearsal.writings import decoded, of_update, printed
from tests.sim.rehearsal.captured import objects

# --- any eight bytes of a secret, in any place, and nothing else ---

SECRET = random.Random(1).randbytes(64)
NOISE = random.Random(2).randbytes(4096)
APART = bytes(set(range(256)) - set(SECRET))[:1]
"""A byte that is not in the secret: noise beside a part of it may go on as the secret does."""


def secrets_of(**kinds: bytes) -> Secrets:
    secrets = Secrets()
    for kind, secret in kinds.items():
        secrets.add(kind, secret)
    return secrets


SEARCH = Search(secrets_of(key=SECRET, other=random.Random(3).randbytes(1000)))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 64 - WINDOW),
    st.integers(WINDOW, 64),
    st.integers(0, 4096),
    st.sampled_from([bytes, base64.b64encode, base64.urlsafe_b64encode]),
    st.binary(max_size=3),
)
def test_a_part_of_a_secret_is_found_wherever_it_stands(
    start: int, length: int, at: int, writing: Callable[[bytes], bytes], before: bytes
) -> None:
    """Of base64 in the middle of longer text too, at any alignment."""
    part = SECRET[start : start + length]
    data = NOISE[:at] + b" " + writing(before + part) + b" " + NOISE[at:]
    (found,) = SEARCH.find([("here", data)])
    assert (found.kind, found.place) == ("key", "here")
    # What stands before it, or follows the last letter, may be the secret's next byte.
    assert 0 <= found.count - (len(part) - WINDOW + 1) <= len(before) + 2


def test_zeros_and_small_numbers_are_everywhere() -> None:
    search = Search(secrets_of(key=bytes(64) + b"\x01\x00\xff" * 30 + SECRET))
    assert search.find([("plain", bytes(64) + b"\x01\x00\xff" * 30)]) == []
    assert search.find([("secret", SECRET)])[0].count == 57


def test_share_seen_is_that_of_windows() -> None:
    assert share_seen(SECRET, [NOISE, b"x" + SECRET]) == 1.0
    assert share_seen(SECRET, [SECRET[:32], SECRET[32:]]) == 50 / 57  # seven go over the border
    assert share_seen(SECRET, [NOISE]) == 0.0


def test_keys_are_looked_for_backwards_and_long_secrets_are_not() -> None:
    key, vector = NOISE[:KEY], NOISE[KEY : 3 * KEY]
    search = Search(secrets_of(key=key, vector=vector))
    (found,) = search.find([("here", vector[::-1] + key[::-1])])
    assert (found.kind, found.count) == ("key", KEY - WINDOW + 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 64), st.integers(0, WINDOW - 1), st.integers(0, 4096))
def test_seven_bytes_are_chance(start: int, length: int, at: int) -> None:
    part = APART + SECRET[start : start + length] + APART
    assert SEARCH.find([("here", NOISE[:at] + part + NOISE[at:])]) == []


def test_each_place_and_kind_is_told_apart() -> None:
    search = Search(secrets_of(one=SECRET[:16], two=SECRET[20:40]))
    places = [("a", NOISE), ("b", SECRET[:20] + b"-" + SECRET[20:]), ("empty", b"")]
    assert [(f.kind, f.place, f.count) for f in search.find(places)] == [
        ("one", "b", 9),
        ("two", "b", 13),
    ]
    assert Search(Secrets()).find(places) == []


def test_secrets_do_not_show_themselves_and_must_be_long_enough() -> None:
    secrets = secrets_of(key=SECRET, none=b"")
    secrets.add("key", SECRET, b"")
    assert repr(secrets) == "Secrets(key: 1, none: 0)"
    with pytest.raises(ConfigError, match="a secret of 7 bytes"):
        secrets.add("short", b"1234567")


# --- all the ways in which bytes are written into logs and messages ---

SHORT, AROUND = SECRET[:32], NOISE[:512]


def octal(data: bytes) -> bytes:
    return "".join(f"\\{byte:03o}" for byte in data).encode()


WRITINGS: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda s: s.hex().encode(),
    "HEX": lambda s: s.hex().upper().encode(),
    "hex with colons": lambda s: s.hex(":").encode(),
    "HEX, a hexdump": lambda s: s.hex(" ", 2).upper().encode(),
    "C": lambda s: ", ".join(f"0x{byte:02x}" for byte in s).encode(),
    "hex integer": lambda s: hex(int.from_bytes(s, "little")).encode(),
    "repr": lambda s: repr(s).encode(),
    "repr in JSON": lambda s: json.dumps(repr(s)).encode(),
    "JSON text": lambda s: json.dumps(s.decode("latin-1")).encode(),
    "\\xNN": lambda s: "".join(f"\\x{byte:02x}" for byte in s).encode(),
    "protobuf text": octal,
    "list": lambda s: str(list(s)).encode(),
    "JSON list": lambda s: json.dumps(list(s), separators=(",", ":")).encode(),
    "numpy": lambda s: str(np.frombuffer(s, np.uint8)).encode(),
    "signed list": lambda s: str(np.frombuffer(s, np.int8).tolist()).encode(),
    "base64 in lines": lambda s: base64.encodebytes(s * 4),
    "backwards": lambda s: s[::-1],
}


def search_for(*secrets: bytes) -> Search:
    held = Secrets()
    held.add("key", *secrets)
    return Search(held)


ALONE = search_for(SHORT)


@pytest.mark.parametrize("how", WRITINGS)
def test_a_key_is_found_however_it_is_written(how: str) -> None:
    """All windows of it, but for those over the borders of numpy's lines and of `\\`."""
    for secret, found in ((SHORT, 1), (NOISE[-32:], 0)):
        data = AROUND + b" " + WRITINGS[how](secret) + b" " + AROUND
        seen = ALONE.find([("here", data)])
        assert len(seen) == found
        assert all(each.count >= 32 - WINDOW + 1 for each in seen)


@given(st.binary(max_size=200))
def test_whatever_stands_there_is_read_without_errors(data: bytes) -> None:
    for text in (data, repr(data).encode(), base64.b85encode(data)):
        list(decoded(text))
    assert list(decoded(b"short" + bytes(1000))) == []


UPDATE = np.random.default_rng(5).uniform(-(2.0**-6), 2.0**-6, 500).astype(np.float32)
VECTORS: dict[str, Callable[[np.ndarray], bytes]] = {
    "float32": lambda u: u.tobytes(),
    "big-endian": lambda u: u.astype(">f4").tobytes(),
    "float64": lambda u: u.astype(np.float64).tobytes(),
    "float16": lambda u: u.astype(np.float16).tobytes(),
    "negated": lambda u: (-u).tobytes(),
    "negated float64": lambda u: (-u).astype(np.float64).tobytes(),
    "in units of the threshold": lambda u: (u / np.float32(2.0**-6)).tobytes(),
    "repr": lambda u: repr(u.tolist()).encode(),
    "str": lambda u: np.array2string(u, threshold=10**6).encode(),
    "JSON": lambda u: json.dumps([float(x) for x in u]).encode(),
    "six digits": lambda u: " ".join(f"{x:.5e}" for x in u).encode(),
    "CSV": lambda u: "\n".join(f"{i},{x:.9f}" for i, x in enumerate(u)).encode(),
}


@pytest.mark.parametrize("how", VECTORS)
def test_a_part_of_an_update_is_found_in_any_type_and_in_print(how: str) -> None:
    search = search_for(*of_update(UPDATE, 2.0**-6))
    (found,) = search.find([("here", AROUND + VECTORS[how](UPDATE[200:300]))])
    assert found.count > 50
    other = np.random.default_rng(6).uniform(-(2.0**-6), 2.0**-6, 1000).astype(np.float32)
    assert search.find([("here", VECTORS[how](other))]) == []


@given(st.floats(1e-30, 1e30), st.booleans())
def test_printed_numbers_are_compared_by_six_digits(value: float, negative: bool) -> None:
    x = np.float32(-value if negative else value)
    text = np.array([float(f"{x:.8e}")])
    assert np.isclose(np.frombuffer(printed(np.array([x])), "<f4")[0], x, rtol=1e-5)
    assert len(printed(text)) == 4
    assert printed(np.array([0.0, np.inf, np.nan])) == bytes(4)


# --- example counts are found in any place, and nowhere by chance ---

COUNT = (1 << 28) - 1_000_004
LONG = random.Random(1).randbytes(1 << 20)


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
def test_counts_are_found_anywhere(written: bytes) -> None:
    assert leak_counts.anywhere(LONG + written + LONG, COUNT) == 1
    assert leak_counts.anywhere(LONG + written[:-1], COUNT) == 0
