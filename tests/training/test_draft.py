"""Draft: its bytes there and back, a refusal for any others, and nothing lost of what is not sent."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe.training.draft import MAGIC, VERSION, Draft
from flhe.wire import canonical

LENGTH = 40
HISTORY, BASE, TOLD = bytes(range(32)), bytes(range(32, 64)), bytes([7]) * 32
EXACT = [0, 1, -1, 12345, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1]
"""Integers that a float would not keep."""
ODD = np.array([0.0, -0.0, 1e-45, 3.4e38, -1e-38], np.float32)


def draft(
    values: NDArray[np.float32],
    coords: NDArray[np.uint32] | None = None,
    residual: NDArray[np.float32] | None = None,
) -> Draft:
    return Draft(3, HISTORY, values, np.array(EXACT, np.int64), coords, residual, BASE, TOLD)


def dense(count: int = LENGTH) -> Draft:
    return draft(np.random.default_rng(1).standard_normal(count).astype(np.float32))


def sparse(count: int = 7, length: int = LENGTH) -> Draft:
    """An update of which some coordinates are sent: those are zero in the residual."""
    rng = np.random.default_rng(2)
    coords = np.sort(rng.choice(length, count, replace=False)).astype(np.uint32)
    values = rng.standard_normal(count).astype(np.float32)
    residual = rng.standard_normal(length).astype(np.float32)
    residual[coords] = 0
    return draft(values, coords, residual)


KINDS = {
    "dense": dense(),
    "sparse": sparse(),
    "sparse of nothing": sparse(0),
    "sparse of all": sparse(LENGTH),
    "odd floats": draft(
        ODD, np.arange(5, dtype=np.uint32), np.append(np.zeros(5, np.float32), ODD)
    ),
}


def encoded(draft: Draft) -> bytes:
    return b"".join(draft.chunks())


def check_same(one: Draft, other: Draft) -> None:
    for field in fields(Draft):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            a, b = (a.dtype, a.tobytes()), (b.dtype, b.tobytes())
        assert a == b, field.name


@pytest.mark.parametrize("name", KINDS)
def test_round_trip(name: str) -> None:
    draft = KINDS[name]
    again = Draft.from_bytes(encoded(draft))
    check_same(again, draft)
    assert encoded(again) == encoded(draft)
    for field in ("values", "extras", "coords"):
        assert getattr(draft.plain(), field) is getattr(draft, field)
        assert field not in repr(draft)
    back = again.given_back()
    check_same(back.given_back(), back)
    if draft.coords is None:
        check_same(back, draft)  # it has nothing to give back to
    check_same(again, draft)  # the draft itself is as it was


@given(st.data())
def test_nothing_is_lost_and_nothing_is_added(data: st.DataObject) -> None:
    """The residual before plus the change is what is sent plus what stays, to the last bit."""
    length = data.draw(st.integers(0, 60))
    floats = st.floats(-(2.0**100), 2.0**100, width=32)
    whole = np.array(data.draw(st.lists(floats, min_size=length, max_size=length)), np.float32)
    chosen = data.draw(st.sets(st.integers(0, max(length - 1, 0)), max_size=length))
    coords = np.array(sorted(chosen) if length else [], np.uint32)
    residual = whole.copy()
    residual[coords] = 0
    back = Draft.from_bytes(encoded(draft(whole[coords], coords, residual))).given_back()
    assert back.residual is not None
    np.testing.assert_array_equal(back.residual, whole)


# --- anything else ---


def head(change: dict[str, Any], data: bytes = bytes(4 * (5 + 2 + 1)) + b"\4\0\0\0") -> bytes:
    """A sparse draft of two values out of five, with something else in its head."""
    sizes = {"length": 5, "count": 2, "sparse": True}
    names = {"history": HISTORY, "extras": EXACT, "base": b"", "contract": bytes(32)}
    text = canonical.dumps({"v": VERSION, "round": 3, **names, **sizes, **change})
    return MAGIC + len(text).to_bytes(4, "big") + text + data


CUT, DAMAGED = "was cut short: remove it", "is damaged"
MALFORMED: dict[str, tuple[bytes, str]] = {
    "another version": (head({"v": 1}), "of another version of flhe: remove it"),
    "a dense one with a residual": (head({"sparse": False}), DAMAGED),
    "a value more than there is": (head({"count": 3}), CUT),
    "far more values than there are": (head({"count": 1 << 61}), DAMAGED),
    "sizes that make up for each other": (head({"length": -1, "count": 5}), DAMAGED),
    "sizes that make up for each other, too": (head({"length": 11, "count": -1}), DAMAGED),
    "coordinates beyond the residual": (head({}, bytes(32) + b"\5\0\0\0"), DAMAGED),
    "a coordinate twice": (head({}, bytes(36)), DAMAGED),
    "coordinates that descend": (head({}, bytes(28) + b"\1\0\0\0" + bytes(4)), DAMAGED),
    "no data": (head({}, b""), CUT),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_draft_that_is_none(name: str) -> None:
    good = Draft.from_bytes(head({}))
    assert (good.values.tolist(), good.coords.tolist()) == ([0, 0], [0, 4])  # type: ignore[union-attr]
    data, says = MALFORMED[name]
    with pytest.raises(FlheError, match=says):
        Draft.from_bytes(data)
