"""Extras: means out of exact sums, of what all clients reported."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding.extras import LIMIT, MAX_PRODUCT, POINT, Extras, misfit
from flhe.errors import ProtocolError

CLIENT = st.tuples(
    st.integers(1, 2**28),
    st.one_of(st.none(), st.floats(-100, 100)),
    st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=2, max_size=2),
)


@given(st.lists(CLIENT, min_size=1, max_size=8))
def test_sums_decode_to_weighted_means(
    clients: list[tuple[int, float | None, list[int]]],
) -> None:
    extras = Extras(("loss",), integers=2)
    parts = [
        extras.encode(n, {} if loss is None else {"loss": loss}, changes)
        for n, loss, changes in clients
    ]
    assert all(part.shape == (extras.length,) == (6,) for part in parts)
    totals = extras.decode(np.sum(parts, axis=0))
    weight = sum(n for n, *_ in clients)
    assert (totals.count, totals.weight) == (len(clients), weight)
    reported = [(n, loss) for n, loss, *_ in clients if loss is not None]
    if len(reported) == len(clients):
        mean = sum(n * loss for n, loss in reported) / weight
        assert totals.metrics["loss"] == pytest.approx(mean, abs=1 / POINT)
    else:  # of fewer, it may be one client's own
        assert math.isnan(totals.metrics["loss"])
    for i in range(2):
        exact = sum(n * changes[i] for n, _, changes in clients)
        assert totals.integers[i] == math.floor(Fraction(exact, weight) + Fraction(1, 2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, LIMIT, -LIMIT, 1e300, None])
def test_a_metric_without_a_usable_value_adds_nothing(value: float | None) -> None:
    told = {} if value is None else {"loss": value}
    assert Extras(("loss",)).encode(7, told, []).tolist() == [1, 7, 0, 0]


@given(st.floats(-LIMIT, LIMIT))
def test_a_metric_that_passes_is_within_one_percent(value: float) -> None:
    mean = (
        Extras(("loss",)).decode(Extras(("loss",)).encode(3, {"loss": value}, ())).metrics["loss"]
    )
    if not misfit(value):
        assert mean == pytest.approx(value, rel=0.01, abs=0)
    else:
        assert math.isnan(mean) or abs(value) < 0.001


@pytest.mark.parametrize(
    ("weight", "told", "lanes"),
    [
        (7, {"loss": 0.0}, [1, 7, 0, 7]),
        (7, {"loss": 0.5, "patients": 3.0}, [1, 7, 7 << 15, 7]),  # what nobody named stays here
        (1, {"loss": math.nextafter(LIMIT, 0)}, [1, 1, MAX_PRODUCT, 1]),
    ],
)
def test_what_a_client_says(weight: int, told: dict[str, float], lanes: list[int]) -> None:
    assert Extras(("loss",)).encode(weight, told, []).tolist() == lanes
    assert misfit(0.0) == "", "zero is as exact as any value"


def test_halves_of_an_integer_round_up() -> None:
    sums = np.array([2, 2, 1, -1, 3, -3], np.int64)
    assert Extras(integers=4).decode(sums).integers == [1, 0, 2, -1]


def test_what_cannot_be_said() -> None:
    for sums in ([0, 0], [0, 5], [1, 0], [-1, 5], [2, -5]):
        with pytest.raises(ProtocolError, match="no contribution"):
            Extras().decode(np.array(sums, np.int64))


@pytest.mark.parametrize(
    ("total", "reported"),
    [(2 * LIMIT * POINT + 1, 2), (-2 * LIMIT * POINT - 1, 2), (1, 0), (0, 4), (0, -1)],
)
def test_a_metric_that_no_clients_could_come_to(total: int, reported: int) -> None:
    extras = Extras(("loss",))
    for most in (2 * LIMIT * POINT, -2 * LIMIT * POINT):
        assert abs(extras.decode(np.array([1, 2, most, 2])).metrics["loss"]) == LIMIT
    for few in (0, 2):
        assert math.isnan(extras.decode(np.array([1, 3, 0, few])).metrics["loss"])
    assert extras.decode(np.array([1, 3, 0, 3])).metrics["loss"] == 0
    with pytest.raises(ProtocolError, match="an impossible metric"):
        extras.decode(np.array([1, 3, total, reported], np.int64))
