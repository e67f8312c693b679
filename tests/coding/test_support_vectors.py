"""Supports, a second time: strings of zeros and ones, CBOR by hand, and the vectors.

The second implementation knows the format and nothing of the library. It reads as well as writes, so
that what must be refused is refused here first, at the same step.

    python -m tests.coding.test_support_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from flhe import errors
from flhe.coding.support import Support

FILE = pathlib.Path(__file__).parents[1] / "vectors/support.json"

Item = int | bytes | str | list[Any]


def cbor(item: Item) -> bytes:
    """Canonical CBOR of whole numbers, bytes, text and lists of them."""
    if isinstance(item, int):
        return _head(0, item)
    if isinstance(item, bytes):
        return _head(2, len(item)) + item
    if isinstance(item, str):
        return _head(3, len(item.encode())) + item.encode()
    return _head(4, len(item)) + b"".join(map(cbor, item))


def _head(major: int, n: int) -> bytes:
    if n < 24:
        return bytes([32 * major + n])
    power = next(k for k in range(4) if n < 256 ** (2**k))
    return bytes([32 * major + 24 + power]) + n.to_bytes(1 << power, "big")


# --- supports, in strings of zeros and ones ---


def octets(bits: str) -> bytes:
    """Eight characters a byte, the first its lowest bit; the last byte's unused bits are zero."""
    return bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))


def characters(data: bytes) -> str:
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def start(kind: int, count: int) -> bytes:
    return bytes([kind, *count.to_bytes(4, "big")])


def bitmap(coords: list[int], length: int) -> bytes:
    members = set(coords)
    return start(0, len(coords)) + octets("".join("01"[d in members] for d in range(length)))


def skipped(coords: list[int]) -> list[int]:
    return [here - before - 1 for before, here in zip([-1, *coords], coords, strict=False)]


def rice(coords: list[int], p: int) -> bytes:
    def code(gap: int) -> str:
        zeros, low = gap >> p, gap % (1 << p)
        return "0" * zeros + "1" + "".join(str(low >> i & 1) for i in range(p))

    return start(1 + p, len(coords)) + octets("".join(map(code, skipped(coords))))


