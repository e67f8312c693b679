"""FLASHE: the paper's own formulas, a second implementation, vectors, and what a mask costs.

The second implementation knows the protocol and nothing of the library: HKDF by `cryptography`, AES
one block at a time by PyCryptodome, packing by long strings of digits.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import AES
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe import errors
from flhe.coding.base import Plain
from flhe.math import COLUMNS
from flhe.math.prg import AesCtr, Stream
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sealed import Sealed, Slot

FILE = pathlib.Path(__file__).parents[1] / "vectors/flashe.json"
KEY = bytes(range(32))
SLOT = Slot(7, bytes([1]) * 32, bytes([2]) * 16, 3, 0, bytes([4]) * 32, bytes([5]) * 32)
NOTHING = np.empty(0, np.int32)


# --- the paper, to the letter ---


class Paper:
    """FLASHE as printed: Eq. 1 to 3 with F an AES-256 block, n = 2^32, four scalars a block."""

    def __init__(self, key: bytes, iteration: int) -> None:
        self._aes = AES.new(key, AES.MODE_ECB)
        self._iteration = iteration

    def f(self, client: int, d: int) -> int:
        block = self._aes.encrypt(
            self._iteration.to_bytes(4, "big")
            + client.to_bytes(4, "big")
            + (d // 4).to_bytes(8, "big")
        )
        lane = d % 4
        return int.from_bytes(block[4 * lane : 4 * lane + 4], "little")

    def encrypt(self, client: int, plain: list[int]) -> list[int]:
        """Eq. 1."""
        return [
            (m + self.f(client, d) - self.f(client + 1, d)) % 2**32 for d, m in enumerate(plain)
        ]

    def decrypt(self, clients: Iterable[int], total: list[int]) -> list[int]:
        """Eq. 3."""
        return [
            (c + sum(self.f(j + 1, d) - self.f(j, d) for j in clients)) % 2**32
            for d, c in enumerate(total)
        ]


def test_the_paper_to_the_letter() -> None:
    paper = Paper(KEY, iteration=7)
    assert paper.encrypt(1, [1, 2, 3, 4, 5]) == [
        43931977,
        1892371943,
        2852366573,
        187563858,
        3236385248,
    ]


def test_equation_3_opens_any_subset() -> None:
    paper = Paper(KEY, iteration=7)
    plains = {j: [j * 100 + d for d in range(6)] for j in range(1, 5)}
    sealed = {j: paper.encrypt(j, plain) for j, plain in plains.items()}
    for size in range(1, 5):
        for clients in itertools.combinations(plains, size):
            total = [
                sum(column) % 2**32 for column in zip(*(sealed[j] for j in clients), strict=True)
            ]
            opened = paper.decrypt(clients, total)
            assert opened == [
                sum(column) for column in zip(*(plains[j] for j in clients), strict=True)
            ]


# --- ours, a second time ---


def cbor(item: int | bytes | str | list[Any]) -> bytes:
    """Canonical CBOR of what a derivation is bound to."""

    def head(major: int, n: int) -> bytes:
        if n < 24:
            return bytes([major << 5 | n])
        size = next(k for k in (0, 1, 2, 3) if n < 1 << (8 << k))
        return bytes([major << 5 | 24 + size]) + n.to_bytes(1 << size, "big")

    if isinstance(item, int):
        return head(0, item)
    if isinstance(item, bytes):
        return head(2, len(item)) + item
    if isinstance(item, str):
        return head(3, len(item.encode())) + item.encode()
    return head(4, len(item)) + b"".join(cbor(i) for i in item)


@dataclass(frozen=True)
class Second:
    """Our FLASHE in Python integers.

    Parameters
    ----------
    cohort, bits, masking
        As for `Flashe`.
    slot : Slot
        The round.
    key : bytes
        K_G.
    """

    cohort: int
    bits: int
    masking: str
    slot: Slot = SLOT
    key: bytes = KEY

    @property
    def b(self) -> int:
        extra = 0
        while 2**extra < self.cohort:
            extra += 1
        return self.bits + extra

    def round_key(self) -> bytes:
        s = self.slot
        context = [s.run_id, s.roster_hash, s.epoch, s.round, s.attempt, s.layout_hash, s.history]
        info = cbor(["flhe/v1/flashe", *context, self.masking, self.b])
        return HKDF(SHA256(), 32, salt=b"", info=info).derive(self.key)

    def f(self, j: int, length: int) -> list[int]:
        """F(j, d) for d < length."""
        aes = AES.new(self.round_key(), AES.MODE_ECB)
        lane = 4 if self.b <= 32 else 8
        stream = b""
        block = 0
        while len(stream) < lane * length:
            stream += aes.encrypt(j.to_bytes(8, "big") + block.to_bytes(8, "big"))
            block += 1
        return [
            int.from_bytes(stream[at : at + lane], "little") for at in range(0, lane * length, lane)
        ]

    def mask(self, j: int, length: int) -> list[int]:
        mine = self.f(j, length)
        if self.masking == "single":
            return mine
        return [a - b for a, b in zip(mine, self.f(j + 1, length), strict=True)]

    def lanes(self, j: int, plain: list[int]) -> list[int]:
        """Ciphertext, before packing."""
        return [(m + k) % 2**self.b for m, k in zip(plain, self.mask(j, len(plain)), strict=True)]

    def pack(self, lanes: list[int]) -> bytes:
        word = 32 if self.b <= 32 else 64
        digits = [f"{lane % 2**self.b:0{self.b}b}" for lane in lanes]
        out = bytearray()
        block = word * COLUMNS
        whole = len(lanes) // block * block
        for at in range(0, whole, block):
            columns = [
                int("".join(reversed(digits[at + c : at + block : COLUMNS])), 2).to_bytes(
                    self.b * word // 8, "little"
                )
                for c in range(COLUMNS)
            ]
            size = word // 8
            for k in range(self.b):
                out += b"".join(column[k * size : (k + 1) * size] for column in columns)
        rest = digits[whole:]
        string = int("".join(reversed(rest)) or "0", 2)
        return bytes(out) + string.to_bytes((len(rest) * self.b + 7) // 8, "little")

    def encrypt(self, j: int, plain: list[int]) -> bytes:
        return self.pack(self.lanes(j, plain))

    def open(self, senders: Iterable[int], total: list[int]) -> list[int]:
        """Eq. 3, term by term: nothing telescopes here."""
        for j in senders:
            total = [t - k for t, k in zip(total, self.mask(j, len(total)), strict=True)]
        half = 2 ** (self.b - 1)
        return [(t + half) % 2**self.b - half for t in total]


def plaintext(bits: int, length: int, salt: int) -> list[int]:
    """Values that fill the space, by formula."""
    levels = 2 ** (bits - 1) - 1
    return [
        ((i + salt) * 0x9E3779B97F4A7C15 >> 11) % (2 * levels + 1) - levels for i in range(length)
    ]


def sealer(scheme: Flashe, rank: int, slot: Slot = SLOT, prg: Any = None) -> FlasheSealer:
    return FlasheSealer(scheme, KEY, rank, prg or AesCtr())


def encrypt(scheme: Flashe, rank: int, plain: list[int], slot: Slot = SLOT) -> Sealed:
    return sealer(scheme, rank).encrypt(Plain(np.array(plain, np.int32), NOTHING), slot)


def lanes_of(scheme: Flashe, sealed: Sealed) -> list[int]:
    packing = scheme.packing
    out = np.empty(sealed.length, packing.signed)
    zero = np.zeros(sealed.length, packing.lane)
    return [v % 2**packing.bits for v in packing.unpack(sealed.data, zero, out).tolist()]


@pytest.mark.parametrize("masking", ["double", "single"])
@pytest.mark.parametrize(
    ("bits", "cohort"),
    [(2, 2), (2, 3), (8, 5), (16, 10), (16, 16), (28, 16), (29, 9), (32, 2), (32, 5)],
)
def test_agrees_with_the_second_implementation(bits: int, cohort: int, masking: str) -> None:
    scheme = Flashe(cohort, bits, masking)  # type: ignore[arg-type]
    second = Second(cohort, bits, masking)
    assert scheme.lane_bits == second.b
    for length in (0, 1, 5, 130, scheme.packing.block + 3):
        plains = [plaintext(bits, length, j) for j in range(min(cohort, 4))]
        parts = [encrypt(scheme, j, plain) for j, plain in enumerate(plains)]
        ours = [second.lanes(j, plain) for j, plain in enumerate(plains)]
        for part, lanes in zip(parts, ours, strict=True):
            assert part.data.tobytes() == second.pack(lanes)
        for senders in ((0,), (1,), (0, 1), (0, len(parts) - 1), tuple(range(len(parts)))):
            if len(set(senders)) < len(senders):
                continue
            total = None
            for j in senders:
                total = scheme.add(total, parts[j])
            assert total is not None
            summed = [sum(column) for column in zip(*(ours[j] for j in senders), strict=True)]
            assert total.data.tobytes() == second.pack(summed)
            opened = FlasheOpener(scheme, KEY).decrypt(total).tolist()
            assert opened == second.open(senders, summed)
            assert opened == [sum(c) for c in zip(*(plains[j] for j in senders), strict=True)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 32),
    st.integers(2, 1024),
    st.sampled_from(["double", "single"]),
    st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=1, max_size=30),
    st.sets(st.integers(0, 1023), min_size=1, max_size=5),
    st.builds(
        Slot,
        st.integers(0, 2**64 - 1),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
    ),
)
def test_agrees_with_the_second_implementation_anywhere(
    bits: int, cohort: int, masking: str, numbers: list[int], ranks: set[int], slot: Slot
) -> None:
    levels = 2 ** (bits - 1) - 1
    plain = [n % (2 * levels + 1) - levels for n in numbers]
    scheme, second = Flashe(cohort, bits, masking), Second(cohort, bits, masking, slot)  # type: ignore[arg-type]
    senders = sorted({rank % cohort for rank in ranks})
    total = None
    for j in senders:
        part = encrypt(scheme, j, plain, slot)
        assert part.data.tobytes() == second.encrypt(j, plain)
        total = scheme.add(total, part)
    assert total is not None
    opened = FlasheOpener(scheme, KEY).decrypt(total).tolist()
    assert opened == [len(senders) * m for m in plain]
    assert opened == second.open(senders, lanes_of(scheme, total))


# --- masks ---


@pytest.mark.parametrize("cohort", [2, 3, 8])
def test_a_full_sum_keeps_its_first_and_last_mask(cohort: int) -> None:
    """With j + 1 taken modulo N, all masks of a full sum would cancel and the server would read it."""
    scheme, second = Flashe(cohort, 16), Second(cohort, 16, "double")
    plain = plaintext(16, 200, 1)
    total = None
    for j in range(cohort):
        total = scheme.add(total, encrypt(scheme, j, plain))
    assert total is not None
    rest = [
        (lane - cohort * m) % 2**second.b
        for lane, m in zip(lanes_of(scheme, total), plain, strict=True)
    ]
    first, last = second.f(0, 200), second.f(cohort, 200)
    assert rest == [(a - b) % 2**second.b for a, b in zip(first, last, strict=True)]
    assert sum(r != 0 for r in rest) > 190


@given(st.sets(st.integers(0, 40), min_size=1))
def test_masks_telescope_over_runs(senders: set[int]) -> None:
    double, single = Flashe(41), Flashe(41, masking="single")
    plus, minus = double.mask_terms(senders)
    terms: dict[int, int] = {}
    for j in senders:
        terms[j] = terms.get(j, 0) + 1
        terms[j + 1] = terms.get(j + 1, 0) - 1
    assert sorted(plus) == sorted(j for j, sign in terms.items() if sign == 1)
    assert sorted(minus) == sorted(j for j, sign in terms.items() if sign == -1)
    runs = sum(j - 1 not in senders for j in senders)
    assert len(plus) == len(minus) == runs
    assert single.mask_terms(senders) == (sorted(senders), [])


class Counting:
    """A Prg that counts streams."""

    name = "counting"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def stream(self, key: bytes, number: int, block: int = 0) -> Stream:
        self.numbers.append(number)
        return AesCtr().stream(key, number, block)


@pytest.mark.parametrize(
    ("masking", "senders", "streams"),
    [
        ("double", range(9), [0, 9]),
        ("double", [0, 1, 2, 5, 6], [0, 3, 5, 7]),
        ("double", [0, 2, 4], [0, 1, 2, 3, 4, 5]),
        ("single", [0, 1, 2, 5, 6], [0, 1, 2, 5, 6]),
    ],
)
def test_opening_costs_two_streams_a_run(
    masking: Any, senders: Iterable[int], streams: list[int]
) -> None:
    scheme = Flashe(9, 16, masking)
    total = None
    for j in senders:
        prg = Counting()
        part = sealer(scheme, j, prg=prg).encrypt(Plain(np.ones(10, np.int32), NOTHING), SLOT)
        assert sorted(prg.numbers) == ([j, j + 1] if masking == "double" else [j])
        total = scheme.add(total, part)
    assert total is not None
    prg = Counting()
    assert set(FlasheOpener(scheme, KEY, prg).decrypt(total).tolist()) == {len(total.senders)}
    assert sorted(prg.numbers) == streams


def test_the_two_modes_share_no_mask() -> None:
    """A server that asked for both in one round would otherwise hold F(j + 1) alone."""
    assert Second(3, 16, "double").round_key() != Second(3, 16, "single").round_key()
    double, single = Flashe(3, 16, "double"), Flashe(3, 16, "single")
    both = [lanes_of(scheme, encrypt(scheme, 1, [0] * 64)) for scheme in (double, single)]
    difference = [(f - masked) % 2**18 for masked, f in zip(*both, strict=True)]
    next_mask = lanes_of(single, encrypt(single, 2, [0] * 64))
    assert sum(a == b for a, b in zip(difference, next_mask, strict=True)) < 4


@pytest.mark.parametrize("bits", [2, 16, 31])
def test_lane_width_is_part_of_the_derivation(bits: int) -> None:
    narrow, wide = Second(4, bits, "double"), Second(5, bits, "double")
    assert narrow.round_key() != wide.round_key()
    assert lanes_of(Flashe(4, bits), encrypt(Flashe(4, bits), 0, [0] * 40)) != [
        lane % 2**narrow.b
        for lane in lanes_of(Flashe(5, bits), encrypt(Flashe(5, bits), 0, [0] * 40))
    ]


# --- sizes ---


def test_the_size_that_the_paper_reports() -> None:
    """16384 values, w = 16, N = 10: 40 KiB, exactly 20 bits a value."""
    scheme = Flashe(10, 16)
    assert scheme.lane_bits == 20
    assert scheme.nbytes(16384) == 40_960
    assert encrypt(scheme, 3, [0] * 16384).data.size == 40_960


@pytest.mark.parametrize(
    ("cohort", "more"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (100, 7), (1024, 10)]
)
def test_headroom_is_the_logarithm_of_the_cohort(cohort: int, more: int) -> None:
    assert Flashe(cohort, 16).lane_bits == 16 + more
    levels = 2**15 - 1
    assert cohort * levels < 2 ** (16 + more - 1)


@pytest.mark.parametrize(
    "parameters",
    [
        (1, 16),
        (0, 16),
        (-3, 16),
        (1025, 16),
        (3, 1),
        (3, 33),
        (3, 0),
        (3, 16, "triple"),
        (3, 16, ""),
    ],
)
def test_parameters_that_cannot_be(parameters: tuple[Any, ...]) -> None:
    with pytest.raises(errors.ConfigError, match=r"must be|masking is"):
        Flashe(*parameters)


# --- vectors ---


def slot_fields(slot: Slot) -> dict[str, Any]:
    return {
        "run_id": slot.run_id,
        "roster_hash": slot.roster_hash.hex(),
        "epoch": slot.epoch.hex(),
        "round": slot.round,
        "attempt": slot.attempt,
        "layout_hash": slot.layout_hash.hex(),
        "history": slot.history.hex(),
    }


def positive(
    cohort: int,
    bits: int,
    masking: str,
    slot: Slot,
    plains: dict[int, list[int]],
    sums: list[list[int]],
) -> dict[str, Any]:
    """One case of the file, by the second implementation."""
    second = Second(cohort, bits, masking, slot)
    lanes = {j: second.lanes(j, plain) for j, plain in plains.items()}
    return {
        "cohort": cohort,
        "bits": bits,
        "masking": masking,
        "key": KEY.hex(),
        "slot": slot_fields(slot),
        "lane_bits": second.b,
        "round_key": second.round_key().hex(),
        "parts": [
            {"rank": j, "plain": plain, "ciphertext": second.pack(lanes[j]).hex()}
            for j, plain in plains.items()
        ],
        "sums": [
            {
                "senders": senders,
                "ciphertext": second.pack(
                    [sum(c) for c in zip(*(lanes[j] for j in senders), strict=True)]
                ).hex(),
                "plain": [sum(c) for c in zip(*(plains[j] for j in senders), strict=True)],
            }
            for senders in sums
        ],
    }


def vectors() -> list[dict[str, Any]]:
    """Every case of the file."""
    ids = [bytes(range(at, at + 32)) for at in (0, 32, 64)]
    far = Slot(2**64 - 1, ids[0], bytes(range(16)), 2**32 - 1, 2**32 - 1, ids[1], ids[2])
    cases = [
        positive(
            3,
            16,
            masking,
            slot,
            {0: [0, 1, -1, 32767, -32767], 1: [5, 4, 3, 2, 1], 2: [0, 0, 0, 0, -7]},
            [[0], [0, 1], [0, 2], [0, 1, 2]],
        )
        for masking in ("double", "single")
        for slot in (SLOT, far)
    ]
    cases.append(
        positive(10, 16, "double", SLOT, {9: plaintext(16, 9, 1), 4: plaintext(16, 9, 2)}, [[4, 9]])
    )
    most = 2**31 - 1
    cases.append(
        positive(2, 32, "double", SLOT, {0: [most, -most, 0], 1: [most, -most, 1]}, [[0, 1]])
    )
    cases.append(positive(1024, 2, "double", SLOT, {1023: [1, -1, 0], 0: [1, 0, 0]}, [[0, 1023]]))
    cases.append(positive(2, 8, "single", SLOT, {1: []}, [[1]]))
    base = {"cohort": 3, "bits": 16, "masking": "double", "plain": [1, 2, 3]}
    header = bytes.fromhex("8601")
    negative: list[dict[str, Any]] = [
        {**base, "cohort": 1, "at": "configure", "error": "ConfigError"},
        {**base, "cohort": 1025, "at": "configure", "error": "ConfigError"},
        {**base, "bits": 1, "at": "configure", "error": "ConfigError"},
        {**base, "bits": 33, "at": "configure", "error": "ConfigError"},
        {**base, "masking": "none", "at": "configure", "error": "ConfigError"},
        {**base, "rank": 3, "at": "seal", "error": "ProtocolError"},
        {**base, "rank": -1, "at": "seal", "error": "ProtocolError"},
        {**base, "plain": [32768], "at": "encrypt", "error": "RangeError"},
        {**base, "plain": [-32768], "at": "encrypt", "error": "RangeError"},
        {**base, "plain": [0.5], "at": "encrypt", "error": "RangeError"},
        {**base, "times": 2, "at": "encrypt", "error": "ReuseError"},
        {**base, "senders": [0, 0], "at": "add", "error": "ReuseError"},
        {**base, "senders": [0, 3], "at": "add", "error": "ProtocolError"},
        {**base, "change": {"scheme": "eshe"}, "at": "add", "error": "ProtocolError"},
        {**base, "change": {"length": 4}, "at": "add", "error": "ProtocolError"},
        {**base, "change": {"round": 4}, "at": "add", "error": "ProtocolError"},
        {**base, "change": {"attempt": 1}, "at": "add", "error": "ProtocolError"},
        {**base, "senders": [], "at": "decrypt", "error": "ReuseError"},
        {**base, "senders": [1, 0], "at": "decrypt", "error": "ReuseError"},
        {**base, "senders": [0, 3], "at": "decrypt", "error": "ProtocolError"},
        {**base, "change": {"scheme": "eshe"}, "at": "decrypt", "error": "ProtocolError"},
        {**base, "change": {"length": 4}, "at": "decrypt", "error": "ProtocolError"},
        {**base, "header": header.hex(), "at": "header", "error": "ProtocolError"},
        {**base, "header": "", "at": "header", "error": "ProtocolError"},
    ]
    return cases + negative


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/schemes/test_flashe.py, by Python integers, one AES block at a time",
        "cases": vectors(),
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []
GOOD = [case for case in CASES if "error" not in case]
BAD = [case for case in CASES if "error" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


@pytest.mark.parametrize("case", GOOD, ids=lambda c: f"{c['cohort']}-{c['bits']}-{c['masking']}")
def test_vector(case: dict[str, Any]) -> None:
    fields = case["slot"]
    slot = Slot(**{k: bytes.fromhex(v) if isinstance(v, str) else v for k, v in fields.items()})
    scheme = Flashe(case["cohort"], case["bits"], case["masking"])
    key = bytes.fromhex(case["key"])
    assert scheme.lane_bits == case["lane_bits"]
    parts = {}
    for part in case["parts"]:
        one = FlasheSealer(scheme, key, part["rank"])
        sealed = one.encrypt(Plain(np.array(part["plain"], np.int32), NOTHING), slot)
        assert sealed.data.tobytes().hex() == part["ciphertext"]
        parts[part["rank"]] = sealed
    for expected in case["sums"]:
        total = None
        for rank in expected["senders"]:
            total = scheme.add(total, parts[rank])
        assert total is not None
        assert total.data.tobytes().hex() == expected["ciphertext"]
        received = Sealed.from_parts(total.header(), total.data)
        assert FlasheOpener(scheme, key).decrypt(received).tolist() == expected["plain"]


STEPS = ["configure", "seal", "encrypt", "add", "decrypt", "header"]


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['error']}-{c}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    """Each fails at its own step, and all steps before it pass."""

    def changed(sealed: Sealed) -> Sealed:
        change = case.get("change", {})
        slot = sealed.slot
        fields = {f: change.get(f, getattr(slot, f)) for f in slot_fields(slot)}
        return Sealed(
            change.get("scheme", sealed.scheme),
            Slot(**fields),
            tuple(case["senders"])
            if case["at"] == "decrypt" and "senders" in case
            else sealed.senders,
            change.get("length", sealed.length),
            sealed.data,
        )

    reached = []

    def run() -> None:
        reached.append("configure")
        scheme = Flashe(case["cohort"], case["bits"], case["masking"])
        reached.append("seal")
        one = FlasheSealer(scheme, KEY, case.get("rank", 0))
        reached.append("encrypt")
        whole = all(isinstance(m, int) for m in case["plain"])
        plain = Plain(np.array(case["plain"], np.int32 if whole else np.float32), NOTHING)
        for _ in range(case.get("times", 1)):
            part = one.encrypt(plain, SLOT)
        if case["at"] == "add":
            reached.append("add")
            ranks = case.get("senders", [0, 1])
            total = scheme.add(None, part)
            other = Sealed(part.scheme, part.slot, (ranks[1],), part.length, part.data.copy())
            scheme.add(total, changed(other))
        if case["at"] == "decrypt":
            reached.append("decrypt")
            FlasheOpener(scheme, KEY).decrypt(changed(part))
        if case["at"] == "header":
            reached.append("header")
            Sealed.from_parts(bytes.fromhex(case["header"]), part.data)

    with pytest.raises(errors.FlheError) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    assert reached[-1] == case["at"]


if __name__ == "__main__":
    text = json.dumps(contents()).replace('{"cohort"', '\n{"cohort"')
    FILE.write_text(text + "\n")


@pytest.mark.parametrize("bits", [2, 16, 32])
def test_what_is_prepared_becomes_the_ciphertext(bits: int) -> None:
    scheme = Flashe(20, bits)
    sealer = FlasheSealer(scheme, KEY, 4)
    length = 2 * scheme.packing.block + 7
    sealer.prepare(SLOT, length)
    (ready,) = sealer._ready.values()
    assert ready.size == scheme.nbytes(length)  # b bits a value, not a whole lane
    sealed = sealer.encrypt(Plain(np.ones(length, np.int32), NOTHING), SLOT)
    assert np.shares_memory(sealed.data, ready)
    assert not sealer._ready
    assert FlasheOpener(scheme, KEY).decrypt(sealed).tolist() == [1] * length
