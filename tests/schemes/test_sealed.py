"""Sealed: its header there and back, and nothing but FlheError for any other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.schemes.sealed import (
    MAX_HEADER,
    MAX_LENGTH,
    VERSION,
    Sealed,
    check_senders,
    from_bytes,
    merged_senders,
    to_bytes,
)
from flhe.wire import canonical
from tests.laws import OTHER_SLOTS, SLOT

DATA = np.arange(12, dtype=np.uint8)
SEALED = Sealed("flashe", SLOT, (0, 2, 5), 30, DATA)
CONTEXT = SLOT.to_fields()
FIELDS = [VERSION, "flashe", "", CONTEXT, [0, 2, 5], 30, []]

WIDTH = 40
SUPPORTS = tuple(
    Support.of(np.array(coords, np.uint32), WIDTH) for coords in ([0, 7, 39], [], [1, 2, 3, 4])
)
SPARSE = dataclasses.replace(SEALED, length=12, mode="single", supports=SUPPORTS)
TOLD = [[s.length, len(s.data), s.digest()] for s in SUPPORTS]


def body_of(sealed: Sealed) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(sealed.body()), np.uint8)


@given(
    st.lists(st.sets(st.integers(0, WIDTH - 1)), min_size=1, max_size=6),
    st.binary(max_size=30),
)
def test_supports_go_there_and_back(sets: list[set[int]], data: bytes) -> None:
    supports = tuple(Support.of(np.array(sorted(s), np.uint32), WIDTH) for s in sets)
    senders, ciphertext = tuple(range(len(sets))), np.frombuffer(data, np.uint8)
    sealed = Sealed("flashe", SLOT, senders, 30, ciphertext, "double", supports)
    whole = body_of(sealed)
    assert whole.tobytes() == data + b"".join(s.data for s in supports)
    together = Sealed.from_parts(sealed.header(), whole)
    before = Sealed.from_parts(sealed.header(), ciphertext, supports)
    with pytest.raises(ProtocolError, match="dense one was expected"):
        from_bytes(to_bytes(sealed))
    for again in (together, before):
        assert again.supports == supports
        assert (again.mode, again.data.tobytes()) == ("double", data)
        assert again.header() == sealed.header()
        assert again.digest() == sealed.digest()
    assert before.data is ciphertext


def test_supports_that_are_not_those_of_the_header() -> None:
    header, whole = SPARSE.header(), body_of(SPARSE)
    assert Sealed.from_parts(header, whole).supports == SUPPORTS
    for supports in ((), SUPPORTS[:2], SUPPORTS[::-1], (*SUPPORTS, SUPPORTS[0])):
        with pytest.raises(ProtocolError):
            Sealed.from_parts(header, SPARSE.data, supports)
    with pytest.raises(ProtocolError):
        Sealed.from_parts(SEALED.header(), SEALED.data, SUPPORTS)
    tail = sum(len(s.data) for s in SUPPORTS)
    altered = np.tile(whole, (tail, 1))
    altered[range(tail), range(-tail, 0)] ^= 1
    for body in (*altered, *(whole[:size] for size in range(tail))):
        with pytest.raises(ProtocolError):
            Sealed.from_parts(header, body)


def test_supports_that_no_ciphertext_has() -> None:
    for supports in (SUPPORTS[:2], (*SUPPORTS, SUPPORTS[0])):
        with pytest.raises(ProtocolError, match="one support for each sender"):
            dataclasses.replace(SEALED, supports=supports)
    longer = Support.of(np.array([0], np.uint32), WIDTH + 1)
    with pytest.raises(ProtocolError, match="different lengths"):
        dataclasses.replace(SEALED, supports=(*SUPPORTS[:2], longer))


def test_a_header_for_the_largest_cohort_fits() -> None:
    sealed = Sealed("flashe", SLOT, tuple(range(1024)), 30, DATA)
    assert len(sealed.header()) < 4096 < MAX_HEADER
    assert Sealed.from_parts(sealed.header(), DATA).senders == sealed.senders
    full = Support.of(np.arange(0, (1 << 31) - 1, 1 << 20, dtype=np.uint32), (1 << 31) - 1)
    crowd = dataclasses.replace(sealed, mode="double", supports=(full,) * 1024)
    assert len(crowd.header()) < 52 << 10 < MAX_HEADER
    assert Sealed.from_parts(crowd.header(), body_of(crowd)).supports == crowd.supports


def test_the_digest_is_over_everything() -> None:
    others = [dataclasses.replace(SEALED, slot=slot) for slot in OTHER_SLOTS.values()]
    others += [
        dataclasses.replace(SEALED, **change)
        for change in (
            {"scheme": "other"},
            {"senders": (0, 2)},
            {"length": 31},
            {"data": DATA[:-1]},
            {"data": DATA ^ np.uint8(1)},
            {"mode": "single"},
            {"mode": "double"},
            {"supports": SUPPORTS},
            {"supports": SUPPORTS[::-1]},
            {"supports": (SUPPORTS[0],) * 3},
        )
    ]
    digests = {SEALED.digest(), *(other.digest() for other in others)}
    assert len(digests) == len(others) + 1
    assert all(len(d) == 32 for d in digests)


def with_field(index: int, value: Any) -> list[Any]:
    return [*FIELDS[:index], value, *FIELDS[index + 1 :]]


CUT = [[WIDTH, -5, bytes(32)], [WIDTH, 5, bytes(32)], TOLD[2]]
MALFORMED: dict[str, Any] = {
    "version 1": with_field(0, 1),
    "no senders": with_field(4, []),
    "senders descend": with_field(4, [2, 0]),
    "sender negative": with_field(4, [-1, 0]),
    "length negative": with_field(5, -1),
    "length too large": with_field(5, MAX_LENGTH),
    "fewer supports than senders": with_field(6, TOLD[:2]),
    "supports that are not there": with_field(6, TOLD),
    "sizes that make up for each other": with_field(6, CUT),
    "a support of another digest": with_field(6, [[*TOLD[0][:2], bytes(32)], *TOLD[1:]]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_headers(name: str) -> None:
    assert SEALED.header() == canonical.dumps(FIELDS)
    assert Sealed.from_parts(canonical.dumps(with_field(6, TOLD)), body_of(SPARSE)).mode == ""
    body = DATA if name == "supports that are not there" else body_of(SPARSE)
    with pytest.raises(ProtocolError):
        Sealed.from_parts(canonical.dumps(MALFORMED[name]), body)


@pytest.mark.parametrize("senders", [(), (1, 0), (0, 0), (0, 1, 1)])
def test_senders_ascend_each_once(senders: tuple[int, ...]) -> None:
    with pytest.raises(ReuseError, match="must ascend, each once, at least one"):
        dataclasses.replace(SEALED, senders=senders)


def test_merging_names_what_differs() -> None:
    other = dataclasses.replace(SEALED, senders=(1, 3))
    assert merged_senders(SEALED, other, 6) == (0, 1, 2, 3, 5)
    for change in (
        {"scheme": "x"},
        {"mode": "single"},
        {"slot": OTHER_SLOTS["epoch"]},
        {"length": 31},
    ):
        with pytest.raises(ProtocolError, match=next(iter(change))):
            merged_senders(SEALED, dataclasses.replace(other, **change), 6)
    with pytest.raises(ProtocolError, match="sender 3 is not in the cohort of 3"):
        merged_senders(SEALED, other, 3)
    with pytest.raises(ReuseError, match="sender 2"):
        merged_senders(SEALED, dataclasses.replace(SEALED, senders=(1, 2)), 6)
    sparse = dataclasses.replace(SPARSE, senders=(1, 3, 4))
    assert merged_senders(SPARSE, sparse, 6) == (0, 1, 2, 3, 4, 5)
    # The length of what somebody sent differs with who did.
    assert merged_senders(SPARSE, dataclasses.replace(sparse, length=13), 6)
    other_model = Support.of(np.array([0], np.uint32), WIDTH + 1)
    for one, two in (
        (SPARSE, other),
        (other, SPARSE),
        (SPARSE, dataclasses.replace(sparse, supports=(other_model,) * 3)),
    ):
        with pytest.raises(ProtocolError, match="one of the two is sparse, or of a vector"):
            merged_senders(one, two, 6)
    check_senders((0, 5), 6)
    for sender in (6, -1):
        with pytest.raises(ProtocolError, match=f"sender {sender} "):
            check_senders((0, sender), 6)


def test_a_reader_says_how_long_supports_may_be() -> None:
    """A few bytes may stand for many coordinates: nothing is decoded that was not expected."""
    support = Support.of(np.array([0], np.uint32), 1)
    sealed = Sealed("flashe", SLOT, (0,), 3, np.zeros(7, np.uint8), "single", (support,))
    body = np.frombuffer(b"".join(sealed.body()), np.uint8)
    assert Sealed.from_parts(sealed.header(), body, floats=1).supports[0].count == 1
    for floats in (0, 2):
        with pytest.raises(ProtocolError):
            Sealed.from_parts(sealed.header(), body, floats=floats)
    fields = canonical.loads(sealed.header(), MAX_HEADER, "header")
    fields[6][0][0] = True  # as a second encoding of 1
    for floats in (1, None):
        with pytest.raises(ProtocolError, match="support: field length"):
            Sealed.from_parts(canonical.dumps(fields), body, floats=floats)
