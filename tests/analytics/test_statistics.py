"""Statistics: what sites add up to is the statistic of all rows, which others compute; and asking."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from flhe.analytics import (
    Below,
    Choice,
    Contingency,
    Count,
    Covariance,
    Histogram,
    KaplanMeier,
    Mean,
    Real,
    Schema,
    Statistic,
    Variance,
    Whole,
    answers,
    ask,
    quantiles,
)
from flhe.analytics.ask import STATISTICS
from flhe.analytics.statistics import chi_square_tail
from flhe.errors import ConfigError, NotFiniteError, ProtocolError, RangeError
from flhe.mods import records
from flhe.training.query import Query

SCHEMA = Schema(
    age=Real(0, 120),
    weight=Real(20, 400),
    stage=Choice("I", "II", "III"),
    days=Whole(-3, 60),
    died=Choice(0, 1),
)
ASKED: dict[str, Statistic] = {
    "count": Count(),
    "mean": Mean("age"),
    "variance": Variance("weight"),
    "covariance": Covariance(("age", "weight")),
    "histogram": Histogram("age", (0, 18, 65, 120)),
    "below": Below("age", (-(1 << 36), 0, 1 << 35)),
    "contingency": Contingency("died", "stage"),
    "kaplan-meier": KaplanMeier("days", "died", by="stage"),
}
Rows = Mapping[str, NDArray[Any]]


def rows(count: int, seed: int = 0) -> Rows:
    """A table whose groups differ."""
    draw = np.random.default_rng(seed)
    stage = draw.integers(0, 3, count)
    return {
        "age": draw.uniform(0, 120, count),
        "weight": draw.uniform(20, 400, count),
        "stage": np.array(["I", "II", "III"])[stage],
        "days": np.minimum(draw.geometric(0.02 + 0.03 * stage, count) - 4, 60),
        "died": draw.integers(0, 2, count),
    }


def added(statistic: Statistic, tables: list[Rows]) -> dict[str, NDArray[Any]]:
    """Sums of what such sites answer."""
    parts = [statistic.answer(SCHEMA, table) for table in tables]
    return {name: sum(part[name] for part in parts) for name in parts[0]}  # type: ignore[misc]


def of(statistic: Statistic, table: Rows, schema: Schema = SCHEMA) -> Any:
    """The statistic of one table."""
    return statistic.result(schema, statistic.answer(schema, table))


def test_every_statistic_is_in_the_table() -> None:
    assert {type(each) for each in ASKED.values()} == set(STATISTICS)
    assert all(each.name == name for name, each in ASKED.items())


@given(cuts=st.lists(st.integers(0, 200), min_size=1, max_size=6), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("name", ASKED)
def test_sites_add_up_to_the_pooled_table_to_the_last_bit(
    name: str, cuts: list[int], seed: int
) -> None:
    table, edges = rows(200, seed), [0, *sorted(cuts), 200]
    tables = [{column: values[a:b] for column, values in table.items()} for a, b in pairwise(edges)]
    apart = added(ASKED[name], tables)
    assert all(values.dtype == np.int64 for values in apart.values())
    np.testing.assert_equal(ASKED[name].result(SCHEMA, apart), of(ASKED[name], table))


def test_moments_are_numpys() -> None:
    table = rows(5000)
    found = of(ASKED["variance"], table)
    assert found.rows == of(ASKED["count"], table) == 5000
    assert found.mean == pytest.approx(table["weight"].mean(), rel=1e-9)
    assert found.deviation == pytest.approx(table["weight"].std(ddof=1), rel=1e-9)
    assert of(Mean("age"), table).mean == pytest.approx(table["age"].mean(), rel=1e-9)

    flat = {"age": 119.9 + 1e-5 * np.arange(1000) / 1000}  # whose squares would cancel
    assert of(Variance("age"), flat).deviation == pytest.approx(flat["age"].std(ddof=1), rel=1e-3)


def test_covariance_and_correlation_are_numpys() -> None:
    table = dict(rows(3000))
    table["weight"] = np.clip(table["weight"] / 4 + 2 * table["age"], 20, 400)
    found, both = of(ASKED["covariance"], table), [table["age"], table["weight"]]
    np.testing.assert_allclose(found.means, np.mean(both, axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.covariance, np.cov(both), rtol=1e-8)
    np.testing.assert_allclose(found.correlation, np.corrcoef(both), rtol=1e-8)


def test_a_correlation_is_never_beyond_one() -> None:
    x = np.random.default_rng(6).random(5)
    schema = Schema(a=Real(0, 1), b=Real(-3, 7))
    found = of(Covariance(("a", "b")), {"a": x, "b": 10 * x - 3}, schema)
    assert np.abs(found.correlation).max() == 1


def test_a_variance_beyond_floats_is_infinite() -> None:
    found = of(Variance("a"), {"a": np.array([-1e200, 1e200])}, Schema(a=Real(-1e200, 1e200)))
    assert (found.mean, found.variance, found.deviation) == (0, math.inf, math.inf)


def test_histogram_is_numpys() -> None:
    table = {"age": np.array([0.0, 17.9, 18.0, 64.0, 120.0])}
    np.testing.assert_array_equal(of(ASKED["histogram"], table), [2, 2, 1])


def test_contingency_is_scipys() -> None:
    table = rows(900)
    found = of(ASKED["contingency"], table)
    want = [
        [((table["stage"] == s) & (table["died"] == d)).sum() for s in ("I", "II", "III")]
        for d in (0, 1)
    ]
    np.testing.assert_array_equal(found.counts, want)
    statistic, freedom, p = found.chi_square
    theirs = stats.chi2_contingency(np.array(want), correction=False)
    assert (statistic, freedom, p) == pytest.approx((theirs[0], theirs[2], theirs[1]), rel=1e-9)


def censored(days: NDArray[Any], died: NDArray[Any]) -> Any:
    """Scipy's form of rows."""
    return stats.CensoredData(uncensored=days[died == 1], right=days[died == 0])


