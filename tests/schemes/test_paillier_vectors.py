"""BatchCrypt, a second time: textbook powers modulo n^2, decryption by lambda; the vectors.

The second implementation knows the protocol and nothing of the library. An exponent is what a random
source gave, little-endian; a ciphertext is (1 + m n) h^(n a) modulo n^2, a sum their product. A
batch has its tag above its slots.

    python -m tests.schemes.test_paillier_vectors
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import pytest

from flhe import errors
from flhe.coding.base import Plain
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.sealed import Sealed, Slot
from tests.coding.test_support_vectors import cbor
from tests.math.test_permutation_vectors import FAR, NEAR, block, context, hkdf

FILE = pathlib.Path(__file__).parents[1] / "vectors/batchcrypt.json"
KEY_BYTES = 256
GROUP_KEY = bytes(range(50, 82))
Q = 2**64 - 2**32 + 1

# --- the second implementation ---


def power(base: int, exponent: int, modulus: int) -> int:
    """Python's pow(), by GMP: ten times faster."""
    return int(gmpy2.powmod(base, exponent, modulus))


class Pair:
    """A key of 2048 bits: primes that are 3 modulo 4, by Fermat's test to twelve bases."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)  # a published test vector is no secret
        self.p, self.q = (self._prime(rng) for _ in range(2))
        self.n = self.p * self.q
        self.square = self.n**2
        hashed = cbor(["flhe/v1/paillier-base", self.n.to_bytes(256, "big")])
        x = int.from_bytes(hashlib.shake_256(hashed).digest(272), "big")
        self.h = self.n - x**2 % self.n
        self.power = power(self.h, self.n, self.square)
        self.order = math.lcm(self.p - 1, self.q - 1)

    @staticmethod
    def _prime(rng: random.Random) -> int:
        while True:
            x = rng.getrandbits(1024) | 3 << 1022 | 3
            if all(
                power(base, x - 1, x) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
            ):
                return x

    def encrypt(self, message: int, exponent: int) -> int:
        hidden = power(self.power, exponent, self.square)
        return (1 + message % self.n * self.n) * hidden % self.square

    def decrypt(self, ciphertext: int) -> int:
        found = (power(ciphertext, self.order, self.square) - 1) // self.n
        message = found * pow(self.order, -1, self.n) % self.n
        return message - self.n if 2 * message > self.n else message


def layout(case: dict[str, Any]) -> list[tuple[int, int]]:
    """Where each batch begins and ends."""
    per, total = slots(case), len(case["plain"][0])
    return [(i, min(i + per, total)) for i in range(0, total, per)]


def slot_bits(case: dict[str, Any]) -> int:
    largest = case["cohort"] * (2 ** (case["bits"] - 1) - 1)
    return len(f"{largest:b}") + 2


def slots(case: dict[str, Any]) -> int:
    """As many as leave room for a tag of 64 bits from each client, and one bit more."""
    return (2047 - 65 - len(f"{case['cohort'] - 1:b}")) // slot_bits(case)


def word(key: bytes, stream: int, number: int) -> int:
    """Word of 64 bits of a key stream."""
    return int.from_bytes(block(key, stream, number // 2)[8 * (number % 2) :][:8], "little")


def messages(case: dict[str, Any], values: list[int], rank: int) -> list[int]:
    """Signed slots of one client's batches, and the tags above them."""
    width, per = slot_bits(case), slots(case)
    bound = context(case["slot"])
    coefficients, masks = (hkdf(GROUP_KEY, label, *bound) for label in ("tag", "tag-mask"))
    out = []
    for j, (start, stop) in enumerate(layout(case)):
        first = j * (per + per % 2)
        tag = word(masks, rank, j)
        tag += sum(v * word(coefficients, 0, first + k) for k, v in enumerate(values[start:stop]))
        batch = sum(v * 2 ** (width * k) for k, v in enumerate(values[start:stop]))
        out.append(batch + tag % Q * 2 ** (width * per))
    return out


def exponents(drawn: bytes, count: int) -> list[int]:
    """1024 bits each: half of |n|."""
    assert len(drawn) == 128 * count
    return [int.from_bytes(drawn[128 * i :][:128], "little") for i in range(count)]


def little(numbers: list[int]) -> str:
    return b"".join(x.to_bytes(2 * KEY_BYTES, "little") for x in numbers).hex()


def stretch(seed: str) -> Callable[[int], bytes]:
    """Bytes that a case's `random` stands for."""
    rng = random.Random(seed)
    return rng.randbytes


# --- making them ---


