"""SecAgg: exact sums over whoever stays, packed to the bit, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.errors import ConfigError, ProtocolError, QuorumError, RangeError, ReuseError
from flhe.schemes.sealed import Sealed, Slot
from flhe_lab.variants.secagg import pairwise
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.scheme import SecAgg, SecAggOpener, SecAggSealer
from tests.keys.masking import group
from tests.laws import OTHER_SLOTS, SLOT
from tests.sim.variants.federated import to_neighbours, to_receivers

NONE = np.empty(0, np.int32)
Keys = dict[int, bytes]


def sealers(
    scheme: SecAgg, length: int, degree: int | None = None
) -> tuple[list[SecAggSealer], Keys, Plan]:
    identities, epochs = group(scheme.cohort)
    graph = None if degree is None else Graph(scheme.cohort, degree, bytes(16))
    plan = scheme.plan(epochs[0], SLOT, length, graph=graph)
    first = {
        r: pairwise.advertise(i, e, plan)
        for r, (i, e) in enumerate(zip(identities, epochs, strict=True))
    }
    keys = {r: message for r, (_, message) in first.items()}
    relayed = to_neighbours(plan, keys)
    second = {r: pairwise.share(state, relayed[r]) for r, (state, _) in first.items()}
    boxes = to_receivers(plan, {r: sent for r, (_, sent) in second.items()})
    made = [SecAggSealer(scheme, state, boxes[r]) for r, (state, _) in second.items()]
    return made, keys, plan


def answers(made: list[SecAggSealer], senders: Collection[int]) -> list[bytes]:
    plan, signed, sent = made[0].shared.plan, {}, {}
    masked = {rank: state for rank in senders if (state := made[rank].masked)}
    told = to_neighbours(plan, {r: state.message for r, state in masked.items()})
    for rank, state in masked.items():
        signed[rank], sent[rank] = pairwise.consist(state, sorted(senders), told[rank])
    sets = to_neighbours(plan, sent)
    return [pairwise.unmask(signed[rank], sets[rank]) for rank in senders]


def summed(scheme: SecAgg, parts: list[Sealed]) -> Sealed:
    """What a server makes of the senders' ciphertexts."""
    total = parts[0].data.copy()
    for part in parts[1:]:
        scheme.packing.add(total, part.data, part.length)
    senders = tuple(rank for part in parts for rank in part.senders)
    return Sealed(scheme.name, parts[0].slot, senders, parts[0].length, total)


def whole(
    scheme: SecAgg, values: np.ndarray, gone: Collection[int], degree: int | None = None
) -> np.ndarray:
    """The sum over who stays, by way of ciphertexts."""
    made, keys, plan = sealers(scheme, values.shape[1], degree)
    split = values.shape[1] // 2
    senders = tuple(r for r in range(scheme.cohort) if r not in gone)
    plains = {r: Plain(values[r, :split], values[r, split:]) for r in senders}
    total = summed(scheme, [made[r].encrypt(plains[r], SLOT) for r in senders])
    assert total.data.size == scheme.packing.nbytes(values.shape[1])
    given_ = answers(made, senders)
    return SecAggOpener(scheme, plan, keys, range(scheme.cohort), given_).decrypt(total)


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
    assert np.array_equal(whole(scheme, values, gone), values[kept].sum(0, dtype=np.int64))


def test_sums_on_a_sparse_graph() -> None:
    values = np.arange(-40, 40, dtype=np.int32).reshape(8, 10)
    assert np.array_equal(whole(SecAgg(8, 12), values, [2], 4), np.delete(values, 2, 0).sum(0))


@pytest.mark.parametrize(("cohort", "bits"), [(2, 8), (1025, 8), (5, 1), (5, 30), (1024, 23)])
def test_parameters_that_cannot_work(cohort: int, bits: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        SecAgg(cohort, bits)


def test_what_cannot_be_encrypted() -> None:
    scheme = SecAgg(3, 8)
    assert scheme.lane_bits == 10
    made = sealers(scheme, 4)[0]
    plain = Plain(np.arange(4, dtype=np.int32), NONE)
    for other in OTHER_SLOTS.values():
        with pytest.raises(ProtocolError, match="another slot"):
            made[0].encrypt(plain, other)
    with pytest.raises(ProtocolError, match="another length"):
        made[0].encrypt(Plain(np.arange(5, dtype=np.int32), NONE), SLOT)
    for value in (128, -128):
        with pytest.raises(RangeError, match="beyond 127"):
            made[0].encrypt(Plain(np.array([value] * 4, np.int32), NONE), SLOT)
    assert made[0].masked is None
    one = made[0].encrypt(plain, SLOT)
    assert not np.array_equal(one.data, made[1].encrypt(plain, SLOT).data)
    with pytest.raises(ReuseError):
        made[0].encrypt(plain, SLOT)


def test_what_cannot_be_opened() -> None:
    scheme = SecAgg(3, 8)
    made, keys, plan = sealers(scheme, 4)
    plain = Plain(np.arange(4, dtype=np.int32), NONE)
    total = summed(scheme, [sealer.encrypt(plain, SLOT) for sealer in made[:2]])
    given_ = answers(made, (0, 1))
    opener = SecAggOpener(scheme, plan, keys, range(3), given_)
    other = Sealed("secagg", OTHER_SLOTS["attempt"], (0, 1), 4, total.data)
    with pytest.raises(ProtocolError, match="another slot"):
        opener.decrypt(other)
    with pytest.raises(QuorumError):
        SecAggOpener(scheme, plan, keys, range(3), given_[:1]).decrypt(total)
    assert opener.decrypt(total).tolist() == [0, 2, 4, 6]


def test_a_slot_is_bound_whole() -> None:
    """Every field of the slot is in the plan, so in every message and every mask."""
    epoch = group(3)[1][0]
    slots: list[Slot] = [SLOT, *OTHER_SLOTS.values()]
    hashes = {SecAgg(3).plan(epoch, slot, 4).hash for slot in slots}
    assert len(hashes) == len(slots)
    with pytest.raises(ConfigError, match="the epoch has 4 members"):
        SecAgg(5).plan(group(4)[1][0], SLOT, 10)
