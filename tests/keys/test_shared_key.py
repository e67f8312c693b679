"""A key that nobody has, against a server that carries what it likes and members that lie."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.errors import AuthenticationError, FlheError, ProtocolError, QuorumError
from flhe.keys.agreement import broadcast, shared_key
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope
from flhe.keys.agreement.pairs import seal_to
from flhe.keys.roles import partial_of, secrets_of
from flhe.schemes.sealed import Sealed
from flhe.wire.canonical import dumps
from flhe_lab.variants.threshold.keys import ThresholdKey
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.fuzz.group import CONTRACT, IDS, RUN, SIZE, exchange
from tests.fuzz.signed import THRESHOLD as ADDER
from tests.fuzz.signed import commits, revealed
from tests.keys import agreement
from tests.laws import SLOT

NONE = np.empty(0, np.int64)


class Made:
    """One agreement up to the KEY-REVEALs."""

    def __init__(self, number: int) -> None:
        self.states, self.boxes = revealed(number)
        self.epoch = exchange(number).epochs[0]
        self.commits = commits(number)[1]

    def inbox(self, rank: int) -> list[bytes]:
        return [sent[rank - (rank > by)] for by, sent in enumerate(self.boxes) if by != rank]

    def finish(self, rank: int, inbox: list[bytes] | None = None) -> tuple[Epoch, bytes]:
        told = self.inbox(rank) if inbox is None else inbox
        return shared_key.finish(IDS[rank], self.states[rank], told, ADDER)


once, other = functools.partial(Made, 0), functools.partial(Made, 1)


@functools.cache
def epochs() -> list[Epoch]:
    return [once().finish(rank)[0] for rank in range(SIZE)]


def sums(epochs: list[Epoch]) -> tuple[Any, Sealed, Any]:
    """Two members' vectors added up: the adder, the sum, and what it must open to."""
    adder: Any = ThresholdCkks().adder(SIZE, public=epochs[0].scheme_public)
    vectors = np.arange(-30, 30, dtype=np.int32).reshape(2, 30)
    total = None
    for epoch, values in zip(epochs, vectors, strict=False):
        part = adder.sealer(secrets_of(epoch)).encrypt(Plain(values, NONE), SLOT)
        total = adder.add(total, part)
    return adder, total, vectors.sum(axis=0)


def test_a_majority_opens_a_sum() -> None:
    assert len({epoch.scheme_public for epoch in epochs()}) == 1
    adder, total, expected = sums(epochs())
    partials = {epoch.rank: adder.partial(secrets_of(epoch), total) for epoch in epochs()}
    released = {rank: data for rank, data in partials.items() if data}
    opener = adder.opener(secrets_of(epochs()[3]), released)
    assert opener.decrypt(total).tolist() == expected.tolist()
    with pytest.raises(QuorumError, match="2 senders, 3 open a sum"):
        partial_of(adder, epochs()[0], total)


def test_asked_twice_a_member_tells_the_same() -> None:
    """And where only c0 differs, which is free to choose: two noises on one c1 could be averaged."""
    adder, total, _ = sums(epochs())
    mine = secrets_of(epochs()[0])
    assert adder.partial(mine, total) == adder.partial(mine, total)
    state = once().states[1]
    again, _ = shared_key.commit(IDS[1], state, ADDER)
    assert again == state
    told, boxes = shared_key.reveal(IDS[1], state, once().commits, ADDER)
    assert told == state
    assert boxes != once().boxes[1]
    ended, _ = once().finish(0)
    assert shared_key.finish(IDS[0], ended, [], ADDER)[0] == ended


def test_the_relay_sees_no_share() -> None:
    wire = b"".join(itertools.chain(once().commits, *once().boxes, [once().finish(0)[1]]))
    for epoch in epochs():
        share = ThresholdKey.from_bytes(epoch.scheme_secret).share.tobytes()
        for at in range(0, len(share), 19_997):
            assert share[at : at + 16] not in wire
    for state in once().states:
        drawn = shared_key._Part.from_bytes(state.scheme_secret).part
        for box in ADDER.reveal(
            drawn, shared_key._Part.from_bytes(state.scheme_secret).commitments
        ):
            assert box[-24:] not in wire


def changed(message: bytes, by: int, **header: Any) -> bytes:
    """A message with another header, signed by its own sender."""
    envelope = Envelope.from_bytes(message, shared_key.MAX_BOX)
    whole = dataclasses.replace(envelope.header, **header)
    return Envelope.seal(IDS[by], whole, envelope.payload).to_bytes()


def reboxed(by: int, to: int, box: bytes) -> bytes:
    """A KEY-REVEAL with something else in it."""
    header = shared_key._addressed(once().epoch, by, to)
    payload = seal_to(once().states[by].pair_keys[to], header, box)
    return Envelope.seal(IDS[by], header, payload).to_bytes()


def shown(by: int, to: int, made: Made | None = None) -> bytes:
    """What a member has for another, before it is sealed."""
    part = shared_key._Part.from_bytes((made or once()).states[by].scheme_secret)
    boxes: list[bytes] = list(ADDER.reveal(part.part, part.commitments))
    return boxes[to]


