"""Sparse FLASHE, a second time: every mask by itself, sums by dictionaries; the vectors.

The second implementation knows the protocol and nothing of the library. A vector is a dictionary from
places to numbers: coordinate d is place d, extra e is place `length` + e, and a mask belongs to a
sender and a place. Opening takes the senders of each place one by one: nothing telescopes.

    python -m tests.schemes.test_flashe_sparse_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.sparse import covered
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.mean_squares import fitted_layout, own_layout
from flhe.training.session import Session
from tests.coding.test_support_vectors import cbor, coded, digest, octets, rice
from tests.math.test_permutation_vectors import FAR, GROUP_KEY, NEAR, block, context, hkdf

FILE = pathlib.Path(__file__).parents[1] / "vectors/flashe_sparse.json"

Vector = dict[int, int]
"""Numbers by their places."""


@dataclass(frozen=True)
class Second:
    """Our sparse FLASHE in Python integers.

    Parameters
    ----------
    cohort, bits, masking
        As for `Flashe`.
    mode : str
        What is announced; "" where the masking is fixed.
    length : int
        Coordinates of the layout.
    slot : dict
        The round.
    """

    cohort: int
    bits: int
    masking: str
    mode: str
    length: int
    slot: Any = None

    @property
    def b(self) -> int:
        return self.bits + next(more for more in range(11) if 2**more >= self.cohort)

    @property
    def context(self) -> list[Any]:
        return context(self.slot or NEAR)

    def round_key(self) -> bytes:
        return hkdf(GROUP_KEY, "flashe", *self.context, self.mode or self.masking, self.b)

    def masks(self, j: int, places: list[int]) -> Vector:
        key, width, n = self.round_key(), 4 if self.b <= 32 else 8, 1 << self.b

        def f(stream: int, place: int) -> int:
            number, at = divmod(place * width, 16)
            return int.from_bytes(block(key, stream, number)[at : at + width], "little") % n

        if (self.mode or self.masking) == "single":
            return {place: f(j, place) for place in places}
        return {place: (f(j, place) - f(j + 1, place)) % n for place in places}

    def encrypt(self, j: int, plain: Vector) -> Vector:
        masks = self.masks(j, list(plain))
        return {place: (m + masks[place]) % (1 << self.b) for place, m in plain.items()}

    def open(self, parts: dict[int, Vector]) -> Vector:
        """The sum of these senders' ciphertexts, opened; what is read of each is its places only."""
        total = added(list(parts.values()), self.b)
        for j, part in parts.items():
            for place, mask in self.masks(j, list(part)).items():
                total[place] -= mask
        half = 1 << (self.b - 1)
        return {place: (t + half) % (2 * half) - half for place, t in total.items()}

    def pack(self, vector: Vector) -> bytes:
        lanes = [vector[place] for place in sorted(vector)]
        word = 32 if self.b <= 32 else 64
        out = b""
        while len(lanes) >= 256 * word:
            grid = [[0] * 256 for _ in range(self.b + 1)]  # words of 256 columns, and one to spill
            for i, lane in enumerate(lanes[: 256 * word]):
                row, column = divmod(i, 256)
                k, shift = divmod(row * self.b, word)
                grid[k][column] |= lane << shift & (1 << word) - 1
                grid[k + 1][column] |= lane >> (word - shift)
            out += b"".join(w.to_bytes(word // 8, "little") for row in grid[:-1] for w in row)
            lanes = lanes[256 * word :]
        return out + octets("".join(f"{lane:0{self.b}b}"[::-1] for lane in lanes))

    def support(self, vector: Vector) -> bytes:
        return coded(sorted(d for d in vector if d < self.length), self.length)

    def header(
        self, senders: list[int], size: int, supports: list[bytes], /, **other: Any
    ) -> bytes:
        told = [[self.length, len(data), digest(data, self.length)] for data in supports]
        fields = {
            "version": 2,
            "scheme": "flashe",
            "mode": self.mode,
            "slot": self.context,
            "senders": senders,
            "length": size,
            "supports": told,
        }
        return cbor(list((fields | other).values()))

    def message(self, parts: dict[int, Vector], /, **other: Any) -> dict[str, str]:
        """Header and body of a closed sum, or with one sender of its ciphertext."""
        total = added(list(parts.values()), self.b)
        supports = [self.support(part) for part in parts.values()]
        header = self.header(list(parts), len(total), supports, **other)
        return {"header": header.hex(), "body": (self.pack(total) + b"".join(supports)).hex()}


def added(vectors: list[Vector], bits: int) -> Vector:
    total: Vector = {}
    for vector in vectors:
        for place, number in vector.items():
            total[place] = (total.get(place, 0) + number) % (1 << bits)
    return total


# --- vectors ---


def numbers(count: int, bits: int, salt: int) -> list[int]:
    """Values that fill the space, its ends first."""
    most = 2 ** (bits - 1) - 1
    spread = [((i + salt) * 0x9E3779B97F4A7C15 >> 11) % (2 * most + 1) - most for i in range(count)]
    return [most, -most, *spread][:count]


def sieve(length: int, rank: int) -> list[int]:
    """Coordinates of a vector too long to write down."""
    return [d for d in range(length) if d % (rank + 3)]


Sets = dict[int, list[int]]
"""Coordinates by rank."""


def hashed(values: list[int]) -> str:
    return hashlib.sha256(
        b"".join(v.to_bytes(8, "little", signed=True) for v in values)
    ).hexdigest()


def positive(
    name: str, second: Second, sets: Sets, extras: int, sums: list[list[int]]
) -> dict[str, Any]:
    """One case of the file; a long one has hashes instead of lists."""
    long = second.length > 1000 and all(s == sieve(second.length, j) for j, s in sets.items())
    behind = range(second.length, second.length + extras)
    sealed: dict[int, Vector] = {}
    plains: dict[int, Vector] = {}
    parts = []
    for j, coords in sets.items():
        values = numbers(len(coords), second.bits, j)
        rest = numbers(extras, second.bits, 100 + j)
        plains[j] = dict(zip([*coords, *behind], values + rest, strict=True))
        sealed[j] = second.encrypt(j, plains[j])
        packed, support = second.pack(sealed[j]), second.support(sealed[j])
        part: dict[str, Any] = {"rank": j}
        if long:
            part["coords"] = "d below length with d mod (rank + 3) > 0"
            part["values"] = (
                "numbers(count, bits, rank), by tests/schemes/test_flashe_sparse_vectors.py"
            )
        else:
            part |= {"coords": coords, "values": values}
        part["extras"] = rest
        part["support"] = hashlib.sha256(support).hexdigest() if long else support.hex()
        part["ciphertext"] = hashlib.sha256(packed).hexdigest() if long else packed.hex()
        parts.append(part)
    told = []
    for senders in sums:
        chosen = {j: sealed[j] for j in senders}
        total = added(list(chosen.values()), second.b)
        supports = [second.support(part) for part in chosen.values()]
        data, header = second.pack(total), second.header(senders, len(total), supports)
        coords = sorted(d for d in total if d < second.length)
        counts = [sum(d in part for part in chosen.values()) for d in coords]
        opened = second.open(chosen)
        in_plain = [sum(plains[j].get(place, 0) for j in senders) for place in sorted(total)]
        assert [opened[place] for place in sorted(opened)] == in_plain
        told.append(
            {
                "senders": senders,
                "data": hashlib.sha256(data).hexdigest() if long else data.hex(),
                "header": header.hex(),
                "digest": hashlib.sha256(header + data).hexdigest(),
                "coords": hashed(coords) if long else coords,
                "counts": hashed(counts) if long else counts,
                "opened": hashed(in_plain) if long else in_plain,
            }
        )
    return {
        "name": name,
        **({"hashed": True} if long else {}),
        "cohort": second.cohort,
        "bits": second.bits,
        "masking": second.masking,
        "mode": second.mode,
        "key": GROUP_KEY.hex(),
        "slot": second.slot or NEAR,
        "lane_bits": second.b,
        "round_key": second.round_key().hex(),
        "length": second.length,
        "extras": extras,
        "parts": parts,
        "sums": told,
    }


SETS: Sets = {  # coordinate 9 has a gap at 2, 0 and 5 have nobody between, 7 and 8 have nobody
    0: [0, 1, 2, 5, 9, 19],
    1: [1, 2, 6, 9, 10, 19],
    2: [2, 3, 5, 10, 19],
    3: [0, 2, 4, 9, 19],
}


def positives() -> list[dict[str, Any]]:
    cases = []
    ways = [("double", ""), ("single", ""), ("adaptive", "double"), ("adaptive", "single")]
    three = {j: SETS[j] for j in (0, 1, 2)}
    for bits, (masking, mode) in zip([16, 16, 8, 8, 31, 31], [*ways, *ways[:2]], strict=True):
        second = Second(4, bits, masking, mode, 20)
        sums = [[0], [0, 2], [0, 1, 3], [0, 1, 2, 3]]
        cases.append(positive("runs and gaps", second, SETS, 2, sums))
    for masking, mode in ways[2:]:
        second = Second(3, 31, masking, mode, 20)
        cases.append(positive("three of them", second, three, 1, [[1], [1, 2], [0, 1, 2]]))
        second = Second(2, 31, masking, mode, 20)
        two = {0: SETS[0], 1: SETS[1]}
        cases.append(positive("32 bits exactly", second, two, 1, [[1], [0, 1]]))
        second = Second(3, 16, masking, mode, 12)
        ends: Sets = {0: [], 1: list(range(12)), 2: [7]}
        cases.append(positive("none, all and one", second, ends, 3, [[0], [0, 2], [0, 1, 2]]))
        second = Second(3, 8, masking, mode, 12)
        cases.append(positive("no extras", second, {0: [], 2: [0, 11]}, 0, [[0], [0, 2]]))
        second = Second(1024, 16, masking, mode, 20, FAR)
        wide = {0: SETS[0], 1: SETS[1], 255: SETS[2], 1023: SETS[3]}
        cases.append(positive("ranks far apart", second, wide, 2, [[1, 1023], list(wide)]))
        second = Second(3, 16, masking, mode, 140_000)
        edges = [0, 8191, 8192, 65_535, 65_536, 65_537, 131_071, 131_072, 139_999]
        spread = {0: edges, 1: edges[1:], 2: [e + 1 for e in edges[:-1]]}
        cases.append(positive("far along the stream", second, spread, 3, [[0, 2], [0, 1, 2]]))
    second = Second(3, 16, "adaptive", "double", 12_000)
    sieves = {j: sieve(12_000, j) for j in range(3)}
    cases.append(positive("whole blocks of 32 bits", second, sieves, 5, [[1], [0, 2], [0, 1, 2]]))
    second = Second(3, 31, "adaptive", "single", 20_000)
    sieves = {j: sieve(20_000, j) for j in range(2)}
    cases.append(positive("whole blocks of 64 bits", second, sieves, 5, [[0, 1]]))
    return cases


DOUBLE, SINGLE = (Second(4, 16, "adaptive", mode, 20) for mode in ("double", "single"))


def vector(second: Second, rank: int, extras: int = 2) -> Vector:
    """A sender's ciphertext, of ones."""
    places = [*SETS[rank % 4], *range(second.length, second.length + extras)]
    return second.encrypt(rank, dict.fromkeys(places, 1))


def sender(second: Second, rank: int, extras: int = 2, **other: Any) -> dict[str, str]:
    return second.message({rank: vector(second, rank, extras)}, **other)


def dense(second: Second, rank: int) -> dict[str, str]:
    """Everything that there is, without a support."""
    lanes = second.encrypt(rank, dict.fromkeys(range(second.length + 2), 1))
    header = second.header([rank], len(lanes), [])
    return {"header": header.hex(), "body": second.pack(lanes).hex()}


Negative = tuple[str, str, str, list[dict[str, str]]]
"""Name, error, what the library says of it, messages: the last of them is refused."""


def not_read() -> list[Negative]:
    good = {j: vector(DOUBLE, j) for j in (0, 1, 3)}
    total = DOUBLE.message(good)
    size = len(added(list(good.values()), DOUBLE.b))
    supports = [DOUBLE.support(part) for part in good.values()]
    data = bytes.fromhex(total["body"])[: -len(b"".join(supports))]
    told: list[Any] = [[20, len(s), digest(s, 20)] for s in supports]
    other = coded([0, 1, 2, 5, 9, 18], 20)
    shifted = [told[0], [20, len(supports[1]) - 1, told[1][2]], told[2]]
    longer = [told[0], told[1], [21, *told[2][1:]]]
    loose = rice(SETS[3], 0)
    header = bytes.fromhex(total["header"])

    def with_header(**changed: Any) -> dict[str, str]:
        return total | {"header": DOUBLE.header([0, 1, 3], size, supports, **changed).hex()}

    def with_body(*pieces: bytes) -> dict[str, str]:
        return total | {"body": b"".join(pieces).hex()}

    fields = [2, "flashe", "double", DOUBLE.context, [0, 1, 3], size, told]
    wrong: list[tuple[str, str, dict[str, str]]] = [
        ("a support that is not the header's", "not the one", with_body(data, other, *supports[1:])),
        ("two supports change places", "not the one", with_body(data, *supports[1::-1], supports[2])),
        ("a digest of another support", "not the one", with_header(
            supports=[[20, len(other), digest(other, 20)], *told[1:]])),
        ("a digest over another length", "not the one", with_header(
            supports=[[20, told[0][1], digest(supports[0], 21)], *told[1:]])),
        ("no body", "cut short", with_body()),
        ("less than the supports", "cut short", with_body(b"".join(supports)[1:])),
        ("the last byte is missing", "support", with_body(data, b"".join(supports)[:-1])),
        ("the last support is missing", "support", with_body(data, *supports[:-1])),
        ("a byte behind the supports", "support", with_body(data, *supports, b"\0")),
        ("a support said to be shorter", "support", with_header(supports=shifted)),
        ("a support longer than it need be", "longer encoding", {
            "header": DOUBLE.header([0, 1, 3], size, [*supports[:2], loose]).hex(),
            "body": b"".join([data, *supports[:2], loose]).hex()}),
        ("a support of a longer vector", "support", with_header(supports=longer)),
        ("supports of vectors of two lengths", "different lengths", {
            "header": DOUBLE.header([0, 1], 12, [], supports=[
                told[0], [21, len(coded(SETS[1], 21)), digest(coded(SETS[1], 21), 21)]]).hex(),
            "body": b"".join([data, supports[0], coded(SETS[1], 21)]).hex()}),
        ("fewer supports than senders", "one support for each", {
            "header": DOUBLE.header([0, 1, 3], size, supports[:2]).hex(),
            "body": b"".join([data, *supports[:2]]).hex()}),
        ("more supports than senders", "one support for each", with_header(senders=[0, 1])),
        ("a support without its digest", "malformed support", with_header(
            supports=[told[0][:2], *told[1:]])),
        ("the first version", "another version", with_header(version=1)),
        ("a version to come", "another version", with_header(version=3)),
        ("a header without supports", "malformed", total | {"header": cbor(fields[:-1]).hex()}),
        ("a header of eight fields", "malformed", total | {"header": cbor([*fields, 0]).hex()}),
        ("a byte behind the header", "after the end", total | {"header": header.hex() + "00"}),
        ("a number longer than it need be", "not canonical", total | {
            "header": header.replace(b"\x83\0\1\3", b"\x83\0\1\x18\3", 1).hex()}),
    ]  # fmt: skip
    cases: list[Negative] = [(name, "ProtocolError", says, [m]) for name, says, m in wrong]
    orders: list[tuple[str, dict[str, str]]] = [
        ("senders out of order", with_header(senders=[1, 0, 3])),
        ("a sender twice", with_header(senders=[0, 0, 3])),
        ("no senders", with_header(senders=[], supports=[])),
    ]
    return cases + [(name, "ReuseError", "must ascend", [message]) for name, message in orders]


def not_added() -> list[Negative]:
    wider = Second(4, 16, "adaptive", "double", 21)
    later = Second(4, 16, "adaptive", "double", 20, NEAR | {"round": 4})
    first = sender(DOUBLE, 0)
    both = DOUBLE.message({j: vector(DOUBLE, j) for j in (0, 1)})
    few = {0: dict(sorted(vector(DOUBLE, 0).items())[:5])}
    short = {
        "header": DOUBLE.header([0], 5, [coded(SETS[0], 20)]).hex(),
        "body": (DOUBLE.pack(few[0]) + coded(SETS[0], 20)).hex(),
    }
    wrong: list[tuple[str, str, list[dict[str, str]]]] = [
        ("double, then single", "mode", [first, sender(SINGLE, 1)]),
        ("single, then double", "mode", [sender(SINGLE, 1), first]),
        ("a mode that does not exist", "needs a mode", [first, sender(DOUBLE, 1, mode="triple")]),
        ("no mode", "needs a mode", [first, sender(DOUBLE, 1, mode="")]),
        ("dense after sparse", "one of the two is sparse", [first, dense(DOUBLE, 1)]),
        ("sparse after dense", "one of the two is sparse", [dense(DOUBLE, 1), first]),
        ("of a longer vector", "of another length", [first, sender(wider, 1)]),
        ("with more extras", "another length than the sum", [first, sender(DOUBLE, 1, 3)]),
        ("with fewer extras", "another length than the sum", [first, sender(DOUBLE, 1, 1)]),
        ("of another round", "slot", [first, sender(later, 1)]),
        ("of another scheme", "cannot add", [first, sender(DOUBLE, 1, scheme="eshe")]),
        ("of nobody in the cohort", "not in the cohort", [first, sender(DOUBLE, 4)]),
        ("shorter than its support", "shorter than its supports", [sender(DOUBLE, 1), short]),
        ("a byte short", "ciphertext of", [first, cut(sender(DOUBLE, 1))]),
        ("a byte long", "ciphertext of", [first, grown(sender(DOUBLE, 1))]),
    ]
    cases: list[Negative] = [(name, "ProtocolError", says, told) for name, says, told in wrong]
    again = [("a sender twice", [first, first]), ("in a sum already", [both, sender(DOUBLE, 1)])]
    again += [("a sum that holds it", [sender(DOUBLE, 1), both])]
    return cases + [(name, "ReuseError", "already in the sum", told) for name, told in again]


def not_opened() -> list[Negative]:
    parts = {j: vector(DOUBLE, j) for j in (0, 1, 3)}
    total = DOUBLE.message(parts)
    size = len(added(list(parts.values()), DOUBLE.b))
    supports = [DOUBLE.support(part) for part in parts.values()]
    whole = added(list(parts.values()), DOUBLE.b)
    few = dict(sorted(whole.items())[:-3])  # both extras, and one coordinate
    short = {
        "header": DOUBLE.header([0, 1, 3], size - 3, supports).hex(),
        "body": (DOUBLE.pack(few) + b"".join(supports)).hex(),
    }
    wrong: list[tuple[str, str, dict[str, str]]] = [
        ("a mode that does not exist", "needs a mode", DOUBLE.message(parts, mode="triple")),
        ("no mode", "needs a mode", DOUBLE.message(parts, mode="")),
        ("shorter than its supports", "shorter than its supports", short),
        ("a byte short", "ciphertext of", cut(total)),
        ("a byte long", "ciphertext of", grown(total)),
        (
            "one value too many in its header",
            "ciphertext of",
            DOUBLE.message(parts, length=size + 1),
        ),
        ("of nobody in the cohort", "not in the cohort", DOUBLE.message(parts, senders=[0, 1, 4])),
        ("of another scheme", "cannot open", DOUBLE.message(parts, scheme="eshe")),
    ]
    return [(name, "ProtocolError", says, [message]) for name, says, message in wrong]


def cut(message: dict[str, str]) -> dict[str, str]:
    """Without the first byte of its body: the supports stay whole."""
    return message | {"body": message["body"][2:]}


def grown(message: dict[str, str]) -> dict[str, str]:
    return message | {"body": "00" + message["body"]}


def fixed() -> list[tuple[str, Negative]]:
    """What a scheme of one masking refuses: any mode at all."""
    named, says = sender(SINGLE, 1), "the masking is fixed"
    case: Negative = ("a mode where the masking is fixed", "ProtocolError", says, [named])
    return [("add", case), ("open", case)]


def not_encrypted() -> list[tuple[dict[str, Any], str]]:
    base = {
        "cohort": 4,
        "bits": 16,
        "key": GROUP_KEY.hex(),
        "slot": NEAR,
        "masking": "adaptive",
        "mode": "double",
        "length": 20,
        "rank": 1,
        "coords": [3, 5],
        "values": [1, -1],
        "extras": [7],
        "support": [3, 5],
    }
    other, beyond = "not those of the support", "a value lies beyond"
    wrong: list[tuple[str, str, str, dict[str, Any]]] = [
        ("values of other coordinates", "ProtocolError", other, {"support": [3, 6]}),
        ("values of fewer coordinates", "ProtocolError", other, {"support": [3, 5, 6]}),
        ("no support", "ProtocolError", other, {"support": None}),
        ("a support of a dense vector", "ProtocolError", other, {"coords": None}),
        ("no mode", "ProtocolError", "needs a mode", {"mode": ""}),
        ("a mode that does not exist", "ProtocolError", "needs a mode", {"mode": "triple"}),
        ("a mode that is fixed", "ProtocolError", "the masking is fixed", {"masking": "double"}),
        ("a value beyond the space", "RangeError", beyond, {"values": [1, 32768]}),
        ("an extra beyond the space", "RangeError", beyond, {"extras": [-32768]}),
        ("a slot used twice", "ReuseError", "has encrypted a vector before", {"times": 2}),
    ]
    return [
        ({"name": name, **base, **change, "at": "encrypt", "error": error}, says)
        for name, error, says, change in wrong
    ]


def negatives() -> list[tuple[dict[str, Any], str]]:
    """Cases that must fail, with what the library says of each."""
    steps = [("from_parts", c) for c in not_read()] + [("add", c) for c in not_added()]
    steps += [("open", c) for c in not_opened()]
    told = [("adaptive", step, case) for step, case in steps]
    told += [("single", step, case) for step, case in fixed()]
    base = {"cohort": 4, "bits": 16, "key": GROUP_KEY.hex()}
    return [
        (
            {
                "name": name,
                **base,
                "masking": masking,
                "messages": messages,
                "at": step,
                "error": error,
            },
            says,
        )
        for masking, step, (name, error, says, messages) in told
    ] + not_encrypted()


def derived() -> list[dict[str, Any]]:
    """What a session binds to a round: a sender's check, and layouts of rounds in two stages."""
    cases: list[dict[str, Any]] = []
    model, support = bytes(range(50, 82)), digest(coded(SETS[1], 20), 20)
    for slot in (NEAR, FAR):
        run_id, roster_hash, epoch, *_, layout, history = context(slot)
        bounds: list[list[Any]] = [[], [1, support], [1023, support]]
        for bound in bounds:
            key = hkdf(GROUP_KEY, "check", run_id, roster_hash, epoch, model, *bound)
            case: dict[str, Any] = {
                "name": "check",
                "key": GROUP_KEY.hex(),
                "slot": slot,
                "model": model.hex(),
            }
            if bound:
                case |= {"rank": bound[0], "length": 20, "support": coded(SETS[1], 20).hex()}
            cases.append(case | {"check": int.from_bytes(key[:4], "big") // 2})
        ours = hashlib.sha256(cbor(["flhe/v1/ranges", layout])).hexdigest()
        cases.append({"name": "ranges", "layout_hash": layout.hex(), "becomes": ours})
        after = hashlib.sha256(cbor(["flhe/v1/ranged", layout, history])).hexdigest()
        ranged_ = {"name": "ranged", "layout_hash": layout.hex(), "sum_digest": history.hex()}
        cases.append(ranged_ | {"becomes": after})
    return cases


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/schemes/test_flashe_sparse_vectors.py, every mask by itself",
        "cases": positives() + [case for case, _ in negatives()],
        "derived": derived(),
    }


READ = json.loads(FILE.read_text()) if FILE.exists() else {"cases": [], "derived": []}
GOOD = [case for case in READ["cases"] if "error" not in case]
BAD = [case for case in READ["cases"] if "error" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def plain_of(case: dict[str, Any], part: dict[str, Any]) -> Plain:
    coords, values = part["coords"], part["values"]
    if case.get("hashed"):
        coords = sieve(case["length"], part["rank"])
        values = numbers(len(coords), case["bits"], part["rank"])
    where = None if coords is None else np.array(coords, np.uint32)
    return Plain(np.array(values, np.int32), np.array(part["extras"], np.int32), where)


def scheme_of(case: dict[str, Any]) -> Flashe:
    return Flashe(case["cohort"], case["bits"], case["masking"])


@pytest.mark.parametrize(
    "case", GOOD, ids=lambda c: f"{c['name']}-{c['bits']}-{c['masking']}-{c['mode']}"
)
def test_vector(case: dict[str, Any]) -> None:
    def told(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest() if case.get("hashed") else data.hex()

    def listed(values: list[int]) -> str | list[int]:
        return hashed(values) if case.get("hashed") else values

    scheme, slot, key = scheme_of(case), Slot(*context(case["slot"])), bytes.fromhex(case["key"])
    assert scheme.lane_bits == case["lane_bits"]
    parts = {}
    for part in case["parts"]:
        plain = plain_of(case, part)
        assert plain.coords is not None
        support = Support.of(plain.coords, case["length"])
        sealer = FlasheSealer(scheme, key, part["rank"])
        sealed = sealer.encrypt(plain, slot, mode=case["mode"], support=support)
        assert told(support.data) == part["support"]
        assert told(sealed.data.tobytes()) == part["ciphertext"]
        parts[part["rank"]] = Sealed.from_parts(sealed.header(), whole(sealed))
    for expected in case["sums"]:
        for order in (expected["senders"], expected["senders"][::-1]):
            total = None
            for rank in order:
                total = scheme.add(total, parts[rank])
            assert total is not None
            closed = scheme.close(total)
            assert told(closed.data.tobytes()) == expected["data"]
            assert closed.header().hex() == expected["header"]
            assert closed.digest().hex() == expected["digest"]
        received = Sealed.from_parts(bytes.fromhex(expected["header"]), whole(closed))
        coords = covered(received.supports)
        assert listed(coords.tolist()) == expected["coords"]
        opened = FlasheOpener(scheme, key).decrypt(received)
        assert listed(opened.tolist()) == expected["opened"]


def whole(sealed: Sealed) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(sealed.body()), np.uint8)


SAYS = {(case["at"], case["name"], case["masking"]): says for case, says in negatives()}


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['name']}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    """Each fails at its own step and at its last message; all before it pass."""
    reached = []

    def run() -> None:
        scheme = scheme_of(case)
        if case["at"] == "encrypt":
            encrypt(scheme)
        read = []
        for i, message in enumerate(case["messages"]):
            reached.append(("from_parts", i))
            body = np.frombuffer(bytes.fromhex(message["body"]), np.uint8)
            read.append(Sealed.from_parts(bytes.fromhex(message["header"]), body))
        if case["at"] == "open":
            reached.append(("open", 0))
            FlasheOpener(scheme, bytes.fromhex(case["key"])).decrypt(read[0])
        total = None
        for i, part in enumerate(read):
            reached.append(("add", i))
            total = scheme.add(total, part)

    def encrypt(scheme: Flashe) -> None:
        sealer, support = FlasheSealer(scheme, bytes.fromhex(case["key"]), case["rank"]), None
        if case["support"] is not None:
            support = Support.of(np.array(case["support"], np.uint32), case["length"])
        for i in range(case.get("times", 1)):
            reached.append(("encrypt", i))
            slot = Slot(*context(case["slot"]))
            sealer.encrypt(plain_of(case, case), slot, mode=case["mode"], support=support)

    says = SAYS[case["at"], case["name"], case["masking"]]
    with pytest.raises(errors.FlheError, match=says) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    last = len(case["messages"]) if "messages" in case else case.get("times", 1)
    assert reached[-1] == (case["at"], last - 1)


@pytest.mark.parametrize("case", READ["derived"], ids=lambda c: c["name"])
def test_derivation(case: dict[str, Any]) -> None:
    if case["name"] != "check":
        layout = bytes.fromhex(case["layout_hash"])
        if case["name"] == "ranges":
            ours = own_layout(layout)
        else:
            ours = fitted_layout(layout, bytes.fromhex(case["sum_digest"]))
        assert ours.hex() == case["becomes"]
        return
    slot = Slot(*context(case["slot"]))
    epoch = SimpleNamespace(
        group_key=bytes.fromhex(case["key"]),
        run_id=slot.run_id,
        roster=SimpleNamespace(hash=slot.roster_hash),
        id=slot.epoch,
    )
    member: Any = SimpleNamespace(epoch=epoch, terms=SimpleNamespace(reader="clients"))
    bound: tuple[Any, ...] = ()
    if "support" in case:
        support = Support.from_bytes(bytes.fromhex(case["support"]), case["length"])
        bound = case["rank"], support
    assert Session.check_of(member, bytes.fromhex(case["model"]), *bound) == case["check"]


if __name__ == "__main__":
    text = json.dumps(contents())
    FILE.write_text(text.replace('{"name"', '\n{"name"') + "\n")
