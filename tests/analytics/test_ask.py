"""Asking statistics: what nodes answer, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.analytics import (
    Below,
    Covariance,
    Histogram,
    Mean,
    Real,
    Schema,
    answers,
    ask,
    quantiles,
)
from flhe.errors import ConfigError, ProtocolError
from flhe.mods import records

SCHEMA = Schema(age=Real(0, 120), weight=Real(20, 400))
CONTEXT: Any = None


class Sites:
    """Sites whose answers are added up in the clear; from query `leaves` on the last one is away."""

    def __init__(self, *columns: NDArray[Any], leaves: int = 1 << 30) -> None:
        self.tables = [{"age": ages, "weight": ages + 20} for ages in columns]
        self.leaves, self.asked = leaves, list[str]()

    def sum(self, name: str, parameters: Mapping[str, Any]) -> Any:
        self.asked.append(name)
        there = self.tables[: -1 if len(self.asked) > self.leaves else None]
        said = [self._answer(name, table, dict(parameters)) for table in there]
        sums = {part: np.sum([each[part] for each in said], axis=0) for part in said[0]}
        return SimpleNamespace(arrays=records.from_numpy(sums), senders=bytes([len(there)]))

    def _answer(self, name: str, table: Any, parameters: dict[str, Any]) -> dict[str, NDArray[Any]]:
        answer = answers(SCHEMA, lambda _: table)[name]
        return records.to_numpy(answer(ConfigRecord(parameters), CONTEXT))


@given(
    ages=st.lists(st.lists(st.floats(0, 120, width=32), max_size=12), min_size=1, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    cuts=st.sampled_from([1, 7, 255]),
)
def test_quantiles_are_numpys(ages: list[list[float]], shares: list[float], cuts: int) -> None:
    pooled = np.concatenate([np.array(each, np.float64) for each in ages])
    sites = Sites(*(np.array(each, np.float64) for each in ages))
    if not pooled.size:
        with pytest.raises(ConfigError, match="no rows"):
            quantiles(sites, SCHEMA, "age", shares)
        return
    found = quantiles(sites, SCHEMA, "age", shares, cuts=cuts)
    np.testing.assert_allclose(found, np.quantile(pooled, shares), rtol=0, atol=120 / 2**36)
    assert len(sites.asked) <= {1: 39, 7: 14, 255: 5}[cuts]


def test_a_site_that_leaves_in_between_makes_no_quantile() -> None:
    sites = Sites(np.array([1.0, 2.0]), np.array([50.0]), leaves=3)
    with pytest.raises(ProtocolError, match="other sites answered"):
        quantiles(sites, SCHEMA, "age", [0.5])


@pytest.mark.parametrize("shares", [[], [-0.1], [1.1], [float("nan")]])
def test_shares_that_cannot_be_are_refused(shares: list[float]) -> None:
    with pytest.raises(ConfigError):
        quantiles(Sites(np.array([1.0])), SCHEMA, "age", shares)


def test_a_total_for_members_is_not_read_here() -> None:
    sealed = SimpleNamespace(sum=lambda *_: SimpleNamespace(arrays=records.SealedArrays()))
    with pytest.raises(ConfigError, match="sealed for the members"):
        ask(sealed, SCHEMA, Mean("age"))


GUISES: dict[str, dict[str, Any]] = {
    "another schema": {"schema": Schema(age=Real(0, 121), weight=Real(20, 400)).hash()},
    "no schema": {"schema": b""},
    "one parameter more": {"x": 1},
    "an integer for a float": {"edges": [0, 50, 120]},
    "another column": {"column": "height"},
}


@pytest.mark.parametrize("how", GUISES)
def test_the_same_question_does_not_come_in_two_guises(how: str) -> None:
    asked = Histogram("age", (0, 50, 120)).parameters(SCHEMA)
    answer = answers(SCHEMA, lambda _: {"age": np.array([3.0])})["histogram"]
    assert isinstance(answer(ConfigRecord(asked), CONTEXT), ArrayRecord)
    with pytest.raises((ConfigError, TypeError)):
        answer(ConfigRecord({**asked, **GUISES[how]}), CONTEXT)


def test_only_what_is_named_is_answered() -> None:
    assert set(answers(SCHEMA, lambda _: {}, [Mean, Below, Covariance])) == {
        "mean",
        "below",
        "covariance",
    }
