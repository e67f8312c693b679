"""SecAgg: exact sums over whoever stays, packed to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.variants.secagg.vectors import opened, packing_of, seal
from tests.sim.variants.federated import plan_for, run


def check(cohort: int, bits: int, values: Any, gone: list[int], degree: int | None = None) -> None:
    """Ciphertexts are the vectors that are masked, and their sum is that of the values."""
    plan = plan_for(cohort, length=values.shape[1], degree=degree)
    packing, parts = packing_of(cohort, bits), dict[int, Any]()

    def mask(rank: int, shared: Any, boxes: Mapping[int, bytes]) -> tuple[Any, Any]:
        masked, parts[rank] = seal(shared, boxes, values[rank], packing)
        return masked, parts[rank]

    left = run(plan, {}, gone={"mask": gone}, until="open", mask=mask)
    total, *others = parts.values()
    assert total.size == -(-plan.length * packing.bits // 8)
    for part in others:
        packing.add(total, part, plan.length)
    known = {"keys": left.keys, "sharers": range(cohort), "senders": left.senders}
    found = opened(plan, total, packing, answers=left.answers.values(), **known)
    assert np.array_equal(found, np.delete(values, gone, 0).sum(0, dtype=np.int64))


@settings(deadline=None, max_examples=25)
@given(
    st.integers(3, 6), st.integers(2, 29), st.integers(1, 600), st.randoms(use_true_random=False)
)
def test_sums_are_exact(cohort: int, bits: int, length: int, random: Any) -> None:
    bound, rng = (1 << bits - 1) - 1, np.random.default_rng(random.randrange(2**32))
    values = rng.integers(-bound, bound + 1, (cohort, length)).astype(np.int32)
    values[:, 0] = bound
    gone = random.sample(range(cohort), random.randint(0, cohort - cohort // 2 - 1))
    check(cohort, bits, values, gone)


def test_sums_on_a_sparse_graph() -> None:
    check(8, 12, np.arange(-40, 40, dtype=np.int32).reshape(8, 10), [2], 4)


@pytest.mark.parametrize(("cohort", "bits"), [(5, 1), (5, 30), (1024, 23)])
def test_parameters_that_cannot_work(cohort: int, bits: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        packing_of(cohort, bits)
