"""What a run says of noise: the worst case, counted release by release."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.rounds.terms import Terms
from flhe.strategies.privacy import Spending, release_of

LAYOUT = Layout(
    (
        Entry("wide", (60,), "float32"),
        Entry("narrow", (30,), "float32"),
        Entry("steps", (), "int64"),
        Entry("last", (10,), "float32"),
    )
)
CLIP = {"wide": 4.0, "narrow": 0.5, "last": 1.0}


def terms(select: Select, noise: Laplace | None = None, **how: Any) -> Terms:
    return Terms(select=select, noise=noise, **{"weighted": False, "clip": CLIP, **how})


def selected(one: Terms) -> dict[str, int]:
    return {layer.name: layer.selected for layer in release_of(one, LAYOUT).layers}


def test_a_mask_that_nobody_here_knows_is_taken_at_its_worst() -> None:
    """The encrypted values are those that cost least in clear: of the smallest thresholds first."""
    assert selected(terms(Select(0.35))) == {"wide": 0, "narrow": 30, "last": 5}
    assert selected(terms(Select(0.5))) == {"wide": 10, "narrow": 30, "last": 10}
    release = release_of(terms(Select(0.35), Laplace(0.5)), LAYOUT)
    assert release.epsilon == pytest.approx((60 * 8 + 5 * 2) / 0.5)


def test_a_mask_that_follows_from_the_terms_is_known() -> None:
    assert selected(terms(Select(rule="layers:wide"))) == {"wide": 60, "narrow": 0, "last": 0}
    random = Select(0.3, "random")
    coords = random.fixed(LAYOUT).coords
    found = selected(terms(random))
    assert sum(found.values()) == 30
    assert found["wide"] == np.count_nonzero(coords < 60)
    assert found["last"] == np.count_nonzero(coords >= 90)


def test_what_is_encrypted_or_not_sent_costs_nothing() -> None:
    for select in (Select(), Select(0.3, rest="drop")):
        one = terms(select, Laplace(0.5, "all"))
        assert selected(one) == {"wide": 60, "narrow": 30, "last": 10}
        assert release_of(one, LAYOUT).epsilon == 0
        assert release_of(one, LAYOUT).epsilon_readers > 0


def test_thresholds_that_follow_the_data_bound_nothing() -> None:
    release = release_of(terms(Select(0.3), clip="history"), LAYOUT)
    assert {layer.alpha for layer in release.layers} == {math.inf}
    assert math.isinf(release.epsilon)


def test_releases_add_up() -> None:
    one = terms(Select(0.35), Laplace(0.5))
    spending = Spending(one, LAYOUT)
    assert spending.epsilon == 0
    for count in (1, 2, 3):
        spending.add()
        assert spending.epsilon == pytest.approx(count * 980)
    assert spending.report.releases == 3
    assert Spending(one, LAYOUT, 4).epsilon == pytest.approx(4 * 980)
    bare = Spending(terms(Select(0.35)), LAYOUT)
    bare.add()
    assert bare.epsilon is None


def test_when_there_is_anything_to_count() -> None:
    kinds = [Select(), Select(0.3, rest="drop"), Select(0.3)]
    assert [Spending.due(terms(kind)) for kind in kinds] == [False, False, True]
    assert Spending.due(terms(Select(), Laplace(1.0, "all")))


def test_members_have_seen_the_map_without_noise() -> None:
    everything = Laplace(0.5, "all")
    mapped = release_of(terms(Select(0.35), everything), LAYOUT)
    assert math.isinf(mapped.epsilon_readers)
    assert math.isfinite(mapped.epsilon)
    fixed = release_of(terms(Select(0.35, "random"), everything), LAYOUT)
    assert math.isfinite(fixed.epsilon_readers)
