"""Keys that nobody dealt, against a server that carries what it likes and members that conspire."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flhe.errors import AuthenticationError, FlheError, ProtocolError
from flhe.keys.agreement import broadcast, joint
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.esafl.keys import draw_own
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.keyed import JointKey
from tests.fuzz.group import CONTRACT, IDS, RUN, SIZE, exchange
from tests.fuzz.signed import ESAFL as SCHEME
from tests.fuzz.signed import joints

N = SCHEME.sizes.n


class Made:
    """One agreement up to the JOINT messages."""

    def __init__(self, number: int) -> None:
        self.states, self.messages = joints(number)
        self.epoch = exchange(number).epochs[0]

    def add(self, rank: int, messages: list[bytes] | None = None) -> tuple[Epoch, bytes]:
        inbox = self.messages if messages is None else messages
        return joint.add(IDS[rank], self.states[rank], inbox, SCHEME)


once, other = functools.partial(Made, 0), functools.partial(Made, 1)


def own_of(state: Epoch) -> np.ndarray[Any, Any]:
    return joint._own_in(state, SCHEME).astype(np.int64)


def plain_of(message: bytes) -> np.ndarray[Any, Any]:
    """v_i in a JOINT, as anybody reads it who has the group key."""
    envelope = Envelope.from_bytes(message, joint.MAX_SHARE)
    made = once() if envelope.header.epoch == 0 else other()
    plain = open_from(made.epoch.group_key, envelope.header, envelope.payload)
    return np.frombuffer(plain, "<u4")


def small(lanes: np.ndarray[Any, Any]) -> Any:
    """Share of lanes as small as a key's: hardly any is, where masks are left."""
    return np.mean(np.abs(lanes.view(np.int32).astype(np.int64)) < 1 << 20)


def forged(rank: int, lanes: Any = None, payload: bytes = b"", **changes: Any) -> bytes:
    """The JOINT of a member with another v_i, payload or header, signed by it."""
    envelope = Envelope.from_bytes(once().messages[rank], joint.MAX_SHARE)
    if lanes is not None:
        plain = np.asarray(lanes, "<u4").tobytes()
        payload = seal_to(once().epoch.group_key, envelope.header, plain)
    header_ = dataclasses.replace(envelope.header, **changes)
    return Envelope.seal(IDS[rank], header_, payload or envelope.payload).to_bytes()


def shifted(rank: int, by: int) -> bytes:
    """A JOINT with one lane changed."""
    lanes = plain_of(once().messages[rank]).copy()
    lanes[0] += np.uint32(by)
    return forged(rank, lanes)


def key_of(epoch: Epoch) -> JointKey:
    return JointKey.from_bytes(epoch.scheme_secret)


def test_all_have_the_sum_of_all() -> None:
    made = once()
    done = [made.add(rank) for rank in range(SIZE)]
    total = sum(own_of(state) for state in made.states)
    epochs = [agreed for agreed, _ in done]
    keys = [key_of(epoch) for epoch in epochs]
    for rank, key in enumerate(keys):
        assert np.array_equal(key.total, total)
        assert np.array_equal(key.own, own_of(made.states[rank]))
    assert len({epoch.scheme_public for epoch in epochs}) == 1
    agreed = made.epoch
    names = {
        broadcast.announced(m, joint.SUM, IDS[r].public, (RUN, 0, agreed.id, CONTRACT))
        for r, (_, m) in enumerate(done)
    }
    assert names == {epochs[0].scheme_public}


def test_asked_twice_a_member_sends_the_same_share() -> None:
    made = once()
    state, again = joint.share(IDS[1], made.states[1], SCHEME)
    assert state == made.states[1]
    assert again != made.messages[1]  # sealed under another nonce
    assert np.array_equal(plain_of(again), plain_of(made.messages[1]))


def test_the_sum_of_what_is_sent_is_the_sum_of_keys_and_no_part_of_it_is() -> None:
    """Nor is the difference of two agreements: keys and pair keys are fresh."""
    lanes = [plain_of(message) for message in once().messages]
    for size in range(1, SIZE):
        for ranks in itertools.combinations(range(SIZE), size):
            part = np.sum([lanes[r] for r in ranks], axis=0, dtype=np.uint32)
            assert small(part) < 0.01, ranks
    assert small(lanes[0] - plain_of(other().messages[0])) < 0.01


def test_all_but_two_learn_the_sum_of_those_two_only() -> None:
    """Colluders take off every mask that they know: between the two others one is left."""
    made = once()
    lanes = [plain_of(made.messages[rank]).copy() for rank in (0, 1)]
    for rank, colluder in itertools.product((0, 1), (2, 3)):
        lanes[rank] -= joint._mask(made.epoch, made.states[colluder].pair_keys[rank], N)
    both = (lanes[0] + lanes[1]).view(np.int32)
    assert np.array_equal(both, own_of(made.states[0]) + own_of(made.states[1]))
    assert max(map(small, lanes)) < 0.01