def coded(coords: list[int], length: int) -> bytes:
    """The one encoding: the shorter of the bitmap and the best Rice code; the bitmap where they tie."""
    costs = [sum(gap // 2**p + 1 + p for gap in skipped(coords)) for p in range(32)]
    best = costs.index(min(costs))
    if -(-length // 8) <= -(-costs[best] // 8):
        return bitmap(coords, length)
    return rice(coords, best)


def digest(data: bytes, length: int) -> bytes:
    return hashlib.sha256(cbor(["flhe/v1/support", length, data])).digest()


def rice_read(bits: str, p: int, count: int) -> list[int] | None:
    """So many coordinates; None where the bits are of fewer or of more, or are padded by ones."""
    coords: list[int] = []
    for _ in range(count):
        zeros, one, bits = bits.partition("1")
        low, bits = bits[:p], bits[p:]
        if not one or len(low) < p:
            return None
        following = coords[-1] + 1 if coords else 0
        coords.append(following + len(zeros) * 2**p + int(low[::-1] or "0", 2))
    return None if len(bits) > 7 or "1" in bits else coords


def refused(data: bytes, length: int) -> str:
    """The step at which `data` is refused; "" for an encoding."""
    most = -(-length // 8)
    if not 5 <= len(data) <= 5 + most:
        return "size"
    kind, count, bits = data[0], int.from_bytes(data[1:5], "big"), characters(data[5:])
    coords: list[int] | None
    if kind == 0:
        step, coords = "bitmap", [d for d, bit in enumerate(bits) if bit == "1"]
        if len(bits) != 8 * most or len(coords) != count:
            return step
    elif kind > 32:
        return "kind"
    elif count > length or count * kind > len(bits):  # a code takes a one and its parameter's bits
        return "room"
    else:
        step, coords = "code", rice_read(bits, kind - 1, count)
    if coords is None or coords[-1:] >= [length]:
        return step
    return "" if coded(coords, length) == data else "shortest"


STEPS = {
    "size": "are accepted",
    "bitmap": "the bitmap is not one of",
    "kind": "does not exist",
    "room": "more coordinates than it has room for",
    "code": "the code is cut short, runs on or leaves the layout",
    "shortest": "a longer encoding than its set needs",
}
"""What a data is held against, in this order, and what the library says of it."""


# --- vectors ---


def chosen(length: int, share: float, salt: int) -> list[int]:
    """About this share of the coordinates, by hashes of their numbers."""
    hashes = (hashlib.sha256(f"{salt} {d}".encode()).digest() for d in range(length))
    return [d for d, h in enumerate(hashes) if int.from_bytes(h[:4], "big") < share * 2**32]


def positives() -> list[dict[str, Any]]:
    most = 2**31 - 1
    sets: list[tuple[str, int, list[int]]] = [
        ("nothing of nothing", 0, []),
        ("none of one", 1, []),
        ("one of one", 1, [0]),
        ("none", 100, []),
        ("all", 100, list(range(100))),
        ("all but the first", 100, list(range(1, 100))),
        ("all but the last", 100, list(range(99))),
        ("the first", 100, [0]),
        ("the last", 100, [99]),
        ("both ends", 100, [0, 99]),
        ("a tie in bytes: the bitmap", 8, [3]),
        ("one coordinate more, and Rice is shorter", 9, [3]),
        ("two parameters tie: the lower", 100, [9]),
        ("the first of the most there can be", most, [0]),
        ("the last of the most there can be", most, [most - 1]),
        ("the most there can be, far apart", most, [0, 2**16, 2**30, most - 1]),
        ("a cluster", 1000, list(range(500, 540))),
        ("a cluster at the start", 1000, list(range(40))),
        ("a cluster at the end", 1000, list(range(960, 1000))),
        ("two clusters", 1000, [*range(100, 120), *range(900, 930)]),
        ("every other", 200, list(range(0, 200, 2))),
        ("every third", 200, list(range(2, 200, 3))),
        ("every tenth", 500, list(range(0, 500, 10))),
        ("three hundred zeros, then a run", 400, list(range(300, 350))),
    ]
    sets += [("all, around a word", n, list(range(n))) for n in (7, 8, 9, 63, 64, 65, 129)]
    for salt, (length, share) in enumerate(
        [
            *[(64, 0.5), (65, 0.25), (333, 0.9), (500, 0.4), (500, 0.3), (500, 0.2), (500, 0.1)],
            *[(800, 0.05), (1500, 0.02), (2500, 0.01), (3000, 0.005), (6000, 0.003)],
            (20_000, 0.0005),
        ]
    ):
        sets.append((f"a random {share:.2%}", length, chosen(length, share, salt)))
    cases = []
    for name, length, coords in sets:
        data = coded(coords, length)
        cases.append(
            {
                "name": name,
                "length": length,
                "coords": coords,
                "data": data.hex(),
                "digest": digest(data, length).hex(),
            }
        )
    return cases


def negatives() -> list[dict[str, Any]]:
    nine = rice([9], 2)  # 00110: two zeros, a one, the low bits of nine
    half = chosen(64, 0.5, 0)
    wrong: list[tuple[str, int, bytes]] = [
        ("nothing at all", 100, b""),
        ("too short for its count", 100, bytes(4)),
        ("longer than the bitmap", 100, start(0, 0) + bytes(14)),
        ("a code longer than the bitmap", 64, rice(half, 2)),
        ("a byte after the empty set of nothing", 0, start(0, 0) + b"\0"),
        ("no such parameter", 100, start(33, 1) + b"\1"),
        ("no such kind", 100, start(255, 1) + b"\1"),
        ("a bitmap of fewer than it says", 100, start(0, 51) + bitmap(list(range(50)), 100)[5:]),
        ("a bitmap of more than it says", 100, start(0, 49) + bitmap(list(range(50)), 100)[5:]),
        ("one of nothing", 0, start(0, 1)),
        ("a bitmap's coordinate beyond the length", 100, bitmap([*range(0, 100, 2), 100], 101)),
        ("a bitmap's padding", 100, start(0, 5) + bytes(12) + b"\xf1"),
        ("a bitmap that lacks a byte", 100, start(0, 96) + b"\xff" * 12),
        ("more codes than bits", 100, start(1, 9) + b"\xff"),
        ("as many codes as can be said", 100, start(1, 2**32 - 1) + b"\1"),
        ("more codes than coordinates", 100, start(1, 101) + b"\xff" * 13),
        ("parameters make no room", 100, start(32, 1) + b"\1\0\0"),
        ("codes of fewer than it says", 100, start(1, 2) + b"\1"),
        ("codes of more than it says", 100, start(1, 1) + b"\3"),
        ("padding after the code", 100, nine[:-1] + bytes([nine[-1] | 0x80])),
        ("a byte after the code", 100, nine + b"\0"),
        ("a byte after no code", 100, start(1, 0) + b"\0"),
        ("zeros that never end", 100, start(1, 1) + bytes(13)),
        ("cut in the low bits", 100, start(4, 1) + b"\x80"),
        ("a coordinate just beyond the length", 100, rice([100], 4)),
        ("the second beyond the length", 100, rice([50, 100], 5)),
        ("far beyond the length", 100, rice([2**31 + 5], 31)),
        ("far beyond, past 32 bits", 100, rice([9 << 31], 31)),
        ("a parameter too low", 100, rice([9], 1)),
        ("a parameter too high by a tie", 100, rice([9], 3)),
        ("any parameter but 0 of the empty set", 100, rice([], 7)),
        ("a code of the empty set of nothing", 0, rice([], 0)),
        ("a bitmap where a code is shorter", 100, bitmap([9], 100)),
        ("a code where the bitmap is as short", 8, rice([3], 0)),
        ("a code where the bitmap is as short, of many", 64, rice([*half, 63], 0)),
    ]
    return [
        {
            "name": name,
            "length": length,
            "data": data.hex(),
            "at": refused(data, length),
            "error": "ProtocolError",
        }
        for name, length, data in wrong
    ]


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/coding/test_support_vectors.py, from strings of zeros and ones",
        "cases": positives() + negatives(),
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []
GOOD = [case for case in CASES if "error" not in case]
BAD = [case for case in CASES if "error" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def test_the_file_has_what_it_should() -> None:
    kinds = {int(case["data"][:2], 16) for case in GOOD}
    assert kinds >= {0, *(1 + p for p in range(9)), 31}
    assert {case["at"] for case in BAD} == set(STEPS)
    for case in GOOD:
        assert refused(bytes.fromhex(case["data"]), case["length"]) == ""


@pytest.mark.parametrize("case", GOOD, ids=lambda c: f"{c['name']}-{c['length']}")
def test_vector(case: dict[str, Any]) -> None:
    coords, data = case["coords"], bytes.fromhex(case["data"])
    written = Support.of(np.array(coords, np.uint32), case["length"])
    assert written.data == data
    read = Support.from_bytes(data, case["length"])
    assert read == written
    assert read.coords.tolist() == coords
    for support in (written, read):
        assert support.count == len(coords)
        assert support.digest().hex() == case["digest"]


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['name']}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    with pytest.raises(errors.ProtocolError, match=STEPS[case["at"]]) as caught:
        Support.from_bytes(bytes.fromhex(case["data"]), case["length"])
    assert type(caught.value).__name__ == case["error"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()).replace('{"name"', '\n{"name"') + "\n")
