"""SASH, a second time: Python's integers, masks by products of polynomials term by term; the vectors.

The second implementation knows the protocol and nothing of the library. A mask is a list of rounded
products modulo q; a sum of seeds opens a sum of vectors, by division with the least remainder.

    python -m tests.schemes.test_sash_vectors
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flhe import errors
from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.math.ring import add
from flhe.schemes.sash.generator import public_key
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from tests.coding.test_support_vectors import cbor
from tests.math.test_permutation_vectors import FAR, NEAR, block, context

FILE = pathlib.Path(__file__).parents[1] / "vectors/sash.json"

PRESETS = {"ring-2048": 2048, "lwr-736": 736, "lwr-1024": 1024}
"""Name -> mu."""


Q = 2**64 - 2**32 + 1
P = 2**32


# --- the second implementation ---


def elements(key: bytes, j: int, n: int) -> list[int]:
    """Block j of n field elements: 64-bit words, those that are too large drawn again."""

    def word(stream: int, number: int) -> int:
        pair = block(key, stream, number // 2)
        return int.from_bytes(pair[8 * (number % 2) :][:8], "little")

    again = (word(1 + j, number) for number in itertools.count())
    first = [word(0, j * n + i) for i in range(n)]
    return [x if x < Q else next(y for y in again if y < Q) for x in first]


def nearest(x: int) -> int:
    """x p / q to the nearest whole number, modulo p."""
    return (2 * x * P + Q) // (2 * Q) % P


@functools.lru_cache(maxsize=4)
def polynomial(key: bytes, j: int, n: int) -> list[int]:
    """a_j of the ring form: the one whose values are block j. Fourier's sum, by a table of powers."""
    root, bits = pow(7, (Q - 1) // (2 * n), Q), n.bit_length() - 1
    powers = [1]
    for _ in range(2 * n - 1):
        powers.append(powers[-1] * root % Q)
    values = elements(key, j, n)
    places = [2 * int(f"{i:0{bits}b}"[::-1], 2) + 1 for i in range(n)]
    return [
        sum(v * powers[-place * d % (2 * n)] for v, place in zip(values, places, strict=True))
        * pow(n, -1, Q)
        % Q
        for d in range(n)
    ]


def coefficient(a: list[int], b: list[int], d: int) -> int:
    """Coefficient d of a b modulo x**n + 1, by its definition."""
    n = len(a)
    return sum((a[i] if i <= d else -a[i]) * b[(d - i) % n] for i in range(n)) % Q


@dataclass(frozen=True)
class Second:
    """Our SASH in Python integers.

    Parameters
    ----------
    cohort, bits, preset, unmask
        As for `Sash`.
    slot : dict
        The round.
    """

    cohort: int
    bits: int = 0
    preset: str = "ring-2048"
    unmask: str = "server"
    slot: Any = None

    @property
    def context(self) -> list[Any]:
        return context(self.slot or NEAR)

    @property
    def mu(self) -> int:
        return PRESETS[self.preset]

    @property
    def guard(self) -> int:
        """g: room for the error of the sum, and a hundredth of the residues that no sum has."""
        residues = 2 * ((self.cohort + 1) // 2) + 1
        return next(
            g for g in range(1, 33) if 2**g >= self.cohort + 2 and 100 * residues <= 99 * 2**g
        )

    @property
    def most(self) -> int:
        """Bits of a value, so that the sum fits the word that is left."""
        spread = next(more for more in range(11) if 2**more >= self.cohort)
        return 32 - self.guard - spread

    @property
    def b(self) -> int:
        return self.bits or self.most

    def public(self) -> bytes:
        run_id, roster_hash, epoch, *_ = self.context
        fields = ["flhe/v1/sash-a", self.preset, run_id, roster_hash, epoch]
        return hashlib.sha256(cbor(fields)).digest()

    def mask(self, seed: list[int], length: int) -> list[int]:
        """G(seed)."""
        key, mu = self.public(), self.mu
        if self.preset.startswith("ring"):
            return [
                nearest(coefficient(polynomial(key, d // mu, mu), seed, d % mu))
                for d in range(length)
            ]
        rows = (elements(key, d, mu) for d in range(length))
        return [nearest(sum(x * y for x, y in zip(row, seed, strict=True)) % Q) for row in rows]

    def encrypt(self, seed: list[int], plain: list[int]) -> list[int]:
        masks = self.mask(seed, len(plain))
        return [(2**self.guard * x + m) % 2**32 for x, m in zip(plain, masks, strict=True)]

    def open(
        self, seeds: list[list[int]], total: list[int], senders: int
    ) -> tuple[list[int], list[int]]:
        """The sum, and what the homomorphism added to it; ValueError where that is too much."""
        masks = self.mask(added(seeds, Q), len(total))
        sums, errors_ = [], []
        for y, m in zip(total, masks, strict=True):
            left = (y - m + 2**31) % 2**32 - 2**31
            low = (left + 2 ** (self.guard - 1)) % 2**self.guard - 2 ** (self.guard - 1)
            sums.append((left - low) >> self.guard)
            errors_.append(low)
        if any(2 * abs(e) > senders + 1 for e in errors_):
            raise ValueError("another key")
        return sums, errors_

    def header(self, senders: list[int], length: int, /, **other: Any) -> bytes:
        fields = {
            "version": 2,
            "scheme": "sash",
            "mode": "",
            "slot": self.context,
            "senders": senders,
            "length": length,
            "supports": [],
        }
        return cbor(list((fields | other).values()))

    def message(self, senders: list[int], lanes: list[int], /, **other: Any) -> dict[str, str]:
        header = self.header(senders, len(lanes), **other)
        return {"header": header.hex(), "body": wire(lanes).hex()}


def added(vectors: list[list[int]], modulus: int = 2**32) -> list[int]:
    return [sum(column) % modulus for column in zip(*vectors, strict=True)]


def wire(lanes: list[int]) -> bytes:
    """Four bytes each, the lowest first."""
    return b"".join(lane.to_bytes(4, "little") for lane in lanes)


def seed_key(rank: int) -> bytes:
    """What the seed of a rank is made of, in the file: block 0 under this key."""
    return hashlib.sha256(f"sash seed {rank}".encode()).digest()


def seed_of(rank: int, mu: int) -> list[int]:
    return elements(seed_key(rank), 0, mu)


# --- vectors ---


def numbers(count: int, bits: int, salt: int) -> list[int]:
    """Values that fill the space, its ends first."""
    most = 2 ** (bits - 1) - 1
    spread = [((i + salt) * 0x9E3779B97F4A7C15 >> 11) % (2 * most + 1) - most for i in range(count)]
    return [most, -most, *spread][:count]


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def positive(
    name: str,
    second: Second,
    ranks: list[int],
    length: int,
    extras: int,
    sums: list[list[int]],
    value: Callable[[int], list[int]] | None = None,
) -> dict[str, Any]:
    """One case of the file; a long one has hashes instead of lists."""
    long, size = length > 1000, length + extras
    plains: dict[int, list[int]] = {}
    sealed: dict[int, list[int]] = {}
    parts = []
    for rank in ranks:
        plains[rank] = value(rank) if value else numbers(size, second.b, rank)
        seed = seed_of(rank, second.mu)
        sealed[rank] = second.encrypt(seed, plains[rank])
        data = wire(sealed[rank])
        told: Any = plains[rank]
        if long:
            told = "numbers(length + extras, bits, rank), by tests/schemes/test_sash_vectors.py"
        parts.append(
            {
                "rank": rank,
                "seed_key": seed_key(rank).hex(),
                "seed": hashed(b"".join(x.to_bytes(8, "little") for x in seed)),
                "values": told,
                "header": second.header([rank], size).hex(),
                "ciphertext": hashed(data) if long else data.hex(),
            }
        )
    told_sums = []
    for senders in sums:
        total = added([sealed[rank] for rank in senders])
        seeds = [seed_of(rank, second.mu) for rank in senders]
        opened, off = second.open(seeds, total, len(senders))
        assert opened == [sum(column) for column in zip(*(plains[r] for r in senders), strict=True)]
        header, data = second.header(senders, size), wire(total)
        told_sums.append(
            {
                "senders": senders,
                "data": hashed(data) if long else data.hex(),
                "header": header.hex(),
                "digest": hashed(header + data),
                "seed": hashed(b"".join(x.to_bytes(8, "little") for x in added(seeds, Q))),
                "opened": hashed(json.dumps(opened).encode()) if long else opened,
                "off_by": {str(e): off.count(e) for e in sorted(set(off))} if long else off,
            }
        )
    return {
        "name": name,
        **({"hashed": True} if long else {}),
        "cohort": second.cohort,
        "bits": second.b,
        "preset": second.preset,
        "unmask": second.unmask,
        "slot": second.slot or NEAR,
        "guard": second.guard,
        "public": second.public().hex(),
        "length": length,
        "extras": extras,
        "parts": parts,
        "sums": told_sums,
    }


def positives() -> list[dict[str, Any]]:
    three = [[0], [2], [0, 1], [0, 1, 2]]
    ring, matrix = Second(3), Second(3, 0, "lwr-736")
    few = Second(3, 8, unmask="clients")

    def ends(rank: int) -> list[int]:
        most = 2 ** (ring.b - 1) - 1
        return [most, -most, 0, most if rank else -most]

    return [
        positive("all the bits, ring", ring, [0, 1, 2], 20, 3, three),
        positive("all the bits, matrix", matrix, [0, 1, 2], 20, 3, three),
        positive("a wider matrix", Second(3, 0, "lwr-1024"), [0, 1, 2], 5, 0, three),
        positive("fewer bits", few, [0, 1, 2], 20, 3, three),
        positive("no values", ring, [0, 1, 2], 0, 0, three),
        positive("extras alone", ring, [0, 1, 2], 0, 4, three),
        positive("ends of the space", ring, [0, 1, 2], 4, 0, three, ends),
        positive("two members", Second(2), [0, 1], 12, 1, [[0], [1], [0, 1]]),
        positive("all ten", Second(10), list(range(10)), 12, 2, [list(range(10)), [3, 9]]),
        positive(
            "ranks far apart",
            Second(1024, slot=FAR),
            [1, 255, 1023],
            12,
            2,
            [[1, 255, 1023], [255]],
        ),
        positive("into the second block", ring, [0, 2], 2050, 5, [[0, 2]]),
    ]


RING = Second(4)
LATER = Second(4, slot=NEAR | {"round": 4})
OTHER_EPOCH = Second(4, slot=NEAR | {"epoch": "aa" * 16})


def ciphertext(second: Second, rank: int, length: int = 20) -> list[int]:
    """A sender's, of ones."""
    return second.encrypt(seed_of(rank, second.mu), [1] * length)


def message(rank: int, length: int = 20, second: Second = RING, **other: Any) -> dict[str, str]:
    return second.message([rank], ciphertext(second, rank, length), **other)


Negative = tuple[dict[str, Any], str]
"""A case, and what the library says of it."""


def not_added() -> list[Negative]:
    first, other = message(0), message(1)
    longer = RING.message([1], ciphertext(RING, 1), length=21)
    both = RING.message([0, 1], added([ciphertext(RING, rank) for rank in (0, 1)]))
    cases: list[tuple[str, str, str, list[dict[str, str]]]] = [
        ("a mode", "ProtocolError", "a mode was named", [first, message(1, mode="double")]),
        ("of another scheme", "ProtocolError", "'flashe'", [first, message(1, scheme="flashe")]),
        ("of another round", "ProtocolError", "slot", [first, message(1, second=LATER)]),
        ("of another epoch", "ProtocolError", "slot", [first, message(1, second=OTHER_EPOCH)]),
        ("of a longer vector", "ProtocolError", "length", [first, message(1, 21)]),
        ("of nobody in the cohort", "ProtocolError", "not in the cohort", [first, message(4)]),
        ("a byte short", "ProtocolError", "79 bytes, 20", [first, cut(other)]),
        ("a byte long", "ProtocolError", "81 bytes, 20", [first, grown(other)]),
        ("longer by its header", "ProtocolError", "80 bytes, 21", [first, longer]),
        ("a sender twice", "ReuseError", "already in the sum", [first, first]),
        ("in a sum already", "ReuseError", "already in the sum", [both, other]),
        ("a sum that holds it", "ReuseError", "already in the sum", [other, both]),
    ]
    return [
        ({"name": name, **base(), "messages": messages, "at": "add", "error": error}, says)
        for name, error, says, messages in cases
    ]


def base() -> dict[str, Any]:
    return {"cohort": 4, "bits": RING.b, "preset": RING.preset, "unmask": "server"}


def cut(told: dict[str, str]) -> dict[str, str]:
    return told | {"body": told["body"][2:]}


def grown(told: dict[str, str]) -> dict[str, str]:
    return told | {"body": "00" + told["body"]}


def not_opened() -> list[Negative]:
    """`seeds`: whose seeds are summed, and what is added to the first element of the sum."""
    whole = added([ciphertext(RING, rank) for rank in (0, 1, 3)])
    total = RING.message([0, 1, 3], whole)
    off = list(whole)
    off[7] = (off[7] + 5) % 2**32  # below the value, and beyond what three senders explain
    moved = Second(4, slot=NEAR | {"run_id": 8})
    long = RING.message([0, 1, 3], whole, length=21)
    flashe = RING.message([0, 1, 3], whole, scheme="flashe")
    cases: list[tuple[str, str, dict[str, str], list[int], int]] = [
        ("a seed is missing", "other seeds", total, [0, 1], 0),
        ("a seed too many", "other seeds", total, [0, 1, 2, 3], 0),
        ("a seed of another", "other seeds", total, [0, 1, 2], 0),
        ("a seed twice", "other seeds", total, [0, 1, 1], 0),
        ("one seed alone", "other seeds", total, [3], 0),
        ("an element off by one", "other seeds", total, [0, 1, 3], 1),
        ("an element off by one, down", "other seeds", total, [0, 1, 3], Q - 1),
        ("a sum of another epoch", "other seeds", OTHER_EPOCH.message([0, 1, 3], whole), [0, 1, 3], 0),
        ("a sum of another run", "other seeds", moved.message([0, 1, 3], whole), [0, 1, 3], 0),
        ("a value below its lowest bit", "altered", RING.message([0, 1, 3], off), [0, 1, 3], 0),
        ("a byte short", "79 bytes", cut(total), [0, 1, 3], 0),
        ("a byte long", "81 bytes", grown(total), [0, 1, 3], 0),
        ("longer by its header", "80 bytes, 21", long, [0, 1, 3], 0),
        ("of nobody in the cohort", "not in the cohort", RING.message([0, 1, 4], whole), [0, 1, 3], 0),
        ("of another scheme", "'flashe'", flashe, [0, 1, 3], 0),
        ("a mode", "a mode was named", RING.message([0, 1, 3], whole, mode="single"), [0, 1, 3], 0),
    ]  # fmt: skip
    return [
        (
            {
                "name": name,
                **base(),
                "messages": [told],
                "seeds": [seed_key(rank).hex() for rank in ranks],
                "plus": f"{plus:016x}",
                "at": "open",
                "error": "ProtocolError",
            },
            says,
        )
        for name, says, told, ranks, plus in cases
    ]


def not_encrypted() -> list[Negative]:
    most = 2 ** (RING.b - 1) - 1
    start = {**base(), "slot": NEAR, "rank": 1, "values": [1, -1], "extras": [7], "mode": ""}
    wrong: list[tuple[str, str, str, dict[str, Any]]] = [
        ("a value beyond the space", "RangeError", "lies beyond", {"values": [1, most + 1]}),
        ("a value beyond it below", "RangeError", "lies beyond", {"values": [-most - 1, 1]}),
        ("an extra beyond the space", "RangeError", "lies beyond", {"extras": [most + 1]}),
        ("a value that wraps to one", "RangeError", "lies beyond", {"values": [2**32 + 1, 1]}),
        ("a mode", "ProtocolError", "a mode was named", {"mode": "double"}),
        ("coordinates", "ProtocolError", "sparse", {"coords": [3, 5]}),
        ("a support", "ProtocolError", "sparse", {"support": [3, 5]}),
        ("a slot used twice", "ReuseError", "has encrypted a vector before", {"times": 2}),
    ]
    return [
        ({"name": name, **start, **change, "at": "encrypt", "error": error}, says)
        for name, error, says, change in wrong
    ]


def not_built() -> list[Negative]:
    wrong: list[tuple[str, str, dict[str, Any]]] = [
        ("one member", "cohort must be 2 to 1024", {"cohort": 1}),
        ("too many members", "cohort must be 2 to 1024", {"cohort": 1025}),
        ("one bit", "room for 2 to", {"bits": 1}),
        ("a bit too many", "room for 2 to", {"bits": Second(4).most + 1}),
        ("a bit too many, for many", "room for 2 to", {"cohort": 1000, "bits": 13}),
        ("the paper's dimension", "SASH has ring-2048", {"preset": "lwr-512"}),
        ("a reader that there is not", "'server' or 'clients'", {"unmask": "everybody"}),
    ]
    return [
        ({"name": name, **base(), **change, "at": "scheme", "error": "ConfigError"}, says)
        for name, says, change in wrong
    ]


def negatives() -> list[Negative]:
    """Cases that must fail, with what the library says of each."""
    return not_built() + not_encrypted() + not_added() + not_opened()


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/schemes/test_sash_vectors.py, products of polynomials term by term",
        "cases": positives() + [case for case, _ in negatives()],
    }


READ = json.loads(FILE.read_text()) if FILE.exists() else {"cases": []}
GOOD = [case for case in READ["cases"] if "error" not in case]
BAD = [case for case in READ["cases"] if "error" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def test_what_is_refused_as_another_key_is_so_by_the_second_implementation() -> None:
    """It reads as well as writes; all of its wrong seeds would open to something, somewhere."""
    found = 0
    for case in BAD:
        if case["at"] != "open" or SAYS["open", case["name"]] not in ("other seeds", "altered"):
            continue
        sealed = Sealed.from_parts(*parts_of(case["messages"][0]))
        slot = dict(zip(NEAR, sealed.slot.context(), strict=True))
        second = Second(4, slot={k: v.hex() if type(v) is bytes else v for k, v in slot.items()})
        seeds = [elements(bytes.fromhex(key), 0, 2048) for key in case["seeds"]]
        seeds.append([int(case["plus"], 16)] + [0] * 2047)
        lanes = sealed.data.view("<u4").tolist()
        with pytest.raises(ValueError, match="another key"):
            second.open(seeds, lanes, len(sealed.senders))
        found += 1
    assert found == 10


def scheme_of(case: dict[str, Any]) -> Sash:
    return Sash(case["cohort"], case["bits"], case["preset"], case["unmask"])


def parts_of(told: dict[str, str]) -> tuple[bytes, Any]:
    return bytes.fromhex(told["header"]), np.frombuffer(bytes.fromhex(told["body"]), np.uint8)


def seed_from(key: str, mu: int) -> Any:
    """Of the second implementation."""
    return np.array(elements(bytes.fromhex(key), 0, mu), np.uint64)


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c["name"])
def test_vector(case: dict[str, Any]) -> None:
    def told(data: bytes) -> str:
        return hashed(data) if case.get("hashed") else data.hex()

    scheme, slot = scheme_of(case), Slot(*context(case["slot"]))
    assert scheme.guard == case["guard"]
    assert public_key(scheme.parameters_of_prg, slot).hex() == case["public"]
    assert Sash(case["cohort"]).bits >= case["bits"]
    mu, size = scheme.parameters_of_prg.dimension, case["length"] + case["extras"]
    parts, seeds = {}, {}
    for part in case["parts"]:
        values = part["values"]
        if case.get("hashed"):
            values = numbers(size, case["bits"], part["rank"])
        lanes = np.array(values, np.int32)
        plain = Plain(lanes[: case["length"]], lanes[case["length"] :])
        seed = seed_from(part["seed_key"], mu)
        assert hashed(seed.astype("<u8").tobytes()) == part["seed"]
        drawn = seed.astype("<u8").tobytes()
        sealer = SashSealer(scheme, part["rank"], random=lambda n, drawn=drawn: drawn[:n])
        sealed = sealer.encrypt(plain, slot)
        assert told(sealed.data.tobytes()) == part["ciphertext"]
        assert sealed.header().hex() == part["header"]
        seeds[part["rank"]] = sealer.take_seed(slot)
        assert np.array_equal(seeds[part["rank"]], seed)
        parts[part["rank"]] = Sealed.from_parts(sealed.header(), sealed.data)
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
        seed = functools.reduce(add, [seeds[rank] for rank in expected["senders"]])
        assert hashed(seed.astype("<u8").tobytes()) == expected["seed"]
        opened = SashOpener(scheme, seed).decrypt(closed).tolist()
        assert (hashed(json.dumps(opened).encode()) if case.get("hashed") else opened) == expected[
            "opened"
        ]


SAYS = {(case["at"], case["name"]): says for case, says in negatives()}


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['name']}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    """Each fails at its own step and at its last message; all before it pass."""
    reached = []

    def run() -> None:
        reached.append(("scheme", 0))
        scheme = scheme_of(case)
        if case["at"] == "encrypt":
            encrypt(scheme)
            return
        read = [Sealed.from_parts(*parts_of(told)) for told in case["messages"]]
        if case["at"] == "open":
            reached.append(("open", 0))
            mu = scheme.parameters_of_prg.dimension
            seed = functools.reduce(add, [seed_from(key, mu) for key in case["seeds"]])
            seed[0] = (int(seed[0]) + int(case["plus"], 16)) % Q
            SashOpener(scheme, seed).decrypt(read[0])
        total = None
        for i, part in enumerate(read):
            reached.append(("add", i))
            total = scheme.add(total, part)

    def encrypt(scheme: Sash) -> None:
        sealer = SashSealer(scheme, case["rank"])
        values, extras = (np.array(case[name], np.int64) for name in ("values", "extras"))
        coords = np.array(case["coords"], np.uint32) if "coords" in case else None
        support = (
            Support.of(np.array(case["support"], np.uint32), 20) if "support" in case else None
        )
        for i in range(case.get("times", 1)):
            reached.append(("encrypt", i))
            slot = Slot(*context(case["slot"]))
            sealer.encrypt(Plain(values, extras, coords), slot, mode=case["mode"], support=support)

    says = SAYS[case["at"], case["name"]]
    with pytest.raises(errors.FlheError, match=says) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    times = {"add": len(case.get("messages", ())), "encrypt": case.get("times", 1)}
    assert reached[-1] == (case["at"], times.get(case["at"], 1) - 1)


if __name__ == "__main__":
    text = json.dumps(contents())
    FILE.write_text(text.replace('{"name"', '\n{"name"') + "\n")
