"""FLASHE on sparse vectors: any supports, senders and masking open to the sum, d by d."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.math.prg import AesCtr
from flhe.schemes.flashe import masking
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.sparse import SparseTotal, covered
from flhe.schemes.sealed import Sealed
from flhe.wire.derive import hkdf
from tests.laws import KEY, OTHER_KEY, SLOT, add_up

MODES = ("double", "single")


def stream(scheme: Flashe, mode: str, j: int, length: int) -> list[int]:
    """F(j, d) for d below `length`, from the definition, in Python integers."""
    key = hkdf(KEY, "flashe", *SLOT.context(), mode, scheme.lane_bits)
    lane = np.dtype(scheme.packing.lane)
    out = np.empty(length * lane.itemsize + 16, np.uint8)
    made = AesCtr("pycryptodome").stream(key, j)
    made.into(out, length * lane.itemsize)
    return [int(v) % (1 << scheme.lane_bits) for v in out[: length * lane.itemsize].view(lane)]


@dataclasses.dataclass
class Case:
    """One round of sparse vectors, encrypted."""

    scheme: Flashe
    length: int
    plains: list[Plain]
    supports: list[Support]
    parts: list[Sealed]
    mode: str

    def total(self, senders: tuple[int, ...], rng: np.random.Generator) -> Sealed:
        """Closed sum of some of them, added in a random order and grouping."""
        return self.scheme.close(add_up(self.scheme, [self.parts[i] for i in senders], rng))

    def expected(self, senders: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Dense sums of the coordinates, and sums of the extras."""
        dense = np.zeros(self.length, np.int64)
        for i in senders:
            np.add.at(dense, self.plains[i].coords, self.plains[i].values)
        return dense, np.sum([self.plains[i].extras for i in senders], axis=0)


def make(
    cohort: int,
    length: int,
    extras: int,
    mode: str,
    rng: np.random.Generator,
    *,
    masking_: Any = "adaptive",
    bits: int = 16,
    density: float | None = None,
    threads: int = 1,
    key: bytes = KEY,
) -> Case:
    scheme = Flashe(cohort, bits, masking_)
    bound = scheme.space.bound
    plains, supports, parts = [], [], []
    for rank in range(cohort):
        share = rng.random() if density is None else density
        coords = np.flatnonzero(rng.random(length) < share).astype(np.uint32)
        values = rng.integers(-bound, bound + 1, coords.size).astype(np.int32)
        extra = rng.integers(-bound, bound + 1, extras).astype(np.int32)
        plain = Plain(values, extra, coords)
        support = Support.of(coords, length)
        sealer = FlasheSealer(scheme, key, rank, threads=threads)
        told = mode if masking_ == "adaptive" else ""
        plains.append(plain)
        supports.append(support)
        parts.append(sealer.encrypt(plain, SLOT, mode=told, support=support))
    return Case(scheme, length, plains, supports, parts, mode)


def check(case: Case, senders: tuple[int, ...], rng: np.random.Generator) -> None:
    total = case.total(senders, rng)
    opened = FlasheOpener(case.scheme, KEY).decrypt(total)
    coords = covered(total.supports)
    dense, extras = case.expected(senders)
    got = np.zeros(case.length, np.int64)
    got[coords] = opened[: coords.size]
    assert np.array_equal(got, dense), senders
    assert np.array_equal(opened[coords.size :], extras), senders
    seen = np.zeros(case.length, np.int64)
    for i in senders:
        seen[case.plains[i].coords] += 1
    assert np.array_equal(coords, np.flatnonzero(seen))
    assert total.data.size == case.scheme.nbytes(coords.size + extras.size)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("cohort", range(2, 7))
