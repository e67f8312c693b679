"""What a round starts from: whatever an app is told has a hash of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ProtocolError
from flhe.training.start import NO_APP_INPUTS, Start, hash_app_inputs

KINDS: list[Any] = [1, 1.0, True, "1", b"1", [1], [1.0], 0, False, "", b"", []]
VALUES = st.one_of(
    st.sampled_from(KINDS),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
)
RECORDS = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=3
)


def as_told(records: Any) -> Any:
    """What is told, with the type of every value: 1, 1.0 and True are equal to Python."""
    return [
        [name, [[key, type(value), repr(value)] for key, value in sorted(record.items())]]
        for name, record in sorted(records.items())
    ]


@given(RECORDS, RECORDS)
def test_what_is_told_has_one_hash_and_what_differs_another(one: Any, other: Any) -> None:
    same = as_told(one) == as_told(other)
    assert (hash_app_inputs(one, {}) == hash_app_inputs(other, {})) == same
    assert hash_app_inputs(one, {}) == hash_app_inputs(dict(reversed(one.items())), {})
    assert hash_app_inputs(one, {}) != hash_app_inputs(one, {"x": 1})
    assert hash_app_inputs(one, {}) != NO_APP_INPUTS


def test_types_are_told_apart() -> None:
    assert len({hash_app_inputs({"config": {"lr": value}}, {}) for value in KINDS}) == len(KINDS)
    with pytest.raises(ProtocolError, match="no number, text or bytes"):
        hash_app_inputs({"config": {"lr": None}}, {})


def test_start_names_all_of_it() -> None:
    one, other = bytes(32), bytes([1]) * 32
    layouts = {Start(one, one).layout(layout) for layout in (one, other)}
    layouts |= {Start(other, one).layout(one), Start(one, other).layout(one)}
    assert len(layouts) == 4
