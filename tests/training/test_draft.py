"""Draft: its bytes there and back, a refusal for any others, and nothing lost of what is not sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import FlheError, StoreError
from flhe.training.draft import MAGIC, VERSION, Draft
from flhe.wire import canonical

LENGTH = 40
HISTORY = bytes(range(32))
EXACT = [0, 1, -1, 12345, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1]
"""Integers that a float would not keep."""


def extras() -> NDArray[np.int64]:
    return np.array(EXACT, np.int64)


def dense(count: int = LENGTH) -> Draft:
    values = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    return Draft(3, HISTORY, values, extras())


def sparse(count: int = 7, length: int = LENGTH) -> Draft:
    """An update of which some coordinates are sent: those are zero in the residual."""
    rng = np.random.default_rng(2)
    coords = np.sort(rng.choice(length, count, replace=False)).astype(np.uint32)
    values = rng.standard_normal(count).astype(np.float32)
    residual = rng.standard_normal(length).astype(np.float32)
    residual[coords] = 0
    return Draft(3, HISTORY, values, extras(), coords, residual)


KINDS = {
    "dense": dense(),
    "dense of nothing": dense(0),
    "sparse": sparse(),
    "sparse of nothing": sparse(0),
    "sparse of all": sparse(LENGTH),
    "sparse of a layout of nothing": sparse(0, 0),
}


def encoded(draft: Draft) -> bytes:
    return b"".join(draft.chunks())


def arrays_of(draft: Draft) -> list[NDArray[Any] | None]:
    return [draft.values, draft.extras, draft.coords, draft.residual]


def check_same(one: Draft, other: Draft) -> None:
    assert (one.round, one.history) == (other.round, other.history)
    for a, b in zip(arrays_of(one), arrays_of(other), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# --- there and back ---


@pytest.mark.parametrize("name", KINDS)
def test_round_trip(name: str) -> None:
    draft = KINDS[name]
    again = Draft.from_bytes(encoded(draft))
    check_same(again, draft)
    assert encoded(again) == encoded(draft)


def test_extras_are_exact() -> None:
    for draft in (dense(), sparse()):
        again = Draft.from_bytes(encoded(draft))
        assert again.extras.dtype == np.int64
        assert again.extras.tolist() == EXACT
        assert again.given_back().extras.tolist() == EXACT
        assert again.plain().extras.tolist() == EXACT


def test_floats_are_kept_to_the_last_bit() -> None:
    odd = np.array([0.0, -0.0, 1e-45, 3.4e38, -1e-38], np.float32)
    coords = np.arange(5, dtype=np.uint32)
    draft = Draft(1, HISTORY, odd, extras(), coords, np.append(np.zeros(5, np.float32), odd))
    again = Draft.from_bytes(encoded(draft))
    check_same(again, draft)
    assert again.values.tobytes() == odd.tobytes()


def test_arrays_that_are_not_in_one_piece() -> None:
    wide = np.arange(2 * LENGTH, dtype=np.float32)
    draft = Draft(1, HISTORY, wide[::2], extras())
    assert Draft.from_bytes(encoded(draft)).values.tolist() == wide[::2].tolist()


def test_what_codecs_are_given() -> None:
    for draft in KINDS.values():
        plain = draft.plain()
        assert plain.values is draft.values
        assert plain.extras is draft.extras
        assert plain.coords is draft.coords


def test_every_field_is_in_the_encoding() -> None:
    good = sparse()
    assert good.coords is not None
    assert good.residual is not None
    other = good.coords.copy()
    other[-1] = LENGTH - 1 if other[-1] != LENGTH - 1 else LENGTH - 2
    made = [
        good,
        Draft(4, good.history, good.values, good.extras, good.coords, good.residual),
        Draft(3, bytes(32), good.values, good.extras, good.coords, good.residual),
        Draft(3, good.history, -good.values, good.extras, good.coords, good.residual),
        Draft(3, good.history, good.values, good.extras + 1, good.coords, good.residual),
        Draft(3, good.history, good.values, good.extras, other, good.residual),
        Draft(3, good.history, good.values, good.extras, good.coords, -good.residual),
        Draft(3, good.history, good.values, good.extras),
        replace(good, told=bytes([1]) * 32),
    ]
    assert len({encoded(draft) for draft in made}) == len(made)


def test_repr_shows_no_update() -> None:
    for draft in (dense(), sparse()):
        for name in ("values", "extras", "coords", "residual"):
            assert name not in repr(draft)


# --- what is not sent ---


@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith("sparse")])
def test_given_back_scatters_the_values_into_the_residual(name: str) -> None:
    draft = KINDS[name]
    assert draft.coords is not None
    assert draft.residual is not None
    before = draft.residual.copy()
    expected = before.copy()
    for at, value in zip(draft.coords.tolist(), draft.values, strict=True):
        expected[at] = value  # where a value was chosen the residual is zero
    back = draft.given_back()
    assert back.residual is not None
    assert back.coords is not None
    np.testing.assert_array_equal(back.residual, expected)
    assert back.residual.dtype == np.float32
    assert (back.values.size, back.coords.size) == (0, 0)
    assert (back.round, back.history) == (draft.round, draft.history)
    np.testing.assert_array_equal(draft.residual, before)  # the draft itself is as it was
    check_same(Draft.from_bytes(encoded(back)), back)


def test_given_back_twice_is_given_back_once() -> None:
    once = sparse().given_back()
    check_same(once.given_back(), once)


def test_given_back_from_the_disk_is_the_same() -> None:
    check_same(Draft.from_bytes(encoded(sparse())).given_back(), sparse().given_back())


def test_a_dense_update_has_nothing_to_give_back_to() -> None:
    check_same(dense().given_back(), dense())


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
    draft = Draft(1, HISTORY, whole[coords], extras(), coords, residual)
    back = Draft.from_bytes(encoded(draft)).given_back()
    assert back.residual is not None
    np.testing.assert_array_equal(back.residual, whole)


# --- anything else ---


@pytest.mark.parametrize("name", KINDS)
def test_every_truncation_is_refused(name: str) -> None:
    whole = encoded(KINDS[name])
    for size in range(len(whole)):
        with pytest.raises(FlheError):
            Draft.from_bytes(whole[:size])
    with pytest.raises(StoreError, match="cut short"):
        Draft.from_bytes(whole + b"\x00")


def head(change: dict[str, Any], data: bytes = bytes(4 * (5 + 2 + 1)) + b"\4\0\0\0") -> bytes:
    """A sparse draft of two values out of five, with something else in its head."""
    body = {
        "v": VERSION,
        "round": 3,
        "history": HISTORY,
        "extras": EXACT,
        "length": 5,
        "count": 2,
        "sparse": True,
        "base": b"",
        "told": bytes(32),
        **change,
    }
    text = canonical.dumps({name: value for name, value in body.items() if value is not ...})
    return MAGIC + len(text).to_bytes(4, "big") + text + data


FIELDS = ("v", "round", "history", "extras", "length", "count", "sparse", "told")
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "another magic": b"flhe-model/1\n" + bytes(40),
    "magic alone": MAGIC,
    "no head": MAGIC + bytes(4),
    "a head longer than the file": MAGIC + b"\xff\xff\xff\xff" + bytes(40),
    "a dense one with a residual": head({"sparse": False}),
    "a value more than there is": head({"count": 3}),
    "a value less than there is": head({"count": 1}),
    "a residual too long": head({"length": 6}),
    "far more values than there are": head({"count": 1 << 61}),
    "far more coordinates than there are": head({"length": 1 << 62}),
    "sizes that make up for each other": head({"length": -1, "count": 5}),
    "sizes that make up for each other, too": head({"length": 11, "count": -1}),
    "coordinates beyond the residual": head({}, bytes(28) + b"\0\0\0\0" + b"\5\0\0\0"),
    "a coordinate twice": head({}, bytes(36)),
    "coordinates that descend": head({}, bytes(28) + b"\1\0\0\0" + bytes(4)),
    "no data": head({}, b""),
    "data cut short": head({}, bytes(35)),
    "more data": head({}, bytes(37)),
}


def test_a_draft_of_another_version() -> None:
    for version in (1, 3):
        with pytest.raises(StoreError, match="of another version of flhe: remove it"):
            Draft.from_bytes(head({"v": version}))


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    good = Draft.from_bytes(head({}))
    assert (good.values.tolist(), good.coords.tolist()) == ([0, 0], [0, 4])  # type: ignore[union-attr]
    with pytest.raises(FlheError):
        Draft.from_bytes(MALFORMED[name])