def test_every_set_of_senders_opens_to_its_sum(cohort: int, fixed: bool, mode: str) -> None:
    rng = np.random.default_rng(cohort)
    case = make(cohort, 300, 7, mode, rng, masking_=mode if fixed else "adaptive")
    for size in range(1, cohort + 1):
        for senders in itertools.combinations(range(cohort), size):
            check(case, senders, rng)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(0, 400),
    st.integers(0, 9),
    st.sampled_from(MODES),
    st.sampled_from([2, 8, 16, 29, 31, 32]),
    st.integers(0, 2**32 - 1),
)
def test_any_patterns(
    cohort: int, length: int, extras: int, mode: str, bits: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    case = make(cohort, length, extras, mode, rng, bits=bits)
    count = int(rng.integers(1, cohort + 1))
    check(case, tuple(sorted(rng.choice(cohort, count, replace=False).tolist())), rng)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("length", [65_535, 140_001])
def test_lengths_beyond_one_chunk_and_threads_agree(mode: str, density: float, length: int) -> None:
    cases = [
        make(3, length, 5, mode, np.random.default_rng(1), density=density, threads=threads)
        for threads in (1, 3)
    ]
    rng = np.random.default_rng(2)
    check(cases[1], (0, 2), rng)
    one, three = (case.total((0, 1, 2), rng) for case in cases)
    assert one.digest() == three.digest()
    openers = [FlasheOpener(cases[0].scheme, KEY, threads=threads) for threads in (1, 3)]
    assert np.array_equal(openers[0].decrypt(one), openers[1].decrypt(three))


@pytest.mark.parametrize("mode", MODES)
def test_a_ciphertext_is_the_definition(mode: str) -> None:
    """c_d = m_d + F(j, d) - F(j + 1, d) at the coordinates sent; extras follow the last coordinate."""
    rng = np.random.default_rng(5)
    case = make(3, 90, 4, mode, rng)
    modulus = 1 << case.scheme.lane_bits
    for rank, (plain, part) in enumerate(zip(case.plains, case.parts, strict=True)):
        ours = stream(case.scheme, mode, rank, 94)
        if mode == "double":
            above = stream(case.scheme, mode, rank + 1, 94)
            ours = [(a - b) % modulus for a, b in zip(ours, above, strict=True)]
        assert plain.coords is not None
        where = [*plain.coords.tolist(), *range(90, 94)]
        what = [*plain.values.tolist(), *plain.extras.tolist()]
        expected = [(v + ours[d]) % modulus for d, v in zip(where, what, strict=True)]
        packing = case.scheme.packing
        out = np.empty(part.length, packing.signed)
        packing.unpack(part.data, np.zeros(part.length, packing.lane), out)
        assert [int(v) % modulus for v in out] == expected


@pytest.mark.parametrize("masking_", MODES)
def test_a_full_support_is_the_dense_ciphertext(masking_: str) -> None:
    """Sparse and dense vectors have the same masks: a support changes only what is left out."""
    rng = np.random.default_rng(6)
    scheme = Flashe(3, 16, masking_)  # type: ignore[arg-type]
    values = rng.integers(-9, 10, 200).astype(np.int32)
    coords = np.arange(200, dtype=np.uint32)
    extras = np.array([1, 2], np.int32)
    dense = FlasheSealer(scheme, KEY, 1).encrypt(Plain(values, extras), SLOT)
    full = FlasheSealer(scheme, KEY, 1).encrypt(
        Plain(values, extras, coords), SLOT, support=Support.of(coords, 200)
    )
    assert np.array_equal(dense.data, full.data)


@pytest.mark.parametrize("mode", MODES)
def test_masks_made_are_those_that_were_counted(mode: str) -> None:
    """The server's count is of the very masks that the definition of opening has, d by d."""
    rng = np.random.default_rng(7)
    case = make(6, 120, 3, mode, rng)
    senders = (0, 1, 3, 4, 5)
    bitmaps = [(i, case.supports[i].bitmap()) for i in senders]
    sealing = (1 if mode == "single" else 2) * sum(case.supports[i].count + 3 for i in senders)
    opening = 0
    for d in range(123):
        there = [i for i in senders if d >= 120 or d in set(case.plains[i].coords.tolist())]  # type: ignore[union-attr]
        opening += sum(len(terms) for terms in case.scheme.mask_terms(there, mode))
    assert masking.count(mode, bitmaps, 3, 6) == sealing + 6 * opening  # type: ignore[arg-type]


def test_the_mode_is_in_the_key() -> None:
    """Both maskings of one slot never share a mask, or their difference would be one stream."""
    scheme = Flashe(4, 16, "adaptive")
    for j in range(5):
        assert stream(scheme, "double", j, 50) != stream(scheme, "single", j, 50)


def test_what_does_not_belong_together_is_not_added() -> None:
    rng = np.random.default_rng(8)
    double, single = (make(3, 100, 2, mode, np.random.default_rng(8)) for mode in MODES)
    other = make(3, 101, 2, "double", rng)
    add = double.scheme.add
    with pytest.raises(ProtocolError, match="mode"):
        add(add(None, double.parts[0]), single.parts[1])
    with pytest.raises(ProtocolError, match="another length"):
        add(add(None, double.parts[0]), other.parts[1])
    with pytest.raises(ReuseError):
        add(add(None, double.parts[0]), double.parts[0])
    dense = FlasheSealer(double.scheme, KEY, 2).encrypt(
        Plain(np.zeros(100, np.int32), np.zeros(2, np.int32)), SLOT, mode="double"
    )
    with pytest.raises(ProtocolError, match="sparse"):
        add(add(None, double.parts[0]), dense)
    with pytest.raises(ProtocolError, match="sparse"):
        add(add(None, dense), double.parts[0])
    for mode in ("", "triple"):
        with pytest.raises(ProtocolError, match="mode"):
            add(None, dataclasses.replace(double.parts[0], mode=mode))
    with pytest.raises(ProtocolError, match="mode"):
        Flashe(3, 16, "single").add(None, single.parts[0])


def test_the_sealer_refuses_values_that_are_not_its_supports() -> None:
    scheme = Flashe(3, 16, "adaptive")
    coords = np.array([1, 5], np.uint32)
    plain = Plain(np.zeros(2, np.int32), np.zeros(1, np.int32), coords)
    sealer = FlasheSealer(scheme, KEY, 0)
    for support in (None, Support.of(np.array([1, 6], np.uint32), 9)):
        with pytest.raises(ProtocolError):
            sealer.encrypt(plain, SLOT, mode="double", support=support)
    with pytest.raises(ProtocolError, match="mode"):
        sealer.encrypt(plain, SLOT, support=Support.of(coords, 9))
    sealer.encrypt(plain, SLOT, mode="double", support=Support.of(coords, 9))
    with pytest.raises(ReuseError):  # the slot is used, whatever the mode
        sealer.encrypt(plain, SLOT, mode="single", support=Support.of(coords, 9))


@pytest.mark.parametrize("mode", MODES)
def test_altered_supports_do_not_open_to_the_sum(mode: str) -> None:
    rng = np.random.default_rng(9)
    case = make(3, 200, 3, mode, rng, density=0.3)
    total = case.total((0, 1, 2), rng)
    swapped = dataclasses.replace(total, supports=total.supports[1:] + total.supports[:1])
    dense, _ = case.expected((0, 1, 2))
    coords = covered(swapped.supports)
    opened = FlasheOpener(case.scheme, KEY).decrypt(swapped)
    assert np.count_nonzero(opened[: coords.size] != dense[coords]) > 20
    short = dataclasses.replace(total, length=10, data=total.data[:25])
    with pytest.raises(ProtocolError, match="shorter"):
        FlasheOpener(case.scheme, KEY).decrypt(short)


def test_another_key_opens_to_noise() -> None:
    rng = np.random.default_rng(10)
    case = make(3, 500, 3, "double", rng)
    total = case.total((0, 1, 2), rng)
    right = FlasheOpener(case.scheme, KEY).decrypt(total)
    wrong = FlasheOpener(case.scheme, OTHER_KEY).decrypt(total)
    assert np.count_nonzero(right == wrong) < 5


def _opened(case: Case, header: bytes, body: NDArray[np.uint8]) -> NDArray[Any]:
    return FlasheOpener(case.scheme, KEY).decrypt(Sealed.from_parts(header, body))


def test_a_closed_sum_travels() -> None:
    rng = np.random.default_rng(11)
    case = make(4, 700, 3, "single", rng)
    running = add_up(case.scheme, [case.parts[i] for i in (0, 2, 3)], rng)
    assert isinstance(running, SparseTotal)
    total = case.scheme.close(running)
    body = np.frombuffer(b"".join(total.body()), np.uint8)
    again = Sealed.from_parts(total.header(), body)
    assert again.digest() == total.digest()
    assert [s.data for s in again.supports] == [s.data for s in total.supports]
    for changed in (body[:-1], np.concatenate([body, body[:1]])):
        with pytest.raises(ProtocolError):
            _opened(case, total.header(), changed)
    flipped = body.copy()
    flipped[-1] ^= 1
    with pytest.raises(ProtocolError):
        Sealed.from_parts(total.header(), flipped)
