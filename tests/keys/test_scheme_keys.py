"""Keys of a scheme's own, against a server that carries what it likes and members that lie.

Three agreements: a key pair that one member makes for all, keys of which all know the sum, and shares
of a key that nobody has. `tests/fuzz` has mutants of their messages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.errors import AuthenticationError, ProtocolError, QuorumError
from flhe.keys.agreement import broadcast, joint, key_pair, shared_key
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.keys.roles import partial_of, secrets_of
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.esafl.keys import draw_own
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.keyed import JointKey
from flhe.wire.canonical import dumps, loads
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.fuzz.group import IDS, RUN, SIZE, exchange
from tests.fuzz.signed import (
    ESAFL,
    PAILLIER,
    SCOPE,
    THRESHOLD,
    commits,
    joint_sum,
    joints,
    pair,
    revealed,
    shared_name,
)
from tests.keys import agreement
from tests.keys.agreement import opened, resigned
from tests.laws import SLOT

N = ESAFL.sizes.n
EPOCHS = exchange().epochs
Inbox = Sequence[bytes]


def take(rank: int, message: bytes, adder: Any = PAILLIER) -> Epoch:
    return key_pair.take(EPOCHS[rank], message, adder)


def add(rank: int, messages: Inbox | None = None) -> tuple[Epoch, bytes]:
    states, sent = joints()
    return joint.add(IDS[rank], states[rank], list(messages or sent), ESAFL)


def reveal(messages: Inbox) -> object:
    return shared_key.reveal(IDS[0], revealed()[0][0], list(messages), THRESHOLD)


def inbox(rank: int) -> list[bytes]:
    """The KEY-REVEALs for a member."""
    sent = revealed()[1]
    return [sent[by][rank - (rank > by)] for by in range(SIZE) if by != rank]


def finish(rank: int, messages: Inbox | None = None) -> tuple[Epoch, bytes]:
    told = list(messages or inbox(rank))
    return shared_key.finish(IDS[rank], revealed()[0][rank], told, THRESHOLD)


@functools.cache
def shared() -> list[Epoch]:
    return [finish(rank)[0] for rank in range(SIZE)]


def own_of(state: Epoch) -> np.ndarray[Any, Any]:
    return joint._own_in(state, ESAFL).astype(np.int64)


def key_of(epoch: Epoch) -> JointKey:
    return JointKey.from_bytes(epoch.scheme_secret)


def plain_of(message: bytes, number: int = 0) -> np.ndarray[Any, Any]:
    """v_i in a JOINT, as anybody reads it who has the group key."""
    sent, key = opened(message), exchange(number).epochs[0].group_key
    return np.frombuffer(open_from(key, sent.header, sent.payload), "<u4")


def small(lanes: np.ndarray[Any, Any]) -> Any:
    """Share of lanes as small as a key's: hardly any is, where masks are left."""
    return np.mean(np.abs(lanes.view(np.int32).astype(np.int64)) < 1 << 20)


def part_of(state: Epoch) -> Any:
    return shared_key._Part.from_bytes(state.scheme_secret)


def shown(state: Epoch) -> list[bytes]:
    """What a member has for the others, before it is sealed."""
    return list(THRESHOLD.reveal(part_of(state).part, part_of(state).commitments))


def announced(message: bytes, stage: str, rank: int, scope: Any = SCOPE) -> bytes:
    return broadcast.announced(message, stage, IDS[rank].public, scope)


# --- what all have in the end ---


def test_a_majority_opens_a_sum() -> None:
    assert len({epoch.scheme_public for epoch in shared()}) == 1
    adder: Any = ThresholdCkks().adder(SIZE, public=shared()[0].scheme_public)
    vectors = np.arange(-30, 30, dtype=np.int32).reshape(2, 30)
    total: Any = None
    for epoch, values in zip(shared(), vectors, strict=False):
        plain = Plain(values, np.empty(0, np.int64))
        total = adder.add(total, adder.sealer(secrets_of(epoch)).encrypt(plain, SLOT))
    partials = {epoch.rank: adder.partial(secrets_of(epoch), total) for epoch in shared()}
    released = {rank: data for rank, data in partials.items() if data}
    opener = adder.opener(secrets_of(shared()[3]), released)
    assert opener.decrypt(total).tolist() == vectors.sum(axis=0).tolist()
    # Two noises on one c1 could be averaged.
    assert adder.partial(secrets_of(shared()[0]), total) == partials[0]
    with pytest.raises(QuorumError, match="2 senders, 3 open a sum"):
        partial_of(adder, shared()[0], total)


