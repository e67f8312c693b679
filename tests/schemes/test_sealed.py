"""Sealed: there and back; `flashe_sparse.json` has the headers and sums that are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.schemes.sealed import MAX_HEADER, MAX_LENGTH, Sealed, from_bytes, to_bytes
from flhe.wire import canonical
from tests.laws import SLOT

DATA = np.arange(12, dtype=np.uint8)
SEALED = Sealed("flashe", SLOT, (0, 2, 5), 30, DATA)

WIDTH = 40
SUPPORTS = tuple(
    Support.of(np.array(coords, np.uint32), WIDTH) for coords in ([0, 7, 39], [], [1, 2, 3, 4])
)
SPARSE = dataclasses.replace(SEALED, length=12, mode="single", supports=SUPPORTS)


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


def test_a_header_for_the_largest_cohort_fits() -> None:
    sealed = Sealed("flashe", SLOT, tuple(range(1024)), 30, DATA)
    assert len(sealed.header()) < 4096 < MAX_HEADER
    assert Sealed.from_parts(sealed.header(), DATA).senders == sealed.senders
    full = Support.of(np.arange(0, (1 << 31) - 1, 1 << 20, dtype=np.uint32), (1 << 31) - 1)
    crowd = dataclasses.replace(sealed, mode="double", supports=(full,) * 1024)
    assert len(crowd.header()) < 52 << 10 < MAX_HEADER
    assert Sealed.from_parts(crowd.header(), body_of(crowd)).supports == crowd.supports


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("run_id", 1 << 64), ("round", 1 << 32), ("attempt", -1), ("purpose", "Z")),
        *(("roster_hash", b""), ("epoch", bytes(32)), ("layout_hash", bytes(16))),
        ("history", bytes(31)),
    ],
)
def test_slots_that_cannot_be(field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match="slot"):
        dataclasses.replace(SLOT, **{field: value})


@pytest.mark.parametrize("length", [-1, MAX_LENGTH])
def test_lengths_that_cannot_be(length: int) -> None:
    with pytest.raises(ProtocolError, match="out of range"):
        dataclasses.replace(SEALED, length=length)


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
