"""FedML-HE's CKKS, a second time: transforms, slots and masks by definition; the vectors.

The second implementation knows the protocol and nothing of the library, of TenSEAL or of SEAL. Its
errors are sums of bits of a hash. A ciphertext is the transform of m + e - a s: values at odd powers
of psi, the least primitive 2 n-th root of unity, exponents in bit-reversed order.

    python -m tests.schemes.test_ckks_vectors
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.schemes.fedml_he.keys import CkksPublic, CkksSecret
from flhe.schemes.fedml_he.ring import Ckks, CkksOpener, CkksSealer
from flhe.schemes.sealed import Sealed, Slot
from tests.math.test_permutation_vectors import FAR, NEAR, aes, context, hkdf

FILE = pathlib.Path(__file__).parents[1] / "vectors/ckks.json"
GROUP_KEY = bytes(range(60, 92))
N = 2048

# --- the second implementation ---


def prime(bits: int) -> int:
    """The largest below 2^bits that is 1 modulo 2 n; Fermat's test is enough for a vector."""
    candidates = range((1 << bits) - 2 * N + 1, 0, -2 * N)
    return next(q for q in candidates if all(pow(b, q - 1, q) == 1 for b in (2, 3, 5, 7)))


@functools.cache
def root(q: int) -> int:
    """The least psi with psi^n = -1."""
    one = next(w for w in (pow(g, (q - 1) // (2 * N), q) for g in range(2, 99)) if pow(w, N, q) > 1)
    return min(pow(one, e, q) for e in range(1, 2 * N, 2))


def reverse(i: int) -> int:
    return int(f"{i:0{N.bit_length() - 1}b}"[::-1], 2)


def values_at(a: list[int], w: int, q: int) -> list[int]:
    """Values of a polynomial at 1, w, w^2, ..."""
    if len(a) == 1:
        return a
    even, odd = (values_at(part, w * w % q, q) for part in (a[::2], a[1::2]))
    out, power = [0] * len(a), 1
    for i, (x, y) in enumerate(zip(even, odd, strict=True)):
        out[i], out[i + len(even)] = (x + power * y) % q, (x - power * y) % q
        power = power * w % q
    return out


def transform(a: list[int], q: int) -> list[int]:
    psi = root(q)
    twisted = [x * pow(psi, k, q) % q for k, x in enumerate(a)]
    plain = values_at(twisted, psi * psi % q, q)
    return [plain[reverse(i)] for i in range(N)]


def inverse(a_hat: list[int], q: int) -> list[int]:
    psi, back = root(q), pow(root(q), -1, q)
    plain = values_at([a_hat[reverse(i)] for i in range(N)], back * back % q, q)
    scale = pow(N, -1, q)
    assert psi * back % q == 1
    return [x * scale * pow(back, k, q) % q for k, x in enumerate(plain)]


def angles(slot: int) -> np.ndarray:
    return math.pi / N * (pow(3, slot, 2 * N) * np.arange(N) % (2 * N))


def message(slots: list[int], scale: int) -> list[int]:
    """The polynomial whose slots these are; far enough from ties that any machine rounds alike."""
    real = sum(v * np.cos(angles(j)) for j, v in enumerate(slots)) * (2 * scale / N)
    assert np.abs(np.abs(real - np.floor(real)) - 0.5).min() > 1e-5
    return [round(x) for x in real.tolist()]


def slots_of(polynomial: list[int], count: int, scale: int, q: int) -> list[float]:
    centred = np.array([x - q if x > q // 2 else x for x in polynomial], float)
    return [float((centred * np.cos(angles(j))).sum()) / scale for j in range(count)]


def secret(number: int) -> list[int]:
    digest = hashlib.shake_256(b"key %d" % number).digest(N)
    return [x % 3 - 1 for x in digest]


def errors(rank: int) -> list[int]:
    """Of 21 bits each way: centred binomial."""
    digest = hashlib.shake_256(b"error %d" % rank).digest(6 * N)
    words = [int.from_bytes(digest[i : i + 6], "little") for i in range(0, 6 * N, 6)]
    half = (1 << 21) - 1
    return [(w & half).bit_count() - (w >> 21 & half).bit_count() for w in words]


def uniform(slot: dict[str, Any], j: int, q: int) -> list[int]:
    """P_j: the first n words of its stream, cut to q's bits."""
    key = hkdf(GROUP_KEY, "ckks-a", *context(slot), j, N, q)
    words = [aes(key)(i.to_bytes(16, "big")) for i in range(N // 2)]
    pairs = [(w[:8], w[8:]) for w in words]
    mask = (1 << q.bit_length()) - 1
    out = [int.from_bytes(w, "little") & mask for pair in pairs for w in pair]
    assert max(out) < q
    return out


class Second:
    """One set of parameters; how many bits the modulus has, and so on, is told in the file."""

    def __init__(self, cohort: int, bits: int, q_bits: int, per: int, scale_bits: int) -> None:
        self.cohort, self.bits, self.per, self.scale = cohort, bits, per, 1 << scale_bits
        self.q_bits, self.q = q_bits, prime(q_bits)
        self.width = (cohort * (2**bits - 2)).bit_length()
        self.told = {
            "ring": str(N),
            "cohort": cohort,
            "bits": bits,
            "modulus": f"{self.q:x}",
            "slot_bits": self.width,
            "slots": per,
            "scale_bits": scale_bits,
        }

    def joined(self, values: list[int]) -> list[int]:
        rows = [values[i : i + self.per] for i in range(0, len(values), self.per)]
        return [sum(v << (self.width * k) for k, v in enumerate(row)) for row in rows]

    def digits(self, slot: int) -> list[int]:
        out, half = [], 1 << (self.width - 1)
        for _ in range(self.per - 1):
            out.append((slot + half) % (2 * half) - half)
            slot = (slot - out[-1]) >> self.width
        return [*out, slot]

    def mask(self, slot: dict[str, Any], senders: list[int]) -> list[int]:
        rows = [(uniform(slot, j, self.q), uniform(slot, j + 1, self.q)) for j in senders]
        return [sum(p[i] - m[i] for p, m in rows) % self.q for i in range(N)]

    def encrypt(self, slot: dict[str, Any], s: list[int], rank: int, values: list[int]) -> bytes:
        m = message(self.joined(values), self.scale)
        noisy = transform([(x + e) % self.q for x, e in zip(m, errors(rank), strict=True)], self.q)
        s_hat, a = transform([x % self.q for x in s], self.q), self.mask(slot, [rank])
        c = [(x - y * z) % self.q for x, y, z in zip(noisy, a, s_hat, strict=True)]
        packed = sum(x << (self.q_bits * i) for i, x in enumerate(c))
        return packed.to_bytes(N * self.q_bits // 8, "little")

    def residues(self, data: bytes) -> list[int]:
        packed, mask = int.from_bytes(data, "little"), (1 << self.q_bits) - 1
        return [packed >> (self.q_bits * i) & mask for i in range(N)]

    def open(
        self, slot: dict[str, Any], s: list[int], senders: list[int], data: bytes, length: int
    ) -> list[int]:
        s_hat, a = transform([x % self.q for x in s], self.q), self.mask(slot, senders)
        rows = zip(self.residues(data), a, s_hat, strict=True)
        polynomial = inverse([(c + y * z) % self.q for c, y, z in rows], self.q)
        slots = slots_of(polynomial, -(-length // self.per), self.scale, self.q)
        assert max(abs(x - round(x)) for x in slots) < 0.25
        return [digit for slot in slots for digit in self.digits(round(slot))][:length]


# --- vectors ---


def numbers(count: int, bits: int, rank: int) -> list[int]:
    """Values that fill the space, its ends first."""
    most = 2 ** (bits - 1) - 1
    spread = [((i + rank) * 0x9E3779B97F4A7C15 >> 11) % (2 * most + 1) - most for i in range(count)]
    return [most, -most, *spread][:count]


SECONDS = [
    (Second(3, 16, 49, 2, 13), NEAR, [[0, 2]]),
    (Second(2, 24, 45, 1, 20), FAR, [[1]]),
]


def case(second: Second, slot: dict[str, Any], senders: list[int]) -> dict[str, Any]:
    s, length = secret(len(senders)), 7
    packed = [sum((x + 1) * 3**k for k, x in enumerate(s[i : i + 5])) for i in range(0, N, 5)]
    vectors = {rank: numbers(length, second.bits, rank) for rank in senders}
    parts = {rank: second.encrypt(slot, s, rank, v) for rank, v in vectors.items()}
    rows = [second.residues(part) for part in parts.values()]
    summed = [sum(column) % second.q for column in zip(*rows, strict=True)]
    total = sum(x << (second.q_bits * i) for i, x in enumerate(summed))
    data = total.to_bytes(N * second.q_bits // 8, "little")
    opened = [sum(column) for column in zip(*vectors.values(), strict=True)]
    assert second.open(slot, s, senders, data, length) == opened
    return {
        **second.told,
        "group_key": GROUP_KEY.hex(),
        "slot": slot,
        "key": bytes(packed).hex(),
        "parts": [
            {"rank": rank, "values": vectors[rank], "ciphertext": part.hex()}
            for rank, part in parts.items()
        ],
        "total": hashlib.sha256(data).hexdigest(),
        "opened": opened,
    }


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/schemes/test_ckks_vectors.py, transforms and slots by definition",
        "cases": [case(second, slot, s) for second, slot, sets in SECONDS for s in sets],
    }


# --- against the library ---

CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def scheme_of(told: dict[str, Any]) -> Ckks:
    return Ckks(told["cohort"], told["bits"], told["ring"])


def key_of(told: dict[str, Any]) -> CkksSecret:
    packed = bytes.fromhex(told["key"])
    trits = [x // 3**k % 3 - 1 for x in packed for k in range(5)][:N]
    key = CkksSecret(told["ring"], np.array(trits, np.int8))
    assert packed in key.to_bytes()
    return key


@pytest.mark.parametrize("told", CASES, ids=lambda told: str(told["bits"]))
def test_vector(told: dict[str, Any]) -> None:
    """Parameters are the library's, and it opens what it did not encrypt."""
    scheme, key, slot = scheme_of(told), key_of(told), Slot(*context(told["slot"]))
    parameters = scheme.parameters()
    assert parameters["modulus"].hex().lstrip("0") == told["modulus"]
    for name in ("slot_bits", "slots", "scale_bits"):
        assert parameters[name] == told[name]
    total, length = None, len(told["opened"])
    for part in told["parts"]:
        data = np.frombuffer(bytes.fromhex(part["ciphertext"]), np.uint8)
        total = scheme.add(total, Sealed("fedml-he", slot, (part["rank"],), length, data))
    assert total is not None
    assert hashlib.sha256(total.data.tobytes()).hexdigest() == told["total"]
    opener = CkksOpener(scheme, key, bytes.fromhex(told["group_key"]))
    assert opener.decrypt(total).tolist() == told["opened"]


@pytest.mark.parametrize("told", CASES, ids=lambda told: str(told["bits"]))
def test_the_second_implementation_opens_what_the_library_encrypts(told: dict[str, Any]) -> None:
    scheme, key, slot = scheme_of(told), key_of(told), Slot(*context(told["slot"]))
    second = next(s for s, _, _ in SECONDS if s.bits == told["bits"])
    values = np.array(numbers(9, told["bits"], 5), np.int32)
    sealer = CkksSealer(scheme, key, GROUP_KEY, 1)
    sealed = sealer.encrypt(Plain(values, values[:2]), slot)
    opened = second.open(told["slot"], key.coefficients.tolist(), [1], sealed.data.tobytes(), 11)
    assert opened == [*values.tolist(), *values[:2].tolist()]


def test_a_public_part() -> None:
    """What a server is sent, in full: protobuf around SEAL's objects, and no key."""
    key, sizes = key_of(CASES[0]), scheme_of(CASES[0]).sizes

    def seal(members: bytes) -> str:
        return (
            bytes.fromhex("5ea110040300 0000") + (16 + len(members)).to_bytes(8, "little")
        ).hex() + members.hex()

    inner = bytes.fromhex(seal(sizes.q.to_bytes(8, "little")) + seal(bytes(8)))
    head = b"\x02" + N.to_bytes(8, "little") + (1).to_bytes(8, "little")
    parameters = bytes.fromhex(seal(head + inner))
    public = b"\x10\x07\x19" + bytes.fromhex("000000000000f0bf")
    expected = b"\x0a" + bytes([len(parameters)]) + parameters + b"\x12\x0b" + public + b"\x20\x01"
    made = key.public(sizes)
    assert made.context == expected
    assert CkksPublic.from_bytes(made.to_bytes()) == made


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()) + "\n")
