"""FLASHE's masks as clients drop out: what is counted, where the maskings cross."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe.schemes.flashe.masking import expected
from flhe_lab.bench.mask_counts import Masks, Point, crossover, sweep


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_nobody_gone_and_almost_all_gone() -> None:
    found = sweep(20, rng(), dropouts=(0.0, 0.95), sets=7)
    assert found.points[0] == Point(0.0, 20, Masks(4, 4, 4, 4), Masks(21, 21, 21, 21))
    alone = found.points[1]
    assert (alone.dropout, alone.survivors) == (0.95, 1)
    assert (alone.double.mean, alone.single.mean) == (4, 2)
    assert (alone.double.expected, alone.single.expected) == (pytest.approx(4), pytest.approx(2))


def test_counts_agree_with_the_theorem() -> None:
    found = sweep(40, rng(), sets=400)
    assert len(found.points) == 19
    for point in found.points:
        for mode, masks in (("double", point.double), ("single", point.single)):
            assert masks.expected == pytest.approx(expected(mode, 40, point.dropout))  # type: ignore[arg-type]
            assert masks.min <= masks.mean <= masks.max
        assert point.single.mean == pytest.approx(point.single.expected)
        # The number of runs has a standard deviation below 2 here, its mean over 400 below 0.1
        assert abs(point.double.mean - point.double.expected) < 2 * 5 * 0.1
    assert found.measured_crossover == pytest.approx(found.crossover, abs=0.02)


def test_rates_are_what_whole_clients_make_of_them() -> None:
    (point,) = sweep(7, rng(), dropouts=(0.5,), sets=3).points
    assert (point.survivors, point.dropout) == (4, pytest.approx(3 / 7))
    assert sweep(7, rng(), dropouts=(0.5,), sets=3).measured_crossover is None


@pytest.mark.parametrize("members", [4, 20, 40, 80, 1024])
def test_the_crossover_is_where_both_cost_the_same(members: int) -> None:
    at = crossover(members)
    assert expected("double", members, at) == pytest.approx(expected("single", members, at))
    root = (3 * members - 2 - math.sqrt(members**2 + 12 * members + 4)) / (4 * members)
    assert at == pytest.approx(root, abs=1e-9)


def test_among_two_or_three_single_masking_is_never_dearer() -> None:
    assert crossover(2) == crossover(3) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sets": 0}, "sets=0"),
        ({"dropouts": (0.1, 0.1)}, "must ascend"),
        ({"dropouts": (1.0,)}, "at least one must survive"),
        ({"dropouts": (-0.5,)}, "at least one must survive"),
    ],
)
def test_what_cannot_be_counted(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sweep(10, rng(), **arguments)
