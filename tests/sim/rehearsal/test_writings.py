"""What text stands for is told from all the ways in which bytes are written into logs and messages."""

from __future__ import annotations

import base64
import gzip
import json
import random
import urllib.parse
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe_lab.rehearsal.search import WINDOW, Search, Secrets
from flhe_lab.rehearsal.writings import decoded, of_update, printed

SECRET = random.Random(11).randbytes(32)
NOISE = random.Random(12).randbytes(512)


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
    "integer": lambda s: str(int.from_bytes(s, "big")).encode(),
    "little-endian integer": lambda s: str(int.from_bytes(s, "little")).encode(),
    "base64 in lines": lambda s: base64.encodebytes(s * 4),
    "UTF-8": lambda s: s.decode("latin-1").encode(),
    "percent": lambda s: urllib.parse.quote(s).encode(),
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "backwards": lambda s: s[::-1],
}


def search_for(*secrets: bytes) -> Search:
    held = Secrets()
    held.add("key", *secrets)
    return Search(held)


SEARCH = search_for(SECRET)


@pytest.mark.parametrize("how", WRITINGS)
def test_a_key_is_found_however_it_is_written(how: str) -> None:
    """All windows of it, but for those over the borders of numpy's lines and of `\\`."""
    data = NOISE + b" " + WRITINGS[how](SECRET) + b" " + NOISE
    (found,) = SEARCH.find([("here", data)])
    assert found.count >= 32 - WINDOW + 1
    assert SEARCH.find([("here", NOISE + b" " + WRITINGS[how](NOISE[:32]) + b" " + NOISE)]) == []


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
    (found,) = search.find([("here", NOISE + VECTORS[how](UPDATE[200:300]))])
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