def test_kaplan_meier_is_scipys() -> None:
    table = rows(800)
    found = of(KaplanMeier("days", "died"), table)
    theirs = stats.ecdf(censored(table["days"], table["died"]))
    np.testing.assert_array_equal(found.times, theirs.sf.quantiles)
    np.testing.assert_allclose(found.survival[0], theirs.sf.probabilities, rtol=1e-12)
    low = theirs.sf.confidence_interval(method="linear").low.probabilities
    ours = found.survival[0] - stats.norm.ppf(0.975) * found.error[0]
    inside = (low > 0) & np.isfinite(low)
    np.testing.assert_allclose(ours[inside], low[inside], rtol=1e-9)


@pytest.mark.parametrize("stages", [("I", "II"), ("I", "II", "III"), ("0", "I", "II")])
def test_log_rank_is_scipys_whatever_groups_are_empty(stages: tuple[str, ...]) -> None:
    table = rows(600)
    some = np.isin(table["stage"], ["I", "II"])
    two = {name: values[some] for name, values in table.items()}
    schema = Schema(stage=Choice(*stages), days=Whole(-3, 60), died=Choice(0, 1))
    statistic, freedom, p = of(KaplanMeier("days", "died", by="stage"), two, schema).log_rank
    sides = []
    for stage in ("I", "II"):
        here = two["stage"] == stage
        sides.append(censored(two["days"][here], two["died"][here]))
    theirs = stats.logrank(*sides)
    assert freedom == 1
    assert statistic == pytest.approx(theirs.statistic**2, rel=1e-9)
    assert p == pytest.approx(theirs.pvalue, rel=1e-9)


def followed(days: list[int], died: list[int], stage: str) -> Any:
    """Curves of these rows by stage, one letter each."""
    stages = np.array([{"1": "I", "2": "II"}[each] for each in stage], "U3")
    table = {"days": np.array(days, int), "died": np.array(died, int), "stage": stages}
    return of(ASKED["kaplan-meier"], table)


@pytest.mark.parametrize(
    ("days", "died", "stage", "freedom"),
    [([], [], "", 0), ([1, 2, 2], [1, 0, 1], "222", 0), ([3, 5, 5, 5], [0, 1, 1, 1], "1122", 1)],
    ids=["no rows", "one group with rows", "all events at one time"],
)
def test_a_log_rank_of_nothing_that_differs_is_nan(
    days: list[int], died: list[int], stage: str, freedom: int
) -> None:
    """The statistic is 0 / 0 then, and no evidence that the groups have one curve."""
    np.testing.assert_equal(followed(days, died, stage).log_rank, (math.nan, freedom, math.nan))


def test_medians_are_the_first_time_that_half_are_gone() -> None:
    found = followed([1, 2, 3, 4, 5, 6], [1, 1, 1, 0, 0, 1], "111122")
    np.testing.assert_equal(found.medians, [2.0, 6.0, math.nan])
    alone = of(KaplanMeier("days", "died"), {"days": np.arange(1, 25), "died": np.ones(24, int)})
    assert alone.survival[0, 11] > 0.5  # which floats miss
    assert alone.medians == [12.0]
    with pytest.raises(ConfigError, match="compares groups"):
        _ = alone.log_rank


