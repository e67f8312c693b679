"""Schedules: what apps are told in each round, and how a contract writes it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.training.contract import Contract
from flhe.training.schedule import Cosine, Settings, Step
from flhe.training.terms import Terms

TERMS = Terms()
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
GIVEN = st.one_of(
    VALUES,
    st.lists(st.none() | VALUES, min_size=1, max_size=4).map(tuple),
    st.builds(Step, st.floats(0.01, 9), st.floats(0.1, 1), st.integers(1, 9)),
    st.builds(Cosine, st.floats(0.01, 9), st.floats(0, 1), st.integers(1, 9)),
)
NAMES = st.text(min_size=1, max_size=5)


def exactly(value: Any) -> Any:
    """With the type of every value: 1, 1.0 and True are equal to Python."""
    if isinstance(value, list):
        return [exactly(item) for item in value]
    return type(value), repr(value)


@given(st.dictionaries(NAMES, GIVEN, max_size=4))
def test_what_is_written_is_what_is_read(by_name: dict[str, Any]) -> None:
    contract = Contract(TERMS, 5, Settings(by_name))
    again = Contract.from_bytes(contract.to_bytes())
    assert again.hash() == contract.hash()
    for round_ in (1, 2, 5, 99):
        told, read = contract.train.at(round_), again.train.at(round_)
        assert list(told) == list(read) == sorted(told)
        assert [exactly(value) for value in told.values()] == [exactly(v) for v in read.values()]


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=5))
def test_what_was_found_out_round_by_round(told: list[dict[str, Any]]) -> None:
    settings = Settings.of_rounds(told)
    for round_, one in enumerate(told, 1):
        assert {n: exactly(v) for n, v in settings.at(round_).items()} == {
            n: exactly(v) for n, v in one.items()
        }


def test_rules() -> None:
    told = Settings({"lr": Step(0.1, 0.5, 2), "epochs": (1, None, 3), "x": 7})
    assert [told.at(r).get("lr") for r in (1, 2, 3, 5)] == [0.1, 0.1, 0.05, 0.025]
    assert [told.at(r).get("epochs") for r in (0, 1, 2, 3, 99)] == [1, 1, None, 3, 3]
    falls = [Cosine(1.0, 0.2, 5).at(round_) for round_ in (1, 3, 5, 6)]
    assert falls == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Cosine(1.0, 0.2, 1).at(1) == 1.0


BAD: list[Any] = [None, float("nan"), {}, 1j, 2**63, [None], [[float("nan")]], ()]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_values_that_no_contract_can_say(value: Any) -> None:
    with pytest.raises(ConfigError):
        Settings({"lr": value})


@pytest.mark.parametrize(
    "numbers", [(math.inf, 1.0, 2), (0.1, "1", 2), (0.1, 0.5, 0), (0.1, 0.5, 1.5)]
)
def test_rules_that_are_none(numbers: Any) -> None:
    for rule in (Step, Cosine):
        with pytest.raises(ConfigError, match=r"field .* must be"):
            rule(*numbers)


def test_a_value_that_is_not_shown_whole_ends_in_dots() -> None:
    lines = Settings({"rates": [0.1] * 40, "short": [0.1] * 3, "text": "x" * 78}).lines()
    assert lines[0].endswith(", 0...")
    assert lines[1:] == ["short = [0.1, 0.1, 0.1]", f"text = {'x' * 78!r}"]
    assert len(lines[0]) == len(lines[2]) + len("rates") - len("text")


def test_it_tells_people_what_it_says_and_nothing_to_their_terminal() -> None:
    settings = Settings({"lr": Cosine(0.1, 0.0, 9), "epochs": (1, 2, 3, 4), "\x1b[2Jx": "\x07"})
    evaluate = Settings({"batch": 8})
    contract = Contract(TERMS, 25, settings, evaluate, 0.996, 0.004, 4, app="a/b\n1.0")
    text = "\n".join(contract.lines())
    assert "25 rounds; 99.6% of the members train, 0.4% evaluate; sums of 4 or more" in text
    assert "train: lr = Cosine(start=0.1, end=0.0, rounds=9)" in text
    assert "train: epochs = 1, 2, 3, ... (4 rounds)" in text
    assert "evaluate: batch = 8" in text
    assert "app a/b?1.0" in text
    assert all(line.isprintable() for line in contract.lines())
