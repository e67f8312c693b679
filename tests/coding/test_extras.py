"""Extras: means out of exact sums, whoever reported what."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding.extras import LIMIT, MAX_CHECK, MAX_PRODUCT, POINT, Extras
from flhe.errors import ConfigError, ProtocolError

CLIENT = st.tuples(
    st.integers(1, 2**28),
    st.one_of(st.none(), st.floats(-100, 100)),
    st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=2, max_size=2),
    st.integers(0, MAX_CHECK - 1),
)


@given(st.lists(CLIENT, min_size=1, max_size=8))
def test_sums_decode_to_weighted_means(
    clients: list[tuple[int, float | None, list[int], int]],
) -> None:
    extras = Extras(("loss",), integers=2)
    parts = [
        extras.encode(n, {} if loss is None else {"loss": loss}, changes, check)
        for n, loss, changes, check in clients
    ]
    assert all(part.shape == (extras.length,) == (7,) for part in parts)
    totals = extras.decode(np.sum(parts, axis=0))
    weight = sum(n for n, *_ in clients)
    assert (totals.count, totals.weight) == (len(clients), weight)
    assert totals.check == sum(check for *_, check in clients)
    reported = [(n, loss) for n, loss, *_ in clients if loss is not None]
    if reported:
        mean = sum(n * loss for n, loss in reported) / sum(n for n, _ in reported)
        assert totals.metrics["loss"] == pytest.approx(mean, abs=1 / POINT)
    else:
        assert math.isnan(totals.metrics["loss"])
    for i in range(2):
        exact = sum(n * changes[i] for n, _, changes, _ in clients)
        assert totals.integers[i] == math.floor(Fraction(exact, weight) + Fraction(1, 2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, LIMIT, -LIMIT, 1e300])
def test_a_metric_without_a_usable_value_adds_nothing(value: float) -> None:
    extras = Extras(("loss",))
    assert extras.encode(7, {"loss": value}, []).tolist() == [1, 7, 0, 0, 0]
    assert extras.encode(7, {}, []).tolist() == [1, 7, 0, 0, 0]
    assert extras.encode(7, {"loss": 0.0}, []).tolist() == [1, 7, 0, 0, 7]


def test_what_nobody_named_stays_here() -> None:
    extras = Extras(("loss",))
    assert extras.encode(7, {"loss": 0.5, "patients": 3.0}, []).tolist() == [1, 7, 0, 7 << 15, 7]


def test_products_stay_within_what_weigh_counts_on() -> None:
    below = math.nextafter(LIMIT, 0)
    encoded = Extras(("loss",)).encode(1, {"loss": below}, [])
    assert encoded[3] == MAX_PRODUCT
    assert Extras(("loss",)).encode(2**31 - 1, {"loss": -below}, []).tolist()[3] == -(
        (2**31 - 1) * MAX_PRODUCT
    )


@pytest.mark.parametrize("sums", [[0, 0, 7], [0, 5, 7], [1, 0, 7], [-1, 5, 7], [2, -5, 7]])
def test_nothing_to_divide_by(sums: list[int]) -> None:
    with pytest.raises(ProtocolError, match="no contribution"):
        Extras().decode(np.array(sums, np.int64))


@pytest.mark.parametrize("check", [-1, MAX_CHECK, 1 << 40])
def test_a_check_out_of_range(check: int) -> None:
    with pytest.raises(ConfigError, match="check"):
        Extras().encode(1, {}, [], check)


@given(
    st.integers(0, MAX_CHECK - 1),
    st.lists(st.integers(0, MAX_CHECK - 1), min_size=1, max_size=8),
)
def test_one_check_that_differs_shows(common: int, others: list[int]) -> None:
    """With one odd sender the sum is never `count` times the common one."""
    extras = Extras()
    for odd in others:
        parts = [extras.encode(1, {}, [], check) for check in [common] * 7 + [odd]]
        totals = extras.decode(np.sum(parts, axis=0))
        assert (totals.check == totals.count * common) == (odd == common)


MOST = 2 * LIMIT * POINT


@pytest.mark.parametrize(
    ("total", "reported", "possible"),
    [
        *((total, reported, True) for total, reported in ((MOST, 2), (-MOST, 2), (0, 0), (0, 3))),
        *((total, 2, False) for total in (MOST + 1, -MOST - 1)),
        *((total, reported, False) for total, reported in ((1, 0), (0, 4), (0, -1))),
    ],
)
def test_a_metric_that_no_clients_could_come_to(total: int, reported: int, possible: bool) -> None:
    sums = np.array([1, 3, 0, total, reported], np.int64)
    if possible:
        assert math.isnan(Extras(("loss",)).decode(sums).metrics["loss"]) == (reported == 0)
        return
    with pytest.raises(ProtocolError, match="an impossible metric"):
        Extras(("loss",)).decode(sums)


def test_a_metric_named_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Extras(("loss", "loss"))


def test_halves_of_an_integer_round_up() -> None:
    extras = Extras(integers=4)
    sums = np.array([2, 2, 0, 1, -1, 3, -3], np.int64)
    assert extras.decode(sums).integers == [1, 0, 2, -1]


@pytest.mark.parametrize(
    ("total", "reported"), [(0, 8), (0, -1), (int(LIMIT * POINT) + 1, 1), (1, 0)]
)
def test_a_metric_that_no_senders_have(total: int, reported: int) -> None:
    with pytest.raises(ProtocolError, match="impossible metric"):
        Extras(("loss",)).decode(np.array([1, 7, 0, total, reported], np.int64))
