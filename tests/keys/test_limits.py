"""Limits of a roster: what may be said, one encoding of it, and never laxer than either side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.keys.roster.limits import NONE, Limits
from flhe.wire.canonical import dumps, loads

KEY_BITS = st.sampled_from([2048, 3072, 4096])
RELEASES = st.integers(0, 2**32 - 1)
SHARES, SCALES = st.floats(0, 1), st.floats(0, 1e300)


def values(maybe: Any) -> dict[str, Any]:
    """A strategy for each limit; `maybe` may add None to it."""
    flags = {n: st.booleans() for n in ("fresh_keys", "server_reads", "unpermuted", "counts")}
    numbers = {
        "key_bits": KEY_BITS,
        "min_select": SHARES,
        "min_noise": SCALES,
        "max_releases": RELEASES,
        "min_members": st.integers(2, 1024),
    }
    return {name: maybe(strategy) for name, strategy in (flags | numbers).items()}


ANY_LIMITS = st.builds(Limits, **values(lambda s: st.none() | s))
ANY_OWN = st.fixed_dictionaries(values(lambda s: s))


@given(ANY_LIMITS)
def test_round_trips(limits: Limits) -> None:
    stored = dumps(limits.to_fields())
    again = Limits.from_fields(loads(stored, 1000, "test"))
    assert again == limits
    assert dumps(again.to_fields()) == stored
    assert Limits.parse(limits.lines()) == limits


LARGER = ("key_bits", "min_select", "min_noise", "min_members", "fresh_keys")


def laxer(name: str, one: Any, other: Any) -> bool:
    """Whether `one` permits more than `other`; written for the meaning, not as the code has it."""
    if name in LARGER:
        return bool(one < other)
    if name == "max_releases":
        return (one or 2**40) > (other or 2**40)
    return bool(one and not other)


@given(ANY_LIMITS, ANY_OWN)
def test_never_laxer_than_either_side(limits: Limits, own: dict[str, Any]) -> None:
    holds = limits.tighten(own)
    for name, value in own.items():
        agreed = getattr(limits, name)
        assert not laxer(name, holds[name], value)
        assert agreed is None or not laxer(name, holds[name], agreed)
        assert holds[name] in (value, agreed)  # and never stricter than both
        assert type(holds[name]) is type(value) or name == "min_noise"


@given(ANY_OWN)
def test_what_is_not_said_leaves_all_to_the_node(own: dict[str, Any]) -> None:
    assert NONE.tighten(own) == own


@pytest.mark.parametrize(
    "bad",
    [
        {"key_bits": 1024},
        {"key_bits": 3072.0},
        {"min_select": 1.5},
        {"min_select": -0.1},
        {"min_select": True},
        {"min_noise": float("inf")},
        {"min_noise": float("nan")},
        {"max_releases": -1},
        {"max_releases": 2**32},
        {"min_members": 1},
        {"min_members": 1025},
        {"counts": 1},
        {"server_reads": "true"},
    ],
)
def test_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Limits(**bad)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "key-bits",
        "key_bits=3072",
        "key-bits=x",
        "no-such=1",
        "counts=True",
        "min-select=",
        "=1",
    ],
)
def test_what_nobody_can_mean(text: str) -> None:
    with pytest.raises(ConfigError, match="--allow"):
        Limits.parse([text])


def test_nothing_is_said_twice() -> None:
    with pytest.raises(ConfigError, match="counts is said twice"):
        Limits.parse(["counts=true", "counts=false"])


def test_a_limit_of_a_later_version_is_not_passed_over() -> None:
    with pytest.raises(ProtocolError, match="upgrade flhe"):
        Limits.from_fields({"max_epsilon": "1.0"})


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(["min_select", "counts"]), st.text()))
def test_text_that_is_no_limit(stored: dict[str, str]) -> None:
    try:
        limits = Limits.from_fields(stored)
    except FlheError:
        return
    assert limits.to_fields() == stored
