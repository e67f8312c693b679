"""Queries, and the exact integers that answers to them become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError, NotFiniteError, RangeError, ReplyError
from flhe.training.query import MAX_SHOWN, MAX_VALUES, AnswerForm, Bounded, Part, Query, encode

BITS = 52  # of a float's integer
MOST = 2**63 - 1
"""The largest integer of an answer."""


def answer(*_: Any) -> dict[str, Any]:
    return {}


def test_a_query_as_large_as_a_model_is_read() -> None:
    asked = Query.of("norms", {"model": bytes(900_000)})
    assert Query.from_bytes(asked.to_bytes()) == asked


def test_a_line_of_a_log_has_room_for_so_much() -> None:
    line = Query.of("q", {"key": "x" * 500}).line()
    assert (len(line), line[-3:]) == (MAX_SHOWN, "...")
    for length in range(MAX_SHOWN - 20, MAX_SHOWN):
        line = Query.of("q", {"k": "x" * length}).line()
        assert line.endswith('"}') == (len(f'q {{"k": "{"x" * length}"}}') <= MAX_SHOWN)


@pytest.mark.parametrize("bound", [0.75, 1.0, 100.0, 2.0**20])
def test_the_finest_step_uses_all_bits(bound: float) -> None:
    step = Bounded(answer, bound).resolution
    assert math.log2(step).is_integer()
    Part("f", (1,), bound, step)
    assert 2 ** (BITS - 1) <= bound / step <= 2**BITS
    with pytest.raises(ConfigError, match="coarser"):
        Part("f", (1,), bound, step / 4)


@pytest.mark.parametrize(
    ("bound", "resolution"),
    [(0.0, 1.0), (-1.0, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.inf)],
)
def test_bounds_are_positive_and_finite(bound: float, resolution: float) -> None:
    with pytest.raises(ConfigError, match="positive and finite"):
        Bounded(answer, bound, resolution)


def test_an_answer_becomes_integers_and_comes_back() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "i": np.array([[1, -2], [MOST, -MOST]]),
        "u": np.array([3], np.uint8),
        "f": np.array([0.74, -100.0], np.float32),
    }
    form, numbers = encode(arrays, Bounded(answer, 100.0, 0.5))
    assert numbers.tolist() == [1, -2, MOST, -MOST, 3, 1, -200]
    assert (form.size, form.errors(4)) == (7, {"i": 0.0, "u": 0.0, "f": 1.0})
    found = form.arrays(numbers)
    np.testing.assert_array_equal(found["i"], arrays["i"])
    np.testing.assert_array_equal(found["f"], [0.5, -100.0])
    assert {array.dtype for array in found.values()} == {np.dtype("i8"), np.dtype("f8")}


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.array(["x"]), ReplyError, "is <U1"),
        (np.array([1.0, np.nan]), NotFiniteError, "NaN"),
        (np.array([1.0, 1.5]), RangeError, "beyond the bound"),
        (np.array([-1.5]), RangeError, "beyond the bound"),
        (np.array([-MOST - 1]), RangeError, "beyond 63 bits"),
        (np.array([MOST + 1], np.uint64), RangeError, "beyond 63 bits"),
    ],
)
def test_what_is_no_answer_is_refused(
    array: NDArray[Any], error: type[FlheError], words: str
) -> None:
    with pytest.raises(error, match=words):
        encode({"a": array}, Bounded(answer, 1.0))


def test_floats_need_a_bound() -> None:
    with pytest.raises(ReplyError, match="bounded"):
        encode({"a": np.zeros(1)}, None)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "different names"),
        ([("a", (1,)), ("a", (2,))], "different names"),
        ([("a", (MAX_VALUES,)), ("b", (1,))], "up to 16777216 values"),
        ([(f"{i:060}", (1,)) for i in range(40)], "too many arrays"),
        ([("a", (1,), 1.0)], "both a bound and a resolution"),
        ([("a", (1,), 0.0, 1.0)], "both a bound and a resolution"),
    ],
)
def test_a_form_has_limits(parts: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AnswerForm(tuple(Part(*part) for part in parts))
