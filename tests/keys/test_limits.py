"""Limits of a roster: what may be said, one encoding of it, and never laxer than either side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.keys.roster.limits import NONE, Limits, known

FLAGS = ("fresh-keys", "server-reads", "unpermuted", "paillier-subgroup")
VALUES: dict[str, Any] = {
    **{n: st.booleans() for n in FLAGS},
    "min-bits": st.integers(0, 512),
    "min-select": st.floats(0, 1),
    "min-top-k": st.floats(0, 1),
    "min-noise": st.floats(0, 1e299),
    "max-releases": st.integers(0, 2**32 - 1),
    "min-members": st.integers(2, 1024),
    "max-epsilon": st.floats(0, 1e6),
    "delta": st.floats(1e-300, 0.999),
}
ANY_LIMITS = st.fixed_dictionaries({}, optional=VALUES).map(Limits)
ANY_OWN = st.fixed_dictionaries(VALUES)


@given(ANY_LIMITS)
def test_round_trips(limits: Limits) -> None:
    assert set(VALUES) == set(known())
    assert Limits.from_bytes(limits.to_bytes()) == limits
    assert Limits.parse(limits.lines()) == limits


LARGER = ("min-bits", "min-select", "min-top-k", "min-noise", "min-members", "fresh-keys")


def laxer(name: str, one: Any, other: Any) -> bool:
    """Whether `one` permits more than `other`; written for the meaning, not as the code has it."""
    if name in LARGER:
        return bool(one < other)
    if name in ("max-releases", "max-epsilon"):
        return (one or 2**40) > (other or 2**40)
    if name == "delta":
        return bool(one > other)
    return bool(one and not other)


@given(ANY_LIMITS, ANY_OWN)
def test_never_laxer_than_either_side(limits: Limits, own: dict[str, Any]) -> None:
    holds = limits.tighten(own)
    for name, value in own.items():
        agreed = limits.said.get(name)
        assert not laxer(name, holds[name], value)
        assert agreed is None or not laxer(name, holds[name], agreed)
        assert holds[name] in (value, agreed)  # and never stricter than both
        assert type(holds[name]) is type(value)
    assert NONE.tighten(own) == own


BAD: list[tuple[str, Any]] = [
    *(("min-bits", value) for value in (-1, 513, 128.0)),
    *(("min-select", value) for value in (1.5, -0.1, True)),
    *(("min-noise", value) for value in (float("inf"), float("nan"), 10**400)),
    *(("max-releases", value) for value in (-1, 2**32)),
    *(("min-members", value) for value in (1, 1025)),
    *(("max-epsilon", value) for value in (-1.0, float("inf"), float("nan"))),
    *(("delta", value) for value in (0.0, 1.0)),
    *(("unpermuted", 1), ("server-reads", "true"), ("no-such", 1)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_refuses(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits({name: value})


def test_what_nobody_can_mean() -> None:
    """A limit of a later version is in tests/vectors."""
    for text, says in (
        *((text, "unknown parameter; there are fresh") for text in ("", "min_bits=128", "=1")),
        *((text, "must be ") for text in ("min-bits", "min-bits=x", "unpermuted=True")),
    ):
        with pytest.raises(ConfigError, match=f"--allow {text}: .*{says}"):
            Limits.parse([text])
    with pytest.raises(ConfigError, match="unpermuted is given twice"):
        Limits.parse(["unpermuted=true", "unpermuted=false"])
