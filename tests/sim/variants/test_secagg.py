"""SecAgg: exact sums over whoever stays, packed to the bit, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.errors import ConfigError, ProtocolError, RangeError, ReuseError
from flhe.schemes.sealed import Sealed, Slot
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.scheme import SecAgg, SecAggOpener, SecAggSealer
from tests.keys.masking import group
from tests.laws import OTHER_SLOTS, SLOT
from tests.sim.variants.federated import Run, relayed, run

NONE = np.empty(0, np.int32)


def ran(
    scheme: SecAgg, values: np.ndarray, gone: Collection[int] = (), degree: int | None = None
) -> tuple[SecAggOpener, Sealed]:
    """What the server has when all answers are in: ciphertexts are the vectors that are masked."""
    graph = None if degree is None else Graph(scheme.cohort, degree, bytes(16))
    plan = scheme.plan(group(scheme.cohort)[1][0], SLOT, values.shape[1], graph=graph)
    split, sealed = values.shape[1] // 2, dict[int, Sealed]()

    def mask(rank: int, shared: Any, boxes: Mapping[int, bytes]) -> tuple[Any, Any]:
        sealer = SecAggSealer(scheme, shared, boxes)
        sealed[rank] = sealer.encrypt(Plain(values[rank, :split], values[rank, split:]), SLOT)
        return sealer.masked, NONE

    left: Run = run(plan, {}, gone={"mask": gone}, until="open", mask=mask)
    total = None
    for part in sealed.values():
        total = scheme.add(total, part)
    assert total is not None
    answers = left.answers.values()
    return SecAggOpener(scheme, plan, left.keys, range(scheme.cohort), answers), total


@settings(deadline=None, max_examples=25)
@given(
    st.integers(3, 6), st.integers(2, 29), st.integers(1, 600), st.randoms(use_true_random=False)
)
def test_sums_are_exact(cohort: int, bits: int, length: int, random) -> None:  # type: ignore[no-untyped-def]
    scheme = SecAgg(cohort, bits)
    bound = scheme.space.bound
    rng = np.random.default_rng(random.randrange(2**32))
    values = rng.integers(-bound, bound + 1, (cohort, length)).astype(np.int32)
    values[:, 0] = bound
    gone = random.sample(range(cohort), random.randint(0, cohort - cohort // 2 - 1))
    kept = [r for r in range(cohort) if r not in gone]
    opener, total = ran(scheme, values, gone)
    assert total.data.size == -(-length * scheme.lane_bits // 8)
    assert np.array_equal(opener.decrypt(total), values[kept].sum(0, dtype=np.int64))


def test_sums_on_a_sparse_graph() -> None:
    values = np.arange(-40, 40, dtype=np.int32).reshape(8, 10)
    opener, total = ran(SecAgg(8, 12), values, [2], 4)
    assert np.array_equal(opener.decrypt(total), np.delete(values, 2, 0).sum(0))
    with pytest.raises(ProtocolError, match="another slot"):
        opener.decrypt(Sealed("secagg", OTHER_SLOTS["attempt"], (0, 1), 10, total.data))


@pytest.mark.parametrize(("cohort", "bits"), [(2, 8), (1025, 8), (5, 1), (5, 30), (1024, 23)])
def test_parameters_that_cannot_work(cohort: int, bits: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        SecAgg(cohort, bits)


def test_what_cannot_be_encrypted() -> None:
    scheme = SecAgg(3, 8)
    plan: Plan = scheme.plan(group(3)[1][0], SLOT, 4)
    left = run(plan, {}, until="share")
    boxes = relayed(plan, left.boxes)
    one, two = (SecAggSealer(scheme, left.states[r], boxes[r]) for r in range(2))
    plain = Plain(np.arange(4, dtype=np.int32), NONE)
    for other in OTHER_SLOTS.values():
        with pytest.raises(ProtocolError, match="another slot"):
            one.encrypt(plain, other)
    for value in (128, -128):
        with pytest.raises(RangeError, match="beyond 127"):
            one.encrypt(Plain(np.array([value] * 4, np.int32), NONE), SLOT)
    assert one.masked is None
    assert not np.array_equal(one.encrypt(plain, SLOT).data, two.encrypt(plain, SLOT).data)
    with pytest.raises(ReuseError):
        one.encrypt(plain, SLOT)


def test_a_slot_is_bound_whole() -> None:
    """Every field of the slot is in the plan, so in every message and every mask."""
    slots: list[Slot] = [SLOT, *OTHER_SLOTS.values()]
    hashes = {SecAgg(3).plan(group(3)[1][0], slot, 4).hash for slot in slots}
    assert len(hashes) == len(slots)
