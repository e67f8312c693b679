"""SecAgg: exact sums over whoever stays, packed to the bit, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, QuorumError, RangeError, ReuseError
from flhe.keys import pairwise, pairwise_server
from flhe.keys.graph import Graph
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.secagg import SecAgg, SecAggOpener, SecAggSealer
from flhe.sealed import Sealed, Slot
from flhe.spaces import Integers
from tests.keys.masking import group
from tests.laws import OTHER_SLOTS, SLOT

NONE = np.empty(0, np.int32)


def sealers(
    scheme: SecAgg, length: int, degree: int | None = None
) -> tuple[list[SecAggSealer], dict, dict]:
    identities, epochs = group(scheme.cohort)
    graph = None if degree is None else Graph(scheme.cohort, degree, bytes(16))
    plan = scheme.plan(epochs[0], SLOT, length, graph=graph)
    first = {
        r: pairwise.advertise(i, e, plan)
        for r, (i, e) in enumerate(zip(identities, epochs, strict=True))
    }
    keys = {r: message for r, (_, message) in first.items()}
    relayed = pairwise_server.to_neighbours(plan, keys)
    second = {r: pairwise.share(state, relayed[r]) for r, (state, _) in first.items()}
    boxes = pairwise_server.to_receivers(plan, {r: sent for r, (_, sent) in second.items()})
    made = [SecAggSealer(scheme, state, boxes[r], threads=2) for r, (state, _) in second.items()]
    return made, keys, {"plan": plan}


def answers(made: list[SecAggSealer], senders: Collection[int]) -> list[bytes]:
    plan, signed, sent = made[0].shared.plan, {}, {}
    masked = {rank: state for rank in senders if (state := made[rank].masked)}
    told = pairwise_server.to_neighbours(plan, {r: state.message for r, state in masked.items()})
    for rank, state in masked.items():
        signed[rank], sent[rank] = pairwise.consist(state, sorted(senders), told[rank])
    sets = pairwise_server.to_neighbours(plan, sent)
    return [pairwise.unmask(signed[rank], sets[rank])[1] for rank in senders]


def whole(
    scheme: SecAgg, values: np.ndarray, gone: Collection[int], degree: int | None = None
) -> np.ndarray:
    """The sum over who stays, by way of ciphertexts."""
    made, keys, known = sealers(scheme, values.shape[1], degree)
    split = values.shape[1] // 2
    total: Sealed | None = None
    senders = tuple(r for r in range(scheme.cohort) if r not in gone)
    for rank in senders:
        plain = Plain(values[rank, :split], values[rank, split:])
        total = scheme.add(total, made[rank].encrypt(plain, SLOT))
    assert total is not None
    assert total.senders == senders
    assert total.data.size == scheme.nbytes(values.shape[1])
    opener = SecAggOpener(
        scheme, known["plan"], keys, range(scheme.cohort), answers(made, senders), threads=2
    )
    assert isinstance(opener, Opener)
    return opener.decrypt(scheme.close(total))


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


def test_what_it_is() -> None:
    scheme = SecAgg(5, 16)
    assert isinstance(scheme, Scheme)
    assert (scheme.lane_bits, scheme.space, scheme.reader) == (19, Integers(32767), "server")
    assert scheme.phases == ("mask-key", "mask-share", "mask-set", "mask-open")
    assert SecAgg(1024, 22).lane_bits == 32
    assert scheme.parameters() != SecAgg(5, 17).parameters() != SecAgg(6, 17).parameters()


@pytest.mark.parametrize(("cohort", "bits"), [(2, 8), (1025, 8), (5, 1), (5, 30), (1024, 23)])
def test_parameters_that_cannot_work(cohort: int, bits: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        SecAgg(cohort, bits)


def test_a_plan_of_another_cohort() -> None:
    with pytest.raises(ConfigError, match="the epoch has 4 members"):
        SecAgg(5).plan(group(4)[1][0], SLOT, 10)


def test_masks_are_used_once_and_for_their_slot() -> None:
    scheme = SecAgg(3, 8)
    made, _, _ = sealers(scheme, 4)
    assert isinstance(made[0], Sealer)
    plain = Plain(np.arange(4, dtype=np.int32), NONE)
    for other in OTHER_SLOTS.values():
        with pytest.raises(ProtocolError, match="another slot"):
            made[0].encrypt(plain, other)
    with pytest.raises(ProtocolError, match="another length"):
        made[0].encrypt(Plain(np.arange(5, dtype=np.int32), NONE), SLOT)
    assert made[0].masked is None
    made[0].prepare(SLOT, 4)
    made[0].encrypt(plain, SLOT)
    with pytest.raises(ReuseError):
        made[0].encrypt(plain, SLOT)


def test_prepared_or_not_the_bytes_are_the_same() -> None:
    scheme = SecAgg(3, 8)
    made, _, _ = sealers(scheme, 300)
    again = SecAggSealer(scheme, made[1].shared, made[1].boxes)
    again.prepare(SLOT, 300)
    plain = Plain(np.arange(-100, 100, dtype=np.int32) // 2, np.ones(100, np.int32))
    one, other = made[1].encrypt(plain, SLOT), again.encrypt(plain, SLOT)
    assert one.digest() == other.digest()
    assert not np.array_equal(one.data, made[0].encrypt(plain, SLOT).data)


def test_values_that_do_not_fit() -> None:
    made, _, _ = sealers(SecAgg(3, 8), 1)
    for value in (128, -128):
        with pytest.raises(RangeError, match="beyond 127"):
            made[0].encrypt(Plain(np.array([value], np.int32), NONE), SLOT)
    with pytest.raises(RangeError, match="signed integers"):
        made[0].encrypt(Plain(np.array([1.0]), NONE), SLOT)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="a mode was named"):
        made[0].encrypt(Plain(np.array([1], np.int32), NONE), SLOT, mode="double")
    with pytest.raises(ProtocolError, match="sparse"):
        made[0].encrypt(
            Plain(np.array([1], np.int32), NONE),
            SLOT,
            support=Support.of(np.array([0], np.uint32), 1),
        )


def test_what_cannot_be_added_or_opened() -> None:
    scheme = SecAgg(3, 8)
    made, keys, known = sealers(scheme, 4)
    plain = Plain(np.arange(4, dtype=np.int32), NONE)
    parts = [sealer.encrypt(plain, SLOT) for sealer in made]
    total = scheme.add(None, parts[0])
    with pytest.raises(ReuseError, match="already in the sum"):
        scheme.add(total, parts[0])
    with pytest.raises(ProtocolError, match="slot"):
        scheme.add(total, Sealed("secagg", OTHER_SLOTS["round"], (1,), 4, parts[1].data))
    with pytest.raises(ProtocolError, match="'flashe'"):
        scheme.add(total, Sealed("flashe", SLOT, (1,), 4, parts[1].data))
    with pytest.raises(ProtocolError, match="not in the cohort"):
        scheme.add(total, Sealed("secagg", SLOT, (3,), 4, parts[1].data))
    with pytest.raises(ProtocolError, match="ciphertext of 4 bytes"):
        scheme.add(total, Sealed("secagg", SLOT, (1,), 4, parts[1].data[:4]))
    total = scheme.add(total, parts[1])
    given = answers(made, (0, 1))
    opener = SecAggOpener(scheme, known["plan"], keys, range(3), given)
    other = Sealed("secagg", OTHER_SLOTS["attempt"], (0, 1), 4, total.data)
    with pytest.raises(ProtocolError, match="another slot"):
        opener.decrypt(other)
    with pytest.raises(QuorumError):
        SecAggOpener(scheme, known["plan"], keys, range(3), given[:1]).decrypt(total)
    assert opener.decrypt(total).tolist() == [0, 2, 4, 6]


def test_a_slot_is_bound_whole() -> None:
    """Every field of the slot is in the plan, so in every message and every mask."""
    epoch = group(3)[1][0]
    slots: list[Slot] = [SLOT, *OTHER_SLOTS.values()]
    hashes = {SecAgg(3).plan(epoch, slot, 4).hash for slot in slots}
    assert len(hashes) == len(slots)