def last(message: Callable[[], bytes]) -> Callable[[], list[bytes]]:
    """Rank 0's inbox, with another message of rank 3."""
    return lambda: [*once().inbox(0)[:2], message()]


def _own() -> bytes:
    """A message by rank 0 to itself."""
    header = shared_key._addressed(once().epoch, 0, 0)
    return Envelope.seal(IDS[0], header, b"x").to_bytes()


REVEALED: dict[str, tuple[Callable[[], list[bytes]], type[FlheError], str]] = {
    "an own one": (last(_own), ProtocolError, "two KEY-REVEAL messages by"),
    "for another member": (last(lambda: once().inbox(1)[2]), ProtocolError, "receiver"),
    "another's box": (
        last(lambda: changed(once().inbox(0)[1], 3, sender=IDS[3].public)),
        AuthenticationError,
        "does not decrypt",
    ),
    "another public part": (
        last(lambda: reboxed(3, 0, shown(3, 0, other()))),
        ProtocolError,
        "not the one that it committed to",
    ),
}


@pytest.mark.parametrize("name", REVEALED)
def test_what_may_not_be_revealed(name: str) -> None:
    inbox, error, says = REVEALED[name]
    with pytest.raises(error, match=says):
        once().finish(0, inbox())


COMMITTED: dict[str, tuple[Callable[[], list[bytes]], type[FlheError], str]] = {
    "the own one changed": (
        lambda: [_forged(0, bytes(32)), *once().commits[1:]],
        AuthenticationError,
        "own KEY-COMMIT",
    ),
    "another than before": (
        lambda: [*once().commits[:3], _forged(3, bytes(32))],
        ProtocolError,
        "other commitments than before",
    ),
}


def _forged(by: int, value: bytes) -> bytes:
    """A KEY-COMMIT to something else, signed by its member."""
    header = Envelope.from_bytes(once().commits[by], 1024).header
    return Envelope.seal(IDS[by], header, broadcast.Digest(value).to_bytes()).to_bytes()


@pytest.mark.parametrize("name", COMMITTED)
def test_what_may_not_be_committed_to(name: str) -> None:
    messages, error, says = COMMITTED[name]
    with pytest.raises(error, match=says):
        shared_key.reveal(IDS[0], once().states[0], messages(), ADDER)


def test_steps_out_of_order() -> None:
    agreed = exchange(3).epochs[0]
    with pytest.raises(ProtocolError, match="no part of a key was drawn"):
        shared_key.reveal(IDS[0], agreed, once().commits, ADDER)
    with pytest.raises(ProtocolError, match="no part of a key was drawn"):
        shared_key.finish(IDS[0], agreed, once().inbox(0), ADDER)
    begun, _ = shared_key.commit(IDS[0], agreed, ADDER)
    with pytest.raises(ProtocolError, match="nothing was revealed"):
        shared_key.finish(IDS[0], begun, once().inbox(0), ADDER)
    ended, _ = once().finish(0)
    with pytest.raises(ProtocolError, match="the key is known"):
        shared_key.commit(IDS[0], ended, ADDER)


def test_so_many_that_collude_could_open_alone() -> None:
    seven = agreement.sites(7)
    agreed = agreement.agreed(seven, RUN, 0, agreement.roster_of(seven, 4))[0]
    adder: Any = ThresholdCkks().adder(7)
    with pytest.raises(ProtocolError, match="4 members open a sum together, and this roster"):
        shared_key.commit(seven[0], agreed, adder)
    higher: Any = ThresholdCkks(threshold=5).adder(7)
    assert shared_key.commit(seven[0], agreed, higher)


def test_members_with_different_keys_have_different_names_of_them() -> None:
    """A server that shows another commitment to one of them: no two ciphertexts add up."""
    names = {other().finish(0)[0].scheme_public, once().finish(0)[0].scheme_public}
    assert len(names) == 2
    keys = {ThresholdCkks().adder(SIZE, public=name).parameters()["key"] for name in names}
    assert keys == names


def test_what_a_relay_reads_is_signed_by_its_sender() -> None:
    _, message = once().finish(0)
    stage, sender, scope = shared_key.SHARED, IDS[0], (RUN, 0, once().epoch.id, CONTRACT)
    announced = broadcast.announced(message, stage, sender.public, scope)
    assert announced == epochs()[0].scheme_public
    with pytest.raises(ProtocolError, match="stage"):
        broadcast.announced(message, shared_key.COMMIT, sender.public, scope)
    with pytest.raises(FlheError):
        broadcast.announced(message, stage, IDS[1].public, scope)
    for at, wrong in enumerate((RUN + 1, 1, bytes(16), bytes(32))):
        elsewhere: Any = (*scope[:at], wrong, *scope[at + 1 :])
        with pytest.raises(FlheError):
            broadcast.announced(message, stage, sender.public, elsewhere)
    header = Envelope.from_bytes(message, MAX_MESSAGE).header
    short = Envelope.seal(sender, header, dumps([bytes(31)])).to_bytes()
    with pytest.raises(ProtocolError, match="32 bytes"):
        broadcast.announced(short, stage, sender.public, scope)