@pytest.mark.parametrize("freedom", range(1, 8))
@pytest.mark.parametrize("statistic", [0.0, 1e-3, 0.7, 5.0, 40.0])
def test_chi_square_is_scipys(statistic: float, freedom: int) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom))
    assert chi_square_tail(499.5, 999) == 1  # at most, whatever is rounded


def test_no_rows_at_all_are_no_statistic_but_no_error() -> None:
    found = of(ASKED["variance"], rows(0))
    assert found.rows == 0
    assert math.isnan(found.mean)
    assert math.isnan(found.variance)
    assert math.isnan(of(ASKED["contingency"], rows(0)).chi_square[0])


WRONG: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "NaN": ({"age": [math.nan]}, NotFiniteError),
    "beyond": ({"age": [120.5]}, RangeError),
    "not whole": ({"days": [0.5], "died": [0], "stage": ["I"]}, RangeError),
    "no choice": ({"days": [1], "died": [2], "stage": ["I"]}, RangeError),
    "lengths": ({"age": [1.0], "died": [0, 1]}, RangeError),
    "no column": ({"died": [0]}, ConfigError),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_does_not_fit_is_refused(case: str) -> None:
    table, error = WRONG[case]
    asked = ASKED["kaplan-meier" if "days" in table else "mean"]
    with pytest.raises(error) as told:
        asked.answer(SCHEMA, {name: np.array(values) for name, values in table.items()})
    assert "120.5" not in str(told.value)