def test_asked_twice_a_member_tells_the_same() -> None:
    """Sealed under another nonce."""
    first, message = pair()
    again, other = key_pair.make(IDS[0], first, PAILLIER)
    assert again == first
    assert other != message
    assert take(1, other) == take(1, message)
    assert take(1, message).scheme_public == key_pair.announced(message, IDS[0].public, SCOPE)
    total = sum(own_of(state) for state in joints()[0])
    assert np.array_equal(key_of(add(2)[0]).total, total)
    states, sent = joints()
    state, other = joint.share(IDS[1], states[1], ESAFL)
    assert state == states[1]
    assert other != sent[1]
    assert np.array_equal(plain_of(other), plain_of(sent[1]))
    states, boxes = revealed()
    assert shared_key.commit(IDS[1], states[1], THRESHOLD)[0] == states[1]
    told, others = shared_key.reveal(IDS[1], states[1], commits()[1], THRESHOLD)
    assert told == states[1]
    assert others != boxes[1]
    ended = shared()[0]
    assert shared_key.finish(IDS[0], ended, [], THRESHOLD)[0] == ended


# --- what the relay and colluders learn ---


def test_the_sum_of_what_is_sent_is_the_sum_of_keys_and_no_part_of_it_is() -> None:
    """Nor is the difference of two agreements: keys and pair keys are fresh."""
    lanes = [plain_of(message) for message in joints()[1]]
    for size in range(1, SIZE):
        for ranks in itertools.combinations(range(SIZE), size):
            part = np.sum([lanes[r] for r in ranks], axis=0, dtype=np.uint32)
            assert small(part) < 0.01, ranks
    assert small(lanes[0] - plain_of(joints(1)[1][0], 1)) < 0.01


def test_all_but_two_learn_the_sum_of_those_two_only() -> None:
    """Colluders take off every mask that they know: between the two others one is left."""
    states, sent = joints()
    lanes = [plain_of(message).copy() for message in sent[:2]]
    for rank, colluder in itertools.product((0, 1), (2, 3)):
        lanes[rank] -= joint._mask(EPOCHS[0], states[colluder].pair_keys[rank], N)
    both = (lanes[0] + lanes[1]).view(np.int32)
    assert np.array_equal(both, own_of(states[0]) + own_of(states[1]))
    assert max(map(small, lanes)) < 0.01


# --- what a server or a member may try ---


def first_pair(payload: bytes | None = None, **changes: Any) -> bytes:
    """The KEY-PAIR with other header fields or another payload, signed by its maker."""
    return resigned(IDS[0], pair()[1], payload, **changes)


def paired(*fields: bytes) -> bytes:
    """A KEY-PAIR of these fields, of which "" stands for the own one."""
    public, box = loads(opened(pair()[1]).payload, 1 << 20, "x")
    return first_pair(dumps([{b"public": public, b"box": box}.get(one, one) for one in fields]))


def added(message: bytes, rank: int = 3) -> object:
    """To be refused by rank 0: the JOINTs with another one of a member."""
    sent = joints()[1]
    return add(0, [*sent[:rank], message, *sent[rank + 1 :]])


def masked(lanes: Any, of: int = 3) -> bytes:
    """The JOINT of a member with another v_i."""
    message = joints()[1][of]
    box = seal_to(EPOCHS[0].group_key, opened(message).header, np.asarray(lanes, "<u4").tobytes())
    return resigned(IDS[of], message, box)


def shifted(by: int) -> bytes:
    """The JOINT of the last member with one lane changed."""
    lanes = plain_of(joints()[1][3]).copy()
    lanes[0] += np.uint32(by)
    return masked(lanes)


def committed(by: int) -> object:
    """To be refused by rank 0: another commitment of a member."""
    sent = commits()[1]
    other = resigned(IDS[by], sent[by], broadcast.Digest(bytes(32)).to_bytes())
    return reveal([*sent[:by], other, *sent[by + 1 :]])