def test_the_relay_sees_no_key_and_no_sum() -> None:
    made = once()
    wire = b"".join(made.messages) + made.add(0)[1]
    key = key_of(made.add(0)[0])
    for secret in (key.own.tobytes(), key.total.astype("<i4").tobytes()):
        for at in range(0, len(secret), 97):
            assert secret[at : at + 24] not in wire
    assert plain_of(made.messages[0]).tobytes()[:24] not in wire


def last(build: Callable[[], bytes]) -> Callable[[], list[bytes]]:
    """The honest messages, with another one of the last member."""
    return lambda: [*once().messages[:3], build()]


def box_of(rank: int) -> bytes:
    return Envelope.from_bytes(once().messages[rank], joint.MAX_SHARE).payload


BEYOND = "beyond 9 sigma sqrt"
ATTACKS: dict[str, tuple[Callable[[], list[bytes]], type[FlheError], str]] = {
    "one missing": (lambda: once().messages[:-1], ProtocolError, "3 JOINT messages, all 4"),
    "one more": (lambda: once().messages * 2, ProtocolError, "8 JOINT messages"),
    "one twice": (last(lambda: once().messages[2]), ProtocolError, "two JOINT messages by"),
    "another's box": (
        last(lambda: forged(3, payload=box_of(2))),
        AuthenticationError,
        "does not decrypt",
    ),
    "another contract": (
        last(lambda: forged(3, policy_hash=bytes(32))),
        ProtocolError,
        "policy_hash",
    ),
    "another stage": (last(lambda: forged(3, stage="joint-sum")), ProtocolError, "stage"),
    "shorter": (
        last(lambda: forged(3, plain_of(once().messages[3])[:-1])),
        ProtocolError,
        "another length",
    ),
    "a large coefficient": (last(lambda: shifted(3, 10_000)), ProtocolError, BEYOND),
    "the own one changed": (
        lambda: [forged(0, plain_of(once().messages[2])), *once().messages[1:]],
        ProtocolError,
        "own JOINT was changed",
    ),
    # The others' masks do not go away.
    "no key at all": (last(lambda: forged(3, np.zeros(N, np.uint32))), ProtocolError, BEYOND),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_server_or_a_member_may_try(name: str) -> None:
    build, error, why = ATTACKS[name]
    with pytest.raises(error, match=why):
        once().add(0, build())


def test_members_that_were_told_different_shares_name_different_sums() -> None:
    """A member that conspires with the server: no two of the others may take it for one epoch."""
    made = once()
    _, left = made.add(0)
    _, right = made.add(1, last(lambda: shifted(3, 1))())
    names = [
        broadcast.announced(m, joint.SUM, IDS[r].public, (RUN, 0, made.epoch.id, CONTRACT))
        for r, m in enumerate((left, right))
    ]
    hashes = {
        EsaflAdder(Esafl(keys="joint"), SIZE, key_id=name).parameters()["key_id"] for name in names
    }
    assert len(hashes) == 2  # so their slots differ, and nobody adds their ciphertexts


def test_a_second_sum_in_one_agreement_is_refused() -> None:
    made = once()
    state, _ = made.add(0)
    with pytest.raises(ProtocolError, match="a second sum of keys"):
        joint.add(IDS[0], state, last(lambda: shifted(3, 1))(), SCHEME)
    again, _ = joint.add(IDS[0], state, made.messages, SCHEME)
    assert again == state
    with pytest.raises(ProtocolError, match="the sum of keys is known"):
        joint.share(IDS[0], state, SCHEME)


def test_another_ring_starts_over() -> None:
    made, wider = once(), Esafl(ring="rns-8192", keys="joint").adder(SIZE)
    with pytest.raises(ProtocolError, match="another ring"):
        joint.add(IDS[0], made.states[0], made.messages, wider)


def test_keys_that_were_dealt_take_no_joint() -> None:
    agreed = exchange(9).epochs
    owns = [draw_own(N) for _ in range(SIZE)]
    total = np.sum(owns, axis=0, dtype=np.int32)
    done = [
        joint.take(identity, epoch, JointKey(own, total), SCHEME)
        for identity, epoch, own in zip(IDS, agreed, owns, strict=True)
    ]
    epochs = [epoch for epoch, _ in done]
    assert len({epoch.scheme_public for epoch in epochs}) == 1
    assert np.array_equal(key_of(epochs[2]).own, owns[2])
    ternary = np.zeros(N, np.int8)
    ternary[:64] = 1
    with pytest.raises(ProtocolError, match="too small, too few or too large"):
        joint.take(IDS[0], agreed[0], JointKey(ternary, total), SCHEME)
    made = once()
    with pytest.raises(ProtocolError, match="keys were drawn in this key agreement"):
        joint.take(IDS[0], made.states[0], JointKey(owns[0], total), SCHEME)