UNREADABLE: dict[str, tuple[str, NDArray[Any]]] = {
    "masked": ("age", np.ma.array([1.0, 2.0, 99.0], mask=[False, False, True])),
    "a number of 64 bits": ("days", np.array([3, (1 << 64) - 1], np.uint64)),
    "masked days": ("days", np.ma.array([1, 2, 50], mask=[False, False, True])),
    "masked choices": ("stage", np.ma.array(["I", "II", "I"], mask=[False, False, True])),
    "a row": ("age", np.array([[1.0, 2.0, 99.0]])),
    "a frame of one column": ("days", np.array([[1], [2], [50]])),
    "choices of two dimensions": ("died", np.array([[0], [1], [1]])),
    "no dimension": ("age", np.array(99.0)),
    "complex": ("age", np.array([1 + 50j, 2, 99])),
    "complex days": ("days", np.array([1 + 50j, 2, 50])),
    "hours": ("days", np.array([1, 2, 50], "m8[h]")),
    "dates": ("days", np.array(["1970-01-02", "1970-01-05"], "M8[D]")),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_column_that_numpy_would_read_as_other_numbers_is_refused(case: str) -> None:
    name, column = UNREADABLE[case]
    with pytest.raises(RangeError, match=f"column {name!r}") as told:
        SCHEMA.take({name: column}, name)
    assert not any(cell in str(told.value) for cell in ("50", "99", "1970"))


class Missing:
    """Like pandas' NA: no number, and neither equal to anything nor different."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


CELLS = {"text": "secret", "None": None, "NA": Missing(), "too large": 10**400}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("column", SCHEMA.columns)
def test_a_cell_of_another_kind_is_refused_without_its_value(column: str, kind: str) -> None:
    with pytest.raises(RangeError) as told:
        SCHEMA.take({column: np.array([CELLS[kind], 1], object)}, column)
    assert "secret" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize("made", [np.array, np.ma.array], ids=["objects", "not masked"])
def test_other_arrays_of_numbers_are_taken(made: Any) -> None:
    taken = {name: SCHEMA.take({name: made([21, 30], object)}, name) for name in ("age", "days")}
    np.testing.assert_equal(taken, {"age": [21.0, 30.0], "days": [24, 33]})
    assert {values.dtype.kind for values in taken.values()} == {"f", "i"}


@pytest.mark.parametrize(
    "statistic",
    [
        Mean("days"),
        Mean("height"),
        Covariance(("age",)),
        Covariance(("weight", "age")),
        Histogram("age", (3, 3)),
        Histogram("age", (-1, 30)),
        Histogram("age", (30, 121)),
        Below("age", (2, 1)),
        Contingency("age", "stage"),
        Contingency("stage", "died"),
        Contingency("died", "died"),
        KaplanMeier("age", "died"),
        KaplanMeier("days", "stage"),
        Covariance(("age",) * 1000),  # k * k products would keep a site busy for hours
        *(Below("age", (threshold,)) for threshold in (0.0, 0.3, True)),  # 0 in two guises
    ],
)
def test_a_statistic_that_the_schema_does_not_have_is_refused(statistic: Statistic) -> None:
    with pytest.raises(ConfigError):
        statistic.parameters(SCHEMA)


def test_more_rows_than_sums_have_room_for_are_refused() -> None:
    with pytest.raises(ProtocolError):
        Count().result(SCHEMA, {"rows": np.array([1 << 27])})


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Real, (1, 1)),
        (Real, (1e308, 1.7e308)),  # floats do not resolve this range, and the next two
        (Real, (-1.7e308, 1.7e308)),
        (Real, (1.0, np.nextafter(1.0, 2))),
        (Whole, (0, 1 << 20)),
        (Choice, (1,)),
    ],
)
def test_columns_that_cannot_be_are_refused(column: Any, values: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        column(*values)


def test_schemas_that_differ_have_other_hashes() -> None:
    others = [Schema(a=Real(0, 1)), Schema(a=Real(0, 2)), Schema(a=Whole(0, 1))]
    others += [Schema(b=Real(0, 1)), Schema(a=Choice("1", "2")), Schema(a=Choice(1, 2))]
    assert len({schema.hash() for schema in others}) == 6


# --- asking: what nodes answer, and what they do not ---


TWO = Schema(age=Real(0, 120), weight=Real(20, 400))
CONTEXT: Any = None


class Sites:
    """Sites whose answers are added up in the clear."""

    def __init__(self, *columns: NDArray[Any]) -> None:
        self.tables = [{"age": ages, "weight": ages + 20} for ages in columns]
        self.asked = list[str]()

    def sum(self, name: str, parameters: Mapping[str, Any]) -> Any:
        self.asked.append(name)
        asked = ConfigRecord(dict(parameters))
        said = [answers(TWO, lambda _, own=t: own)[name](asked, CONTEXT) for t in self.tables]
        parts = [records.to_numpy(each) for each in said]
        sums = {part: np.sum([each[part] for each in parts], axis=0) for part in parts[0]}
        return SimpleNamespace(arrays=records.from_numpy(sums), senders=b"")


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
            quantiles(sites, TWO, "age", shares)
        return
    found = quantiles(sites, TWO, "age", np.array(shares) if cuts == 7 else shares, cuts=cuts)
    np.testing.assert_allclose(found, np.quantile(pooled, shares), rtol=0, atol=120 / 2**36)
    assert len(sites.asked) <= {1: 39, 7: 14, 255: 5}[cuts]


@pytest.mark.parametrize("shares", [[], [-0.1], [1.1], [float("nan")]])
def test_shares_that_cannot_be_are_refused(shares: list[float]) -> None:
    with pytest.raises(ConfigError):
        quantiles(Sites(np.array([1.0])), TWO, "age", shares)


def test_a_total_for_members_is_not_read_here() -> None:
    sealed = SimpleNamespace(sum=lambda *_: SimpleNamespace(arrays=records.SealedArrays()))
    with pytest.raises(ConfigError, match="sealed for the members"):
        ask(sealed, TWO, Mean("age"))


GUISES: dict[str, dict[str, Any]] = {
    "another schema": {"schema": Schema(age=Real(0, 121), weight=Real(20, 400)).hash()},
    "no schema": {"schema": b""},
    "one parameter more": {"x": 1},
    "an integer for a float": {"edges": [0, 50, 120]},
    "another column": {"column": "height"},
}


@pytest.mark.parametrize("how", GUISES)
def test_the_same_question_does_not_come_in_two_guises(how: str) -> None:
    asked = Histogram("age", (0, 50, 120)).parameters(TWO)
    answer = answers(TWO, lambda _: {"age": np.array([3.0])})["histogram"]
    assert isinstance(answer(ConfigRecord(asked), CONTEXT), ArrayRecord)
    with pytest.raises((ConfigError, TypeError)):
        answer(ConfigRecord({**asked, **GUISES[how]}), CONTEXT)


def test_zero_has_one_spelling_among_edges() -> None:
    plus, minus = (Histogram("age", (zero, 0.5)).parameters(TWO) for zero in (0.0, -0.0))
    assert Query.of("histogram", plus).hash() == Query.of("histogram", minus).hash()
    answer = answers(TWO, lambda _: {"age": np.array([3.0])})["histogram"]
    with pytest.raises(ConfigError, match="spelling"):
        answer(ConfigRecord({**plus, "edges": [-0.0, 0.5]}), CONTEXT)