def make() -> dict[str, Any]:
    pair = Pair(20)
    cases, rng = [], random.Random(21)
    for name, cohort, bits, length, extras in (
        ("one value", 2, 2, 1, 0),
        ("sixteen bits, nine clients", 9, 16, 200, 6),
        ("two bits", 3, 2, 700, 3),
        ("all bits, all clients", 1024, 32, 60, 5),
        ("two batches", 4, 16, 130, 4),
        ("one batch", 4, 16, 13, 4),
        ("extras alone", 3, 24, 0, 7),
        ("nothing", 3, 16, 0, 0),
    ):
        bound = 2 ** (bits - 1) - 1
        count = min(cohort, 3)
        plain = [[rng.randint(-bound, bound) for _ in range(length + extras)] for _ in range(count)]
        plain[0][: length // 2] = [bound] * (length // 2)
        plain[1][: length // 2] = [-bound] * (length // 2)
        case: dict[str, Any] = {
            "name": name, "cohort": cohort, "bits": bits, "extras": extras,
            "plain": plain, "slot": NEAR if length % 2 else FAR,
        }  # fmt: skip
        case |= {"slot_bits": slot_bits(case), "slots": slots(case)}
        case["random"] = [f"{name}/{rank}" for rank in range(count)]
        batches = len(layout(case))
        parts = []
        for rank, values in enumerate(plain):
            a = exponents(stretch(case["random"][rank])(128 * batches), batches)
            made = messages(case, values, rank)
            parts.append([pair.encrypt(m, e) for m, e in zip(made, a, strict=True)])
        total = [math.prod(column) % pair.square for column in zip(*parts, strict=True)]
        case["ciphertexts"] = [little(part) for part in parts[:1]]
        case["total"] = little(total)
        case["sum"] = [sum(column) for column in zip(*plain, strict=True)]
        cases.append(case)
    return {
        "version": 1,
        "made_by": "tests/schemes/test_paillier_vectors.py, by powers modulo n^2 and lambda",
        "key": {name: f"{getattr(pair, name):x}" for name in ("p", "q")},
        "group_key": GROUP_KEY.hex(),
        "cases": cases,
        "textbook": [
            {"n": 126869, "r": 74384, "m": 10100, "c": 935906717},
            {"n": 143, "r": 2, "m": 5, "c": 13098},
        ],
        "failing": failing(pair),
    }


def failing(pair: Pair) -> list[dict[str, Any]]:
    """What is refused, at which step and in which words; of 150 values of 16 bits from 3 clients.

    Whoever adds something to a batch, however small or large, meets its tag; only a member, who can
    make tags, gets as far as an overflow.
    """
    base: dict[str, Any] = {
        "cohort": 3, "bits": 16, "plain": [[0] * 150], "slot": NEAR,
    }  # fmt: skip
    width, per, count = slot_bits(base), slots(base), len(layout(base))
    honest = [pair.encrypt(m, 12345 + j) for j, m in enumerate(messages(base, [0] * 150, 0))]

    def row(name: str, step: str, says: str, first: int) -> dict[str, Any]:
        data = little([first, *honest[1:]])
        return {"name": name, "step": step, "says": says, "length": 150, "data": data}

    def alien(number: int) -> int:
        """The first batch with a number added by somebody without the tags' key."""
        return honest[0] * (1 + number % pair.n * pair.n) % pair.square

    def forged(place: int, value: int) -> int:
        """The first batch as a member makes it who does not keep to the values' range."""
        values = [value * (k == place) for k in range(150)]
        return pair.encrypt(messages(base, values, 0)[0], 777)

    told = "not that of what its senders encrypted"

    rows = [
        row("0", "add", "ciphertext 0 of sender 0 is 0", 0),
        row("n", "add", "is a multiple of n", pair.n),
        row("n^2", "add", "is not below n^2", pair.square),
        row("beyond n^2", "add", "is not below n^2", 2 ** (16 * KEY_BYTES) - 1),
        row("a factor", "add", "a multiple of a factor of n", pair.q),
        row("a multiple of a factor", "add", "a multiple of a factor of n", pair.p * 12345),
        row("one added", "decrypt", told, alien(1)),
        row("one added to a tag", "decrypt", told, alien(2 ** (width * per))),
        row("so much added that it overflows", "decrypt", told, alien(32768)),
        row("added beyond everything", "decrypt", told, alien(2**2045)),
        row("taken away below everything", "decrypt", told, alien(-(2**2045))),
        row("moved by one slot", "decrypt", told, power(honest[0], 2**width, pair.square)),
        row("another batch", "decrypt", told, honest[1]),
        row("a batch twice", "decrypt", told, honest[0] ** 2 % pair.square),
        row("a member's, one too many", "decrypt", "1 positive", forged(3, 32768)),
        row("a member's, one too few", "decrypt", "1 negative", forged(97, -32768)),
    ]
    empty = 2 ** (width * (150 - (count - 1) * per))
    stray = honest[-1] * (1 + empty * pair.n) % pair.square
    last = little([*honest[:-1], stray])
    rows.append(
        {
            "name": "after the end",
            "step": "decrypt",
            "says": "not empty",
            "length": 150,
            "data": last,
        }
    )
    short = little(honest)[:-2]
    rows.append({"name": "cut short", "step": "add", "says": "bytes", "length": 150, "data": short})
    rows.append(
        {"name": "too long", "step": "add", "says": "bytes", "length": 150, "data": short + "0000"}
    )
    return rows


# --- against the library ---

DATA: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else make()
CASES = {case["name"]: case for case in DATA["cases"]}
KEY = SecretKey(*(int(DATA["key"][name], 16) for name in ("p", "q")))


def at(fields: dict[str, Any]) -> Slot:
    return Slot(*context(fields))


AT = at(NEAR)


def scheme_of(case: dict[str, Any]) -> Paillier:
    return Paillier(case["cohort"], case["bits"], 2048, KEY.public)


def sealed(data: str, length: int, senders: tuple[int, ...] = (0,), slot: Slot = AT) -> Sealed:
    return Sealed("batchcrypt", slot, senders, length, np.frombuffer(bytes.fromhex(data), np.uint8))


def test_the_file_is_what_this_makes() -> None:
    assert make() == DATA


@pytest.mark.parametrize("name", CASES)
def test_vectors(name: str) -> None:
    case = CASES[name]
    scheme, count = scheme_of(case), len(case["plain"])
    assert (scheme.batch.width, scheme.batch.per) == (case["slot_bits"], case["slots"])
    total = None
    for rank, values in enumerate(case["plain"]):
        lanes = np.array(values, np.int32)
        split = lanes.size - case["extras"]
        sealer = PaillierSealer(scheme, KEY, GROUP_KEY, rank, random=stretch(case["random"][rank]))
        part = sealer.encrypt(Plain(lanes[:split], lanes[split:]), at(case["slot"]))
        if rank == 0:
            assert part.data.tobytes().hex() == case["ciphertexts"][0]
        total = scheme.add(total, part)
    assert total is not None
    assert total.data.tobytes().hex() == case["total"]
    opener = PaillierOpener(scheme, KEY, GROUP_KEY)
    assert opener.decrypt(total).tolist() == case["sum"]
    kept = sealed(case["total"], len(case["sum"]), tuple(range(count)), at(case["slot"]))
    assert opener.decrypt(kept).tolist() == case["sum"]


@pytest.mark.parametrize("name", CASES)
def test_the_second_implementation_opens_the_librarys(name: str) -> None:
    case = CASES[name]
    pair, scheme = Pair(20), scheme_of(case)
    lanes = np.array(case["plain"][0], np.int32)
    part = PaillierSealer(scheme, KEY, GROUP_KEY, 1).encrypt(
        Plain(lanes, lanes[:0]), at(case["slot"])
    )
    rows = part.data.reshape(-1, 2 * KEY_BYTES)
    opened = [pair.decrypt(int.from_bytes(row.tobytes(), "little")) for row in rows]
    assert opened == messages(case, case["plain"][0], 1)


@pytest.mark.parametrize("case", DATA["failing"], ids=lambda case: case["name"])
def test_what_must_fail_fails_at_its_step(case: dict[str, Any]) -> None:
    scheme = Paillier(3, 16, 2048, KEY.public)
    part = sealed(case["data"], case["length"])
    if case["step"] == "add":
        says = re.escape(case["says"])
        with pytest.raises(errors.ProtocolError, match=says):
            scheme.add(None, part)
        good = PaillierSealer(scheme, KEY, GROUP_KEY, 1).encrypt(
            Plain(np.zeros(150, np.int32), np.empty(0, np.int32)), AT
        )
        with pytest.raises(errors.ProtocolError, match=says):
            scheme.add(good, part)
        with pytest.raises(errors.ProtocolError, match=f"{says}.*; the round is refused"):
            PaillierOpener(scheme, KEY, GROUP_KEY).decrypt(part)
    else:
        total = scheme.add(None, part)
        with pytest.raises(errors.ProtocolError, match=f"{case['says']}.*; the round is refused"):
            PaillierOpener(scheme, KEY, GROUP_KEY).decrypt(total)


@pytest.mark.parametrize("case", DATA["textbook"], ids=str)
def test_textbook_examples(case: dict[str, int]) -> None:
    assert PublicKey(case["n"]).encrypt(case["m"], case["r"]) == case["c"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), separators=(",", ":")) + "\n")