def boxed(box: bytes) -> bytes:
    """The KEY-REVEAL of the last member for rank 0, with something else in it."""
    header = opened(inbox(0)[2]).header
    return resigned(IDS[3], inbox(0)[2], seal_to(EPOCHS[3].pair_keys[0], header, box))


def finished(message: bytes) -> object:
    """To be refused by rank 0: the KEY-REVEALs with another one of the last member."""
    return finish(0, [*inbox(0)[:2], message])


def public_of_another() -> bytes:
    return SecretKey.generate(2048).public.to_bytes()


def second_pair() -> object:
    _, other = key_pair.make(IDS[0], EPOCHS[0], PAILLIER)
    return key_pair.take(take(1, pair()[1]), other, PAILLIER)


def in_another_ring() -> object:
    wider = Esafl(ring="rns-8192", keys="joint").adder(SIZE)
    return joint.add(IDS[0], joints()[0][0], joints()[1], wider)


Attack = tuple[str, Callable[[], object]]
"""What the error says, and what is tried."""
ATTACKS: list[Attack] = [
    ("run_id is", lambda: take(1, first_pair(run_id=RUN + 1))),
    ("stage is", lambda: take(1, first_pair(stage="update"))),
    ("policy_hash is", lambda: take(1, first_pair(policy_hash=bytes(32)))),
    ("KEY-PAIR: field box is missing", lambda: take(1, paired(b"public"))),
    ("KEY-PAIR: field public must be", lambda: take(1, paired(b"", b"box"))),
    ("KEY-PAIR: 1 unknown", lambda: take(1, paired(b"public", b"box", b"box"))),
    ("to the public one", lambda: take(1, paired(public_of_another(), b"box"))),
    ("the terms say 3072", lambda: take(1, pair()[1], BatchCrypt(key_bits=3072).adder(3, 16))),
    ("has none", lambda: take(1, pair()[1], Flashe().adder(3))),
    ("lowest rank", lambda: key_pair.make(IDS[1], EPOCHS[1], PAILLIER)),
    ("a second key pair", second_pair),
    ("3 JOINT messages, all 4", lambda: add(0, joints()[1][:-1])),
    ("8 JOINT messages", lambda: add(0, joints()[1] * 2)),
    ("two JOINT messages by", lambda: added(joints()[1][2])),
    ("policy_hash is", lambda: added(resigned(IDS[3], joints()[1][3], policy_hash=bytes(32)))),
    ("has another length", lambda: added(masked(plain_of(joints()[1][3])[:-1]))),
    ("beyond 9 sigma sqrt", lambda: added(shifted(10_000))),
    ("beyond 9 sigma sqrt", lambda: added(masked([0] * N))),  # the others' masks do not go away
    ("own JOINT was changed", lambda: added(masked(plain_of(joints()[1][2]), 0), 0)),
    ("a second sum", lambda: joint.add(IDS[0], add(0)[0], [*joints()[1][:3], shifted(1)], ESAFL)),
    ("the sum of keys is known", lambda: joint.share(IDS[0], add(0)[0], ESAFL)),
    ("another ring", in_another_ring),
    ("keys were drawn", lambda: joint.take(IDS[0], joints()[0][0], key_of(add(0)[0]), ESAFL)),
    ("other commitments than before", lambda: committed(3)),
    ("two KEY-REVEAL messages by", lambda: finished(resigned(IDS[0], inbox(0)[2], b"x"))),
    ("receiver is", lambda: finished(inbox(1)[2])),
    ("not the one that it committed", lambda: finished(boxed(shown(revealed(1)[0][3])[0]))),
    ("the key is known", lambda: shared_key.commit(IDS[0], shared()[0], THRESHOLD)),
    ("no part", lambda: shared_key.reveal(IDS[0], EPOCHS[0], commits()[1], THRESHOLD)),
    ("no part", lambda: shared_key.finish(IDS[0], EPOCHS[0], inbox(0), THRESHOLD)),
    ("was revealed", lambda: shared_key.finish(IDS[0], commits()[0][0], inbox(0), THRESHOLD)),
]
FORGED: list[Attack] = [
    (
        "does not decrypt",
        lambda: added(resigned(IDS[3], joints()[1][3], opened(joints()[1][2]).payload)),
    ),
    ("own KEY-COMMIT", lambda: committed(0)),
    ("does not decrypt", lambda: finished(resigned(IDS[3], inbox(0)[1]))),
]


