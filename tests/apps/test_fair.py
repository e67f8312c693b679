"""q-FedAvg: a weighted mean of what the nodes return is Algorithm 2's step, in clear and encoded."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import RangeError
from flhe_app.settings import FAIR_LIMIT
from flhe_app.tasks.fair import Fair
from tests.apps.federation import Arrays as Model

RATE = 0.05


def fair(q: float = 1.0, **changes: Any) -> Fair:
    fields = {"lipschitz": 1 / RATE, "clip": 1.0, "chance": math.log(10), "limit": FAIR_LIMIT}
    return Fair(q, **{**fields, **changes})


def models(seed: int, nodes: int, spread: float = 0.05) -> tuple[Model, list[Model]]:
    """A received model, and what the nodes made of it."""
    rng = np.random.default_rng(seed)
    received: Model = {
        "w": rng.normal(0, 0.5, (8, 5)).astype(np.float32),
        "b": rng.normal(0, 0.5, 7).astype(np.float32),
    }
    trained = [
        {n: (a + rng.normal(0, spread, a.shape)).astype(np.float32) for n, a in received.items()}
        for _ in range(nodes)
    ]
    return received, trained


def algorithm_2(
    q: float, lipschitz: float, received: Model, trained: list[Model], losses: list[float]
) -> Model:
    """The paper's server, word for word, in float64."""
    sums: dict[str, Any] = dict.fromkeys(received, 0.0)
    h_sum = 0.0
    for model, loss in zip(trained, losses, strict=True):
        d = {n: lipschitz * (received[n].astype(np.float64) - model[n]) for n in received}
        norm = sum(float((part**2).sum()) for part in d.values())
        for name in received:
            sums[name] = sums[name] + loss**q * d[name]
        h_sum += q * loss ** (q - 1) * norm + lipschitz * loss**q
    return {n: a.astype(np.float64) - sums[n] / h_sum for n, a in received.items()}


def weighted_mean(parts: list[tuple[Model, int]]) -> Model:
    total = sum(weight for _, weight in parts)
    return {
        n: sum(weight * arrays[n].astype(np.float64) for arrays, weight in parts) / total
        for n in parts[0][0]
    }


def furthest(one: Model, other: Model) -> float:
    return max(float(np.abs(one[n] - other[n]).max()) for n in one)


@given(
    st.floats(0.1, 5),
    st.floats(1, 100),
    st.lists(st.floats(0.05, 5), min_size=2, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_the_weighted_mean_is_algorithm_2s_step(
    q: float, lipschitz: float, losses: list[float], seed: int
) -> None:
    received, trained = models(seed, len(losses))
    # A clip so large that nobody is beyond the reference.
    method = fair(q, lipschitz=lipschitz, clip=3.0, limit=1 << 28)
    parts = [
        method.contribution(received, model, loss)
        for model, loss in zip(trained, losses, strict=True)
    ]
    expected = algorithm_2(q, lipschitz, received, trained, losses)
    assert all(weight < method.limit for _, weight in parts)
    total = sum(weight for _, weight in parts)
    apart = 2 * max(furthest(arrays, received) for arrays, _ in parts)
    bound = len(parts) * apart / total + 2e-7  # each weight is off by less than one; float32
    assert furthest(weighted_mean(parts), expected) < bound


def test_types_stay_and_integers_pass() -> None:
    received: Model = {"w": np.ones(3, np.float32), "n": np.array(4), "d": np.ones(2)}
    trained: Model = {"w": np.full(3, 2, np.float32), "n": np.array(9), "d": np.zeros(2)}
    arrays, _ = fair().contribution(received, trained, 1.0)
    assert [a.dtype for a in arrays.values()] == [a.dtype for a in trained.values()]
    assert arrays["n"] == 9
    share = 1 / (1 + 20 * 5)
    assert np.allclose(arrays["w"], 1 + share)
    assert np.allclose(arrays["d"], 1 - share)
    assert trained["w"].tolist() == [2] * 3


def test_beyond_the_reference_is_the_largest_weight(caplog: pytest.LogCaptureFixture) -> None:
    received, (model, _) = models(1, 2, spread=1.0)
    with caplog.at_level(logging.WARNING, "flhe"):
        _, weight = fair(clip=0.1).contribution(received, model, 2.0)
    assert weight == FAIR_LIMIT
    assert "weighs it by that" in caplog.text


def test_a_perfect_model_still_counts_one() -> None:
    received, _ = models(1, 1)
    arrays, weight = fair(3.0).contribution(received, received, 0.0)
    assert weight == 1
    assert furthest(arrays, received) == 0
    _, weight = fair(0.1).contribution(received, received, -1.0)
    assert 1 < weight < FAIR_LIMIT


def test_training_that_ran_away() -> None:
    received, (model, _) = models(1, 2)
    for loss in (math.nan, math.inf, -math.inf):
        with pytest.raises(RangeError, match="not finite; lower the learning rate"):
            fair().contribution(received, model, loss)
    with pytest.raises(RangeError, match="not finite"):
        fair().contribution(received, {**model, "b": np.full(7, np.nan, np.float32)}, 1.0)
    _, weight = fair(20.0).contribution(received, model, 1e300)
    assert weight == FAIR_LIMIT
