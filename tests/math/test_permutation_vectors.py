"""Permutations, a second time: one AES block, one word and one coordinate at a time; the vectors.

The second implementation knows the definition and nothing of the library: HKDF from HMAC, a queue of
places that still want a word, a network whose halves take turns.

    python -m tests.math.test_permutation_vectors
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import itertools
import json
import math
import pathlib
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from flhe import errors
from flhe.math.permutation import Permutation
from flhe.schemes.sealed import Slot
from flhe.training.session import Session
from tests.coding.test_support_vectors import Item, cbor

FILE = pathlib.Path(__file__).parents[1] / "vectors/permutation.json"


@functools.lru_cache(maxsize=8)
def aes(key: bytes) -> Callable[[bytes], bytes]:
    """AES-256 of one block."""
    return Cipher(AES256(key), ECB()).encryptor().update


def block(key: bytes, stream: int, number: int) -> bytes:
    """16 bytes of a stream's key stream."""
    return aes(key)(stream.to_bytes(8, "big") + number.to_bytes(8, "big"))


def hkdf(secret: bytes, label: str, *context: Item) -> bytes:
    """32 bytes by HKDF-SHA256 without a salt: RFC 5869, Sec. 2.2 and 2.3."""
    info = cbor([f"flhe/v1/{label}", *context])
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


# --- permutations ---


def words(key: bytes, stream: int) -> Iterator[int]:
    for number in itertools.count():
        data = block(key, stream, number)
        for at in range(0, 16, 4):
            yield int.from_bytes(data[at : at + 4], "little")


def below(key: bytes, stream: int, bounds: list[int]) -> tuple[list[int], int]:
    """A number below each bound, and how many words were no use: their places queue up again."""
    picked, drawn = [0] * len(bounds), words(key, stream)
    waiting, useless = deque(range(len(bounds))), 0
    while waiting:
        at, word = waiting.popleft(), next(drawn)
        bound = bounds[at]
        if word >= 2**32 - 2**32 % bound:
            waiting.append(at)
            useless += 1
        else:
            picked[at] = word % bound
    return picked, useless


class Shuffle:
    """Below 2**16: all images in a list."""

    def __init__(self, key: bytes, length: int) -> None:
        picks, self.redrawn = below(key, 0, list(range(1, length + 1)))
        self.images = list(range(length))
        for last in reversed(range(1, length)):
            one, other = self.images[last], self.images[picks[last]]
            self.images[last], self.images[picks[last]] = other, one

    def forward(self, d: int) -> int:
        return self.images[d]

    def inverse(self, d: int) -> int:
        return self.images.index(d)