@pytest.mark.parametrize(("says", "attempt"), [*ATTACKS, *FORGED])
def test_what_a_server_or_a_member_may_try(says: str, attempt: Callable[[], object]) -> None:
    error = AuthenticationError if (says, attempt) in FORGED else ProtocolError
    with pytest.raises(error, match=says):
        attempt()


def test_a_pair_that_does_not_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the maker itself has sealed the two."""
    swapped = public_of_another(), SecretKey.generate(2048).to_bytes()
    monkeypatch.setattr(type(PAILLIER), "new_pair", lambda *_: swapped)
    _, message = key_pair.make(IDS[0], EPOCHS[0], PAILLIER)
    with pytest.raises(ProtocolError, match="does not belong to the public one"):
        take(1, message)


def test_members_that_were_told_different_shares_name_different_sums() -> None:
    """A member that conspires with the server: no two of the others may take it for one epoch."""
    left, right = add(0)[1], add(1, [*joints()[1][:3], shifted(1)])[1]
    names = [announced(message, joint.SUM, rank) for rank, message in enumerate((left, right))]
    keys = [EsaflAdder(Esafl(keys="joint"), SIZE, key_id=n).parameters()["key_id"] for n in names]
    assert len(set(keys)) == 2  # so their slots differ, and nobody adds their ciphertexts
    other = shared_key.finish(
        IDS[0], revealed(1)[0][0], [m[0] for m in revealed(1)[1][1:]], THRESHOLD
    )
    names = [shared()[0].scheme_public, other[0].scheme_public]
    assert [ThresholdCkks().adder(SIZE, public=n).parameters()["key"] for n in names] == names
    assert len(set(names)) == 2


def test_keys_that_were_dealt_take_no_joint() -> None:
    agreed, owns = exchange(9).epochs, [draw_own(N) for _ in range(SIZE)]
    total = np.sum(owns, axis=0, dtype=np.int32)
    epochs = [
        joint.take(identity, epoch, JointKey(own, total), ESAFL)[0]
        for identity, epoch, own in zip(IDS, agreed, owns, strict=True)
    ]
    assert len({epoch.scheme_public for epoch in epochs}) == 1
    assert np.array_equal(key_of(epochs[2]).own, owns[2])
    ternary = np.zeros(N, np.int8)
    ternary[:64] = 1
    with pytest.raises(ProtocolError, match="too small, too few or too large"):
        joint.take(IDS[0], agreed[0], JointKey(ternary, total), ESAFL)


def test_so_many_that_collude_could_open_alone() -> None:
    seven = agreement.sites(7)
    agreed = agreement.agreed(seven, RUN, 0, agreement.roster_of(seven, 4))[0]
    adder: Any = ThresholdCkks().adder(7)
    with pytest.raises(ProtocolError, match="4 members open a sum together, and in this roster"):
        shared_key.commit(seven[0], agreed, adder)
    higher: Any = ThresholdCkks(threshold=6).adder(7)
    assert shared_key.commit(seven[0], agreed, higher)


def test_what_a_relay_reads_is_signed_by_its_sender() -> None:
    message = shared_name(0)
    assert announced(message, shared_key.SHARED, 0) == shared()[0].scheme_public
    short = resigned(IDS[0], message, dumps([bytes(31)]))
    for told, stage, rank, says in (
        (message, shared_key.COMMIT, 0, "stage"),
        (message, shared_key.SHARED, 1, "not a member"),
        (joint_sum(0), joint.SUM, 0, "not a member"),
        (short, shared_key.SHARED, 0, "32 bytes"),
    ):
        with pytest.raises(ProtocolError, match=says):
            announced(told, stage, rank)
    for at, wrong in enumerate((RUN + 1, 1, bytes(16), bytes(32))):
        with pytest.raises(ProtocolError, match="it belongs to another exchange"):
            announced(message, shared_key.SHARED, 0, (*SCOPE[:at], wrong, *SCOPE[at + 1 :]))