class Network:
    """From 2**16 on: twelve rounds, the left half and the right half by turns."""

    def __init__(self, key: bytes, length: int) -> None:
        self.length = length
        a = math.isqrt(length)
        if a * a < length:
            a += 1
        self.sizes = (a, (length + a - 1) // a)
        drawn = [below(key, i, [self.sizes[i % 2]] * self.sizes[1 - i % 2]) for i in range(12)]
        self.tables = [table for table, _ in drawn]
        self.redrawn = sum(useless for _, useless in drawn)

    def once(self, d: int, sign: int) -> int:
        """Through all rounds, or with a sign of -1 back through them; may leave the length."""
        halves = list(divmod(d, self.sizes[1]))
        for i in range(12)[::sign]:
            mine, other = i % 2, 1 - i % 2
            halves[mine] = (halves[mine] + sign * self.tables[i][halves[other]]) % self.sizes[mine]
        return halves[0] * self.sizes[1] + halves[1]

    def walk(self, d: int, sign: int) -> list[int]:
        """Everything that comes after d until one is a coordinate."""
        path = [self.once(d, sign)]
        while path[-1] >= self.length:
            path.append(self.once(path[-1], sign))
        return path

    def forward(self, d: int) -> int:
        return self.walk(d, 1)[-1]

    def inverse(self, d: int) -> int:
        return self.walk(d, -1)[-1]

    def walkers(self, most: int) -> list[int]:
        """Coordinates that walk, the longest walks first: found from where they stray to."""
        found = set()
        for stray in range(self.length, min(self.sizes[0] * self.sizes[1], self.length + 300)):
            before = self.once(stray, -1)
            while before >= self.length and before != stray:  # some strays only come from strays
                before = self.once(before, -1)
            found |= {before} - {stray}
        return sorted(found, key=lambda d: (-len(self.walk(d, 1)), d))[:most]


# --- vectors ---


def named(number: int) -> bytes:
    return hashlib.sha256(f"permutation {number}".encode()).digest()


SOME = [0, 1, 2, 255, 256, 257, 32_767, 40_000, 65_533, 65_534]


def slot_fields(run_id: int, round_: int, attempt: int, *hashes: bytes) -> dict[str, Any]:
    """A slot as it stands in a file; hashes of the roster, epoch, layout and history."""
    roster_hash, epoch, layout_hash, history = (h.hex() for h in hashes)
    return {
        "run_id": run_id,
        "roster_hash": roster_hash,
        "epoch": epoch,
        "round": round_,
        "attempt": attempt,
        "layout_hash": layout_hash,
        "history": history,
    }


def context(fields: dict[str, Any]) -> list[Any]:
    """What keys of a slot are bound to, in order."""
    return [bytes.fromhex(v) if isinstance(v, str) else v for v in fields.values()]


GROUP_KEY = bytes(range(100, 132))
NEAR = slot_fields(7, 3, 0, bytes([1]) * 32, bytes([2]) * 16, bytes([4]) * 32, bytes([5]) * 32)
FAR = slot_fields(2**64 - 1, 2**32 - 1, 1, bytes(32), bytes(16), b"\xff" * 32, bytes(range(32)))


def whole(number: int, length: int) -> dict[str, Any]:
    made = Shuffle(named(number), length)
    return {
        "name": "shuffle, whole",
        "key": named(number).hex(),
        "length": length,
        "coords": list(range(length)),
        "images": made.images,
        "preimages": [made.inverse(d) for d in range(length)],
    }


def partly(number: int, length: int) -> dict[str, Any]:
    """Images and preimages of some coordinates, and how often each was permuted to get there."""
    key = named(number)
    made = Shuffle(key, length) if length < 2**16 else Network(key, length)
    coords = {*SOME, length // 2, length - 2, length - 1}
    case: dict[str, Any] = {"name": "shuffle", "key": key.hex(), "length": length}
    case["redrawn"] = made.redrawn
    if isinstance(made, Network):
        a, b = made.sizes
        coords |= {a, b - 1, b, b + 1, (a - 1) * b}
        walkers = made.walkers(4)
        coords |= {*walkers, *map(made.forward, walkers)}  # the images walk on their way back
        case |= {"name": "network", "a": a, "b": b}
        case["passes"] = [len(made.walk(d, 1)) for d in sorted(coords)]
        case["passes_back"] = [len(made.walk(d, -1)) for d in sorted(coords)]
    case["coords"] = sorted(coords)
    case["images"] = [made.forward(d) for d in sorted(coords)]
    case["preimages"] = [made.inverse(d) for d in sorted(coords)]
    return case


def derived(slot: dict[str, Any], length: int) -> dict[str, Any]:
    """The permutation of one attempt."""
    key = hkdf(GROUP_KEY, "permutation", *context(slot))
    return {
        "name": "derived for an attempt",
        "group_key": GROUP_KEY.hex(),
        "slot": slot,
        "key": key.hex(),
        "length": length,
        "coords": list(range(length)),
        "images": Shuffle(key, length).images,
    }


def negatives() -> list[dict[str, Any]]:
    base = {"name": "refused", "key": named(0).hex()}
    config, range_ = {"at": "configure", "error": "ConfigError"}, {"error": "RangeError"}
    return [
        {**base, "key": named(0).hex()[:62], "length": 10, **config},
        {**base, "key": named(0).hex() + "00", "length": 10, **config},
        {**base, "key": "", "length": 10, **config},
        {**base, "length": -1, **config},
        {**base, "length": 2**31, **config},
        *(
            {**base, "length": length, "coords": coords, "at": at, **range_}
            for at in ("forward", "inverse")
            for length, coords in [
                (0, [0]),
                (10, [10]),
                (100, [3, 2**32 - 1]),
                (65_535, [65_535]),
                (65_536, [0, 65_536]),
                (100_003, [100_003]),  # a pair of halves, but no coordinate
            ]
        ),
    ]


KEYS = [
    *((number, 65_535) for number in (0, 3)),  # under key 3, two words are drawn again
    *((number, 65_536) for number in (0, 1)),
    (0, 65_537),
    (2, 65_793),  # 257 halves each, and a coordinate that takes three passes
    *((number, 100_003) for number in (0, 1)),
    (0, 1_200_000),
    (0, 2**31 - 1),  # eight words are drawn again
]


def contents() -> dict[str, Any]:
    by = "tests/math/test_permutation_vectors.py, one block, one word and one coordinate at a time"
    return {
        "version": 1,
        "made_by": by,
        "cases": [
            *(whole(number, length) for number in (0, 1) for length in (0, 1, 2, 10, 100)),
            *(partly(number, length) for number, length in KEYS),
            *(derived(slot, 20) for slot in (NEAR, FAR)),
            *negatives(),
        ],
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []
GOOD = [case for case in CASES if "error" not in case]
BAD = [case for case in CASES if "error" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def test_the_file_has_what_it_should() -> None:
    """Words drawn again in a shuffle and in a network, walks of up to three passes, both ways."""
    assert {case["name"] for case in CASES if case.get("redrawn")} == {"shuffle", "network"}
    for case in GOOD:
        if case["name"] == "network":
            spare = case["a"] * case["b"] > case["length"]
            assert (max(case["passes"]) > 1) == (max(case["passes_back"]) > 1) == spare
    assert max(passes for case in GOOD for passes in case.get("passes", [])) == 3


def array(coords: list[int]) -> NDArray[np.uint32]:
    return np.array(coords, np.uint32)


@pytest.mark.parametrize("case", GOOD, ids=lambda c: f"{c['name']}-{c['length']}-{c['key'][:4]}")
def test_vector(case: dict[str, Any]) -> None:
    permutation = Permutation(bytes.fromhex(case["key"]), case["length"])
    coords, images = array(case["coords"]), array(case["images"])
    assert permutation.forward(coords).tolist() == case["images"]
    assert permutation.inverse(images).tolist() == case["coords"]
    if "preimages" in case:
        assert permutation.inverse(coords).tolist() == case["preimages"]
        assert permutation.forward(array(case["preimages"])).tolist() == case["coords"]
    if "slot" in case:
        member: Any = SimpleNamespace(
            epoch=SimpleNamespace(group_key=bytes.fromhex(case["group_key"])),
            terms=SimpleNamespace(permuted=True),
            layout=SimpleNamespace(floats=case["length"]),
        )
        assert Session.permutation(member, Slot(*context(case["slot"]))) == permutation


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['length']}-{len(c['key'])}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    reached = []

    def run() -> None:
        reached.append("configure")
        permutation = Permutation(bytes.fromhex(case["key"]), case["length"])
        reached.append(case["at"])
        getattr(permutation, case["at"])(array(case["coords"]))

    with pytest.raises(errors.FlheError) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    assert reached[-1] == case["at"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()).replace('{"name"', '\n{"name"') + "\n")
