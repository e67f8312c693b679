"""Masking-key agreement: exact sums from any t answers, what each step refuses, what shares say."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random as plain_random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.errors import (
    AuthenticationError,
    FlheError,
    ProtocolError,
    QuorumError,
    RangeError,
)
from flhe.keys.agreement import masking
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.masking import CONSIST, UNMASK, Agreed, Circle, Dealt
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.math.shamir import Shamir
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps, loads
from flhe.wire.derive import hkdf
from tests.keys.make_masking_vectors import FILE, contents
from tests.keys.masking import group

Q = 2**64 - 2**32 + 1
SMALL = [(n, c) for n in range(3, 9) for c in sorted({0, (n - 1) // 3})]
"""(members, colluders)."""


def slot_for(epoch: Epoch, **changes: Any) -> Slot:
    fields: dict[str, Any] = {
        "run_id": epoch.run_id,
        "roster_hash": epoch.roster.hash,
        "epoch": epoch.id,
        "round": 3,
        "attempt": 1,
        "layout_hash": bytes(32),
        "history": bytes([7]) * 32,
    }
    return Slot(**{**fields, **changes})


def seed_of(number: int, elements: int) -> NDArray[np.uint64]:
    """Elements all over the field, the greatest and the least among them."""
    drawn = plain_random.Random(number)  # test data; seeds never come from here
    values = [drawn.randrange(Q) for _ in range(elements)]
    values[0] = (Q - 1, 0, values[0])[number % 3]
    return np.array(values, np.uint64)


@dataclass
class Told:
    """A round in which all have dealt, and some have signed one set of survivors."""

    identities: tuple[Identity, ...]
    epochs: tuple[Epoch, ...]
    circle: Circle
    slot: Slot
    seeds: list[NDArray[np.uint64]]
    dealt: list[Dealt]
    survivors: tuple[int, ...]
    agreed: dict[int, Agreed]
    signatures: dict[int, bytes]

    @property
    def threshold(self) -> int:
        return self.circle.thresholds.threshold

    @property
    def elements(self) -> int:
        return self.circle.elements

    def inbox(self, rank: int, survivors: Iterable[int] | None = None) -> list[bytes]:
        ranks = self.survivors if survivors is None else survivors
        return [self.dealt[u].boxes[rank] for u in ranks]

    def agree(
        self, rank: int, survivors: Sequence[int], boxes: Sequence[bytes]
    ) -> tuple[Agreed, bytes]:
        return masking.agree(
            self.epochs[rank],
            self.identities[rank],
            self.dealt[rank],
            survivors,
            boxes,
            self.elements,
        )

    def release(
        self,
        rank: int,
        signers: Sequence[int] | None = None,
        signatures: Sequence[bytes] | None = None,
        *,
        sealed: bool = False,
        **more: Any,
    ) -> bytes:
        if signers is None:
            signers = sorted(self.signatures)[: self.threshold]
        if signatures is None:
            signatures = [self.signatures[s] for s in signers]
        return masking.release(
            self.epochs[rank],
            self.identities[rank],
            self.agreed[rank],
            signers,
            signatures,
            self.elements,
            sealed=sealed,
            **more,
        )

    def combine(self, answers: Sequence[bytes], epoch: Epoch | None = None) -> list[int]:
        found = masking.combine(self.circle, self.slot, self.survivors, answers, epoch=epoch)
        assert found.dtype == np.uint64
        assert found.shape == (self.elements,)
        return [int(x) for x in found]

    def total(self) -> list[int]:
        """The sum of the survivors' seeds, by Python's integers."""
        columns = zip(*(self.seeds[u].tolist() for u in self.survivors), strict=True)
        return [sum(column) % Q for column in columns]

    def statement(
        self,
        rank: int,
        survivors: Sequence[int] | None = None,
        *,
        stage: str = CONSIST,
        slot: Slot | None = None,
        about: bytes = b"",
        by: int | None = None,
    ) -> bytes:
        """What a member would sign elsewhere."""
        header = self.circle.header(slot or self.slot, stage, rank, about)
        said = masking.statement(self.survivors if survivors is None else survivors)
        signer = self.identities[rank if by is None else by]
        return Envelope.seal(signer, replace(header, sender=signer.public), said).signature

    def answer(
        self,
        rank: int,
        payload: bytes,
        *,
        stage: str = UNMASK,
        slot: Slot | None = None,
        survivors: Sequence[int] | None = None,
        by: int | None = None,
    ) -> bytes:
        """An answer that the member itself signed, whatever is in it."""
        said = masking.statement(self.survivors if survivors is None else survivors)
        about = hashlib.sha256(said).digest()
        signer = self.identities[rank if by is None else by]
        header = self.circle.header(slot or self.slot, stage, rank, about)
        header = replace(header, sender=signer.public)
        return dumps([rank, payload, Envelope.seal(signer, header, payload).signature])


def play(
    size: int,
    collusion: int,
    survivors: Collection[int] | None = None,
    agreeing: Collection[int] | None = None,
    *,
    elements: int = 5,
    **changes: Any,
) -> Told:
    """Deal and agree, every state by way of its bytes."""
    identities, epochs = group(size, collusion)
    chosen = tuple(sorted(range(size) if survivors is None else survivors))
    slot = slot_for(epochs[0], **changes)
    seeds = [seed_of(1000 * size + rank, elements) for rank in range(size)]
    dealt = []
    for rank in range(size):
        if rank in chosen:
            made = masking.deal(epochs[rank], slot, seeds[rank])
            assert Dealt.from_bytes(made.to_bytes()) == made
            dealt.append(made)
        else:
            dealt.append(Dealt(slot, (b"",) * size, b""))
    circle = Circle.of(epochs[0], elements)
    told = Told(identities, epochs, circle, slot, seeds, dealt, chosen, {}, {})
    for rank in chosen if agreeing is None else agreeing:
        agreed, told.signatures[rank] = told.agree(rank, chosen, told.inbox(rank))
        assert Agreed.from_bytes(agreed.to_bytes()) == agreed
        told.agreed[rank] = agreed
    return told


@functools.cache
def six() -> Told:
    """Six members, one of whom may collude: t is 4, and rank 2 has dropped out. Not to be changed."""
    return play(6, 1, (0, 1, 3, 4, 5))


# --- the sum, from whoever answers ---


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("size", "collusion"), SMALL)
def test_any_t_answers_give_the_sum_and_fewer_give_none(
    size: int, collusion: int, sealed: bool
) -> None:
    least = Circle.of(group(size, collusion)[1][0], 5).thresholds.min_set
    for chosen in {tuple(range(size)), tuple(range(size - least, size))}:
        told = play(size, collusion, chosen)
        answers = {rank: told.release(rank, sealed=sealed) for rank in chosen}
        reader = told.epochs[0] if sealed else None
        for count in range(len(chosen) + 1):
            for ranks in itertools.combinations(chosen, count):
                given_ = [answers[rank] for rank in ranks[::-1]]
                if count >= told.threshold:
                    assert told.combine(given_, reader) == told.total()
                else:
                    with pytest.raises(QuorumError, match=f"^{count} answers to unmask"):
                        told.combine(given_, reader)


@pytest.mark.parametrize("size", range(65, 71))
def test_where_a_polynomial_shares_several_elements(size: int) -> None:
    collusion = (size - 1) // 3
    told = packed(size, collusion)
    t = told.threshold
    sharing = told.circle.sharing
    assert (sharing.threshold, sharing.privacy, sharing.packing) == (t, collusion, t - collusion)
    answers = {rank: told.release(rank) for rank in told.agreed}
    drawn = plain_random.Random(size)
    for count in (t, t, t, len(answers)):
        ranks = drawn.sample(sorted(answers), count)
        assert told.combine([answers[rank] for rank in ranks]) == told.total()
    with pytest.raises(QuorumError):
        told.combine([answers[rank] for rank in drawn.sample(sorted(answers), t - 1)])


def packed(size: int, collusion: int) -> Told:
    """A large group; t + 2 of the survivors go on after the update."""
    chosen = set(range(size)) - {1, size // 2}
    t = (size + collusion) // 2 + 1
    return play(size, collusion, chosen, sorted(chosen)[-t - 2 :], elements=50)


def test_two_hundred_members_and_a_real_seed() -> None:
    size, collusion = 200, 66
    t = 134
    chosen = range(10, size)
    told = play(size, collusion, chosen, range(size - t, size), elements=2048)
    assert told.threshold == t
    assert told.circle.share_bytes == 8 * -(-2048 // (t - collusion))
    assert {len(b) for u in chosen for b in told.dealt[u].boxes if b} == {told.circle.box_bytes}
    answers = [told.release(rank) for rank in (*range(66, 70), *range(100, 110))]
    with pytest.raises(QuorumError, match=f"^14 answers to unmask, {t} are needed"):
        told.combine(answers)
    answers = [told.answer(rank, bytes(told.agreed[rank].share)) for rank in told.agreed]
    assert told.release(66) == answers[0]
    assert told.combine(answers) == told.total()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_whoever_survives_signs_and_answers(data: st.DataObject) -> None:
    size = data.draw(st.integers(3, 9))
    collusion = data.draw(st.integers(0, size - 3))
    ranks = st.sampled_from(range(size))
    least = Circle.of(group(size, collusion)[1][0], 1).thresholds.min_set
    chosen = data.draw(st.lists(ranks, min_size=least, unique=True))
    told = play(size, collusion, chosen, elements=data.draw(st.integers(1, 20)))
    some = st.lists(st.sampled_from(chosen), min_size=told.threshold, unique=True)
    sealed = data.draw(st.booleans())
    answers = [told.release(rank, data.draw(some), sealed=sealed) for rank in data.draw(some)]
    reader = told.epochs[data.draw(ranks)] if sealed else None
    assert told.combine(masking.unpack(masking.pack(answers)), reader) == told.total()


def test_the_same_answer_for_the_same_set() -> None:
    """What is asked again is answered again; only the box around a sealed answer is another one."""
    told = six()
    again, signature = told.agree(0, told.survivors, told.inbox(0))
    assert (again, signature) == (told.agreed[0], told.signatures[0])
    assert told.release(0) == told.release(0, [5, 4, 3, 1])
    assert told.release(0, sealed=True) != told.release(0, sealed=True)


# --- CONSIST: what no member signs ---


@pytest.mark.parametrize(
    ("survivors", "error", "text"),
    [
        ((0, 1, 3, 3, 4, 5), ProtocolError, "one is there twice"),
        ((1, 0, 3, 4, 5), ProtocolError, "do not ascend"),
        ((5, 4, 3, 1, 0), ProtocolError, "do not ascend"),
        ((1, 3, 4, 5), ProtocolError, "not in the sum"),
        ((0, 1, 3), QuorumError, "^3 survivors of 6 members, 4 are needed"),
        ((0,), QuorumError, "^1 survivors"),
        ((), QuorumError, "^0 survivors"),
        ((0, 1, 3, 4, 6), ProtocolError, "not all members"),
        ((-1, 0, 1, 3, 4), ProtocolError, "not all members"),
        ((0, 1, 3, 4, 1 << 70), ProtocolError, "not all members"),
        ((0, True, 3, 4, 5), ProtocolError, "not all members"),
        ((0, 1.0, 3, 4, 5), ProtocolError, "not all members"),
        ((0, "1", 3, 4, 5), ProtocolError, "not all members"),
    ],
)
def test_a_set_that_nobody_signs(survivors: Any, error: type[FlheError], text: str) -> None:
    told = six()
    boxes = [told.dealt[0].boxes[1]] * len(survivors)
    with pytest.raises(error, match=text) as caught:
        told.agree(0, survivors, boxes)
    assert type(caught.value) is error


def test_a_set_is_never_smaller_than_the_colluders_and_two() -> None:
    """Of five members with three that may collude t is five; of three with none two are enough."""
    for size, collusion in itertools.product(range(3, 9), range(6)):
        if collusion > size - 3:
            continue
        circle = Circle.of(group(size, collusion)[1][0], 1)
        t = (size + collusion) // 2 + 1
        assert circle.thresholds.threshold == t
        assert 2 * t > size + collusion
        need = max(t, collusion + 2)
        circle.check_set(range(need))
        with pytest.raises(QuorumError):
            circle.check_set(range(need - 1))


def test_a_roster_may_ask_for_more_survivors() -> None:
    told = six()
    roster = replace(told.epochs[0].roster, min_survivors=6)
    assert isinstance(roster, Roster)
    epoch = replace(told.epochs[0], roster=roster)
    dealt = masking.deal(epoch, told.slot, told.seeds[0])
    with pytest.raises(QuorumError, match="5 survivors, this roster opens no sum of fewer than 6"):
        masking.agree(epoch, told.identities[0], dealt, told.survivors, told.inbox(0), 5)


@pytest.mark.parametrize("count", [0, 4, 6])
def test_boxes_that_are_not_one_each(count: int) -> None:
    told = six()
    with pytest.raises(ProtocolError, match=f"^{count} shares for 5 survivors"):
        told.agree(0, told.survivors, (told.inbox(0) * 2)[:count])


FOREIGN: dict[str, Any] = {
    "run_id": 5,
    "roster_hash": bytes([1]) * 32,
    "epoch": bytes([1]) * 16,
    "round": 4,
    "attempt": 2,
    "layout_hash": bytes([1]) * 32,
    "history": bytes([1]) * 32,
}


def refuse_box(told: Told, boxes: dict[int, bytes], text: str) -> None:
    inbox = [boxes.get(u, told.dealt[u].boxes[0]) for u in told.survivors]
    with pytest.raises(AuthenticationError, match=text):
        told.agree(0, told.survivors, inbox)
    told.agree(0, told.survivors, told.inbox(0))  # it was the box, and nothing else


def moved(told: Told, **slot: Any) -> bytes:
    """The box of rank 3 for rank 0, of another slot."""
    elsewhere = replace(told.slot, **slot)
    return masking.deal(told.epochs[3], elsewhere, told.seeds[3]).boxes[0]


def of_another_key(told: Told) -> bytes:
    keys = (bytes([9]) * 32, *told.epochs[3].pair_keys[1:])
    epoch = replace(told.epochs[3], pair_keys=keys)
    return masking.deal(epoch, told.slot, told.seeds[3]).boxes[0]


def well_sealed(told: Told, share: bytes) -> bytes:
    """A box of rank 3 for rank 0 that opens, whatever is in it."""
    key = hkdf(told.epochs[3].pair_keys[0], "kshare", told.slot.digest(), 3, 0)
    return bytes(12) + ChaCha20Poly1305(key).encrypt(bytes(12), share, told.slot.digest())


BAD_BOXES: dict[str, Callable[[Told], bytes]] = {
    **{f"another {n}": lambda t, n=n: moved(t, **{n: FOREIGN[n]}) for n in FOREIGN},
    "for another receiver": lambda t: t.dealt[3].boxes[4],
    "by another sender": lambda t: t.dealt[4].boxes[0],
    "the own one, sent back": lambda t: t.dealt[0].boxes[3],
    "another pair key": of_another_key,
    **{
        f"a share of {len(share)} bytes, {share[:1]!r}": lambda t, s=share: well_sealed(t, s)
        for share in (b"", bytes(39), bytes(41), Q.to_bytes(8, "little") + bytes(32), b"\xff" * 40)
    },
}


@pytest.mark.parametrize("name", BAD_BOXES)
def test_a_box_that_is_not_this_rounds(name: str) -> None:
    """Its sender is named, and nothing signed."""
    told = six()
    refuse_box(told, {3: BAD_BOXES[name](told)}, "ranks 3 ")


def test_whose_boxes_do_not_open() -> None:
    told = six()
    refuse_box(told, {3: told.dealt[4].boxes[0], 4: told.dealt[3].boxes[0]}, "ranks 3, 4 ")
    refuse_box(told, dict.fromkeys(range(6), b""), "ranks 1, 3, 4, 5 ")
    well = well_sealed(told, bytes(40))
    told.agree(
        0, told.survivors, [well if u == 3 else told.dealt[u].boxes[0] for u in told.survivors]
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 4), st.data())
def test_a_box_that_was_changed(which: int, data: st.DataObject) -> None:
    told = six()
    sender = told.survivors[which]
    box = told.dealt[sender].boxes[0] or bytes(68)
    place = data.draw(st.integers(0, len(box) - 1))
    flipped = (
        box[:place] + bytes([box[place] ^ 1 << data.draw(st.integers(0, 7))]) + box[place + 1 :]
    )
    longer = box + data.draw(st.binary(min_size=1, max_size=9))
    for changed in (flipped, box[:place], longer):
        if sender == 0:  # the own share is never taken from the server
            inbox = [changed if u == 0 else told.dealt[u].boxes[0] for u in told.survivors]
            assert told.agree(0, told.survivors, inbox)[0] == told.agreed[0]
        else:
            refuse_box(told, {sender: changed}, f"ranks {sender} ")


def test_what_is_named_stays_short() -> None:
    told = play(12, 0, agreeing=())
    with pytest.raises(AuthenticationError, match="ranks 1, 2, 3, 4, 5, 6, 7, 8 do not open"):
        told.agree(0, told.survivors, [b""] * 12)


def test_seeds_that_are_none() -> None:
    told = six()
    with pytest.raises(RangeError):
        masking.deal(told.epochs[0], told.slot, np.array([1, Q], np.uint64))


# --- UNMASK: what no member answers to ---


def refuse_signatures(
    error: type[FlheError], text: str, signers: Sequence[Any], signatures: Sequence[bytes]
) -> None:
    """By the member that is asked, and by whoever else checks."""
    told = six()
    with pytest.raises(error, match=text) as caught:
        told.release(0, signers, signatures)
    assert type(caught.value) is error
    with pytest.raises(error, match=text):
        masking.check_agreement(told.circle, told.slot, told.survivors, signers, signatures)
    masking.check_agreement(
        told.circle,
        told.slot,
        told.survivors,
        [0, 1, 3, 4],
        [told.signatures[r] for r in (0, 1, 3, 4)],
    )


@pytest.mark.parametrize(
    ("signers", "shown", "error", "text"),
    [
        ((), (), QuorumError, "^0 members agree"),
        ((3, 4, 5), (3, 4, 5), QuorumError, "^3 members agree"),
        ((0, 1, 3, 3), (0, 1, 3, 3), ProtocolError, "repeated"),
        ((0, 1, 3, True), (0, 1, 3, 1), ProtocolError, "repeated"),
        ((0, 1, 3, 4), (0, 1, 3), ProtocolError, "without a signer"),
        ((0, 1, 3), (0, 1, 3, 4), ProtocolError, "without a signer"),
        ((0, 1, 3, 2), (0, 1, 3, 2), ProtocolError, "not among them"),  # dropped out
        ((0, 1, 3, 6), (0, 1, 3, 2), ProtocolError, "not among them"),  # no member
        ((0, 1, 3, -1), (0, 1, 3, 2), ProtocolError, "not among them"),
    ],
)
def test_signers_that_are_too_few_repeated_or_strangers(
    signers: Sequence[int], shown: Sequence[int], error: type[FlheError], text: str
) -> None:
    signatures = {**six().signatures, 2: six().statement(2)}
    refuse_signatures(error, text, signers, [signatures[rank] for rank in shown])


BAD_SIGNATURES: dict[str, Callable[[Told], bytes]] = {
    "another set": lambda t: t.statement(4, (0, 1, 2, 3, 4, 5)),
    "a smaller set": lambda t: t.statement(4, (0, 1, 3, 4)),
    "another stage": lambda t: t.statement(4, stage=UNMASK),
    "an update": lambda t: t.statement(4, stage="update"),
    "about something": lambda t: t.statement(4, about=bytes(32)),
    "another member's": lambda t: t.signatures[5],
    "by somebody else": lambda t: t.statement(4, by=5),
    "changed": lambda t: bytes([t.signatures[4][0] ^ 1]) + t.signatures[4][1:],
    "empty": lambda t: b"",
    "short": lambda t: t.signatures[4][:63],
    "long": lambda t: t.signatures[4] + b"\0",
    **{
        f"another {name}": lambda t, name=name: t.statement(
            4, slot=replace(t.slot, **{name: FOREIGN[name]})
        )
        for name in FOREIGN
    },
}


@pytest.mark.parametrize("name", BAD_SIGNATURES)
def test_a_signature_on_something_else(name: str) -> None:
    told = six()
    signatures = [*(told.signatures[r] for r in (0, 1, 3)), BAD_SIGNATURES[name](told)]
    refuse_signatures(AuthenticationError, "signature", [0, 1, 3, 4], signatures)


def test_one_bad_signature_is_not_outvoted() -> None:
    told = six()
    signatures = [*(told.signatures[r] for r in (0, 1, 3, 4)), told.statement(5, (0, 1, 3, 5))]
    refuse_signatures(AuthenticationError, "signature", [0, 1, 3, 4, 5], signatures)


def test_signatures_of_another_epochs_members_of_the_same_keys() -> None:
    told = six()
    other = replace(told.circle, number=told.circle.number + 1)
    assert other.header(told.slot, CONSIST, 4) != told.circle.header(told.slot, CONSIST, 4)
    said = masking.statement(told.survivors)
    header = other.header(told.slot, CONSIST, 4)
    late = Envelope.seal(told.identities[4], header, said).signature
    signatures = [*(told.signatures[r] for r in (0, 1, 3)), late]
    refuse_signatures(AuthenticationError, "signature", [0, 1, 3, 4], signatures)


def test_a_set_that_is_too_small_is_not_answered_even_where_it_was_signed() -> None:
    told = six()
    small = (0, 1, 3)
    with pytest.raises(QuorumError, match=r"^3 survivors"):
        masking.check_agreement(
            told.circle, told.slot, small, small, [told.statement(r, small) for r in small]
        )


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_salt_of_another_length(length: int) -> None:
    with pytest.raises(ProtocolError, match="a salt of another length"):
        six().release(0, sealed=True, random=lambda _: bytes(length))


# --- answers: what nobody combines ---


def refuse_answer(
    error: type[FlheError], text: str, answer: bytes, *, sealed: bool = False
) -> None:
    told = six()
    reader = told.epochs[0] if sealed else None
    with pytest.raises(error, match=text):
        masking.check_answer(told.circle, told.slot, told.survivors, answer, sealed=sealed)
    others = [told.release(rank, sealed=sealed) for rank in (1, 3, 4, 5)]
    with pytest.raises(error, match=text):
        told.combine([answer, *others], reader)
    assert told.combine(others, reader) == told.total()


@pytest.mark.parametrize("rank", [2, 6, (1 << 32) - 1])
def test_an_answer_by_who_is_no_survivor(rank: int) -> None:
    told = six()
    signed = loads(told.answer(2, bytes(40)), 1000, "")
    refuse_answer(ProtocolError, "by none of the survivors", dumps([rank, *signed[1:]]))


@pytest.mark.parametrize("length", [0, 8, 39, 41, 48, 88])
def test_a_share_of_another_length(length: int) -> None:
    refuse_answer(ProtocolError, f"{length} bytes, a share has 40", six().answer(0, bytes(length)))


def test_an_answer_that_is_long() -> None:
    refuse_answer(ProtocolError, "at most", dumps([0, bytes(2000), bytes(64)]))


BAD_ANSWERS: dict[str, Callable[[Told, bytes], bytes]] = {
    "of another set": lambda t, s: t.answer(0, s, survivors=(0, 1, 2, 3, 4, 5)),
    "of another stage": lambda t, s: t.answer(0, s, stage=CONSIST),
    "signed by another": lambda t, s: t.answer(0, s, by=1),
    "another's share": lambda t, s: dumps([0, *loads(t.answer(1, s), 1000, "")[1:]]),
    "unsigned": lambda t, s: dumps([0, s, bytes(64)]),
    "short signature": lambda t, s: dumps([0, s, bytes(63)]),
    "no signature": lambda t, s: dumps([0, s, b""]),
    **{
        f"another {name}": lambda t, s, name=name: t.answer(
            0, s, slot=replace(t.slot, **{name: FOREIGN[name]})
        )
        for name in FOREIGN
    },
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_answer_that_is_not_by_that_member_for_this_set(name: str) -> None:
    told = six()
    answer = BAD_ANSWERS[name](told, bytes(told.agreed[0].share))
    refuse_answer(AuthenticationError, "signature", answer)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_an_answer_that_was_changed(data: st.DataObject) -> None:
    told, sealed = six(), data.draw(st.booleans())
    answer = told.release(0, sealed=sealed)
    place = data.draw(st.integers(0, len(answer) - 1))
    bit = bytes([answer[place] ^ 1 << data.draw(st.integers(0, 7))])
    for changed in (answer[:place] + bit + answer[place + 1 :], answer[:place], answer + b"\0"):
        with pytest.raises(ProtocolError):
            masking.check_answer(told.circle, told.slot, told.survivors, changed, sealed=sealed)


def test_answers_twice_or_more_than_survivors() -> None:
    told = six()
    answers = {rank: told.release(rank) for rank in told.survivors}
    with pytest.raises(ProtocolError, match="two answers to unmask by the member of rank 3"):
        told.combine([answers[0], answers[3], answers[1], answers[3]])
    for sealed in (False, True):  # also where the two differ
        twice = [told.release(1, sealed=sealed) for _ in range(2)]
        others = [told.release(r, sealed=sealed) for r in (0, 3, 4)]
        with pytest.raises(ProtocolError, match="two answers to unmask by the member of rank 1"):
            told.combine([*twice, *others], told.epochs[0] if sealed else None)
    with pytest.raises(ProtocolError, match="more answers to unmask than survivors"):
        told.combine([*answers.values(), answers[0]])


def test_sealed_answers_are_for_members_and_clear_ones_for_the_server() -> None:
    told = six()
    clear = [told.release(rank) for rank in told.survivors]
    sealed = [told.release(rank, sealed=True) for rank in told.survivors]
    with pytest.raises(ProtocolError, match="88 bytes, a share has 40"):
        told.combine(sealed)
    with pytest.raises(ProtocolError, match="40 bytes, a share has 88"):
        told.combine(clear, told.epochs[0])
    for rank in range(6):  # also who is not among the survivors reads the sum
        assert told.combine(sealed, told.epochs[rank]) == told.total()
    assert told.combine(clear) == told.total()
    outsider = replace(told.epochs[0], group_key=bytes([1]) * 32)
    with pytest.raises(AuthenticationError, match="rank 0 does not open"):
        told.combine(sealed, outsider)
    for answer, rank in zip(sealed, told.survivors, strict=True):
        assert bytes(told.agreed[rank].share)[:16] not in answer


def test_a_sealed_answer_of_elsewhere_signed_anew() -> None:
    """Its member signs it, and it still opens for its own rank, set and round only."""
    told = six()
    _, payload, _ = loads(told.release(1, sealed=True), 1000, "")
    others = [told.release(rank, sealed=True) for rank in (3, 4, 5)]
    for moved in (told.answer(0, payload), *another_round_sealed()):
        with pytest.raises(AuthenticationError, match="rank 0 does not open"):
            told.combine([moved, *others], told.epochs[0])
    assert told.combine([told.answer(1, payload), *others], told.epochs[0]) == told.total()


def another_round_sealed() -> list[bytes]:
    told = six()
    later = play(6, 1, told.survivors, round=4)
    wider = play(6, 1)
    return [
        told.answer(0, loads(each.release(0, sealed=True), 1000, "")[1]) for each in (later, wider)
    ]


def test_a_share_that_is_not_reduced() -> None:
    told = six()
    share = (2**64 - 1).to_bytes(8, "little") + bytes(32)
    answers = [told.answer(0, share), *(told.release(rank) for rank in (1, 3, 4))]
    with pytest.raises(ProtocolError, match="no field element"):
        told.combine(answers)


@pytest.mark.parametrize("wrong", [(1,), (8,), (0, 9), (3, 4)])
def test_wrong_shares_are_named_and_left_out(
    wrong: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Ten members, six shares needed: of four to spare, two wrong ones are told by the other eight."""
    told = ten()
    answers = [
        told.answer(rank, off(told.agreed[rank].share)) if rank in wrong else told.release(rank)
        for rank in told.survivors
    ]
    names = ", ".join(map(str, wrong))
    assert told.combine(answers) == told.total()
    assert f"shares of ranks {names} do not fit the others: left out" in caplog.text
    rest = [a for rank, a in enumerate(answers) if rank not in wrong]
    assert told.combine(rest) == told.total()


def test_a_wrong_share_is_noticed_with_one_to_spare_and_not_without() -> None:
    told = ten()
    bad = told.answer(2, off(told.agreed[2].share))
    with pytest.raises(ProtocolError, match="disagree"):
        told.combine([bad, *(told.release(rank) for rank in range(4, 10))])
    assert told.combine([bad, *(told.release(rank) for rank in range(5, 10))]) != told.total()


@functools.cache
def ten() -> Told:
    return play(10, 0)


def off(share: bytes) -> bytes:
    """A share with one element changed."""
    return ((int.from_bytes(share[:8], "little") + 1) % Q).to_bytes(8, "little") + share[8:]


def test_a_dealer_whose_shares_lie_on_no_polynomial_is_noticed() -> None:
    """Each box opens, each answer is honest; the one that does not fit is left out."""
    told = play(8, 0, agreeing=())
    liar = told.dealt[2]
    key = hkdf(told.epochs[2].pair_keys[5], "kshare", told.slot.digest(), 2, 5)
    box = bytes(12) + ChaCha20Poly1305(key).encrypt(bytes(12), bytes(40), told.slot.digest())
    told.dealt[2] = replace(liar, boxes=(*liar.boxes[:5], box, *liar.boxes[6:]))
    for rank in told.survivors:
        told.agreed[rank], told.signatures[rank] = told.agree(
            rank, told.survivors, told.inbox(rank)
        )
    answers = [told.release(rank) for rank in told.survivors]
    assert told.combine(answers) == told.total()
    need = told.circle.thresholds.threshold
    others = [a for rank, a in enumerate(answers) if rank != 5]
    with pytest.raises(ProtocolError, match="disagree"):  # with one to spare nobody can be named
        told.combine([answers[5], *others[:need]])


@pytest.mark.parametrize("release", [dumps(5), dumps([b"a", 1]), dumps({"a": b""}), b""])
def test_a_release_that_is_none(release: bytes) -> None:
    with pytest.raises(ProtocolError):
        masking.unpack(release)


# --- states ---


def test_states_hide_what_is_secret() -> None:
    told = six()
    dealt, agreed = told.dealt[0], told.agreed[0]
    for state, secret in ((dealt, dealt.own), (agreed, agreed.share)):
        for text in (repr(state), str(state)):
            assert "<40 bytes>" in text
            assert repr(bytes(secret)) not in text
            assert bytes(secret).hex() not in text
        assert secret in state.to_bytes()
    assert "boxes" not in repr(dealt)


# --- what shares say, by linear algebra ---
#
# A member's polynomial is a vector of t unknowns: elements that it shares, then random ones. A share
# is a row times that vector, and what somebody sees is a matrix. As the random unknowns are uniform, a
# view tells of elements what combinations of its rows depend on elements alone, and nothing more.

Rows = list[list[int]]


def rank_of(rows: Iterable[Sequence[int]]) -> int:
    """Rank over the field."""
    left, rank = [list(row) for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((i for i in range(rank, len(left)) if left[i][column]), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        inverse = pow(left[rank][column], -1, Q)
        for i in range(rank + 1, len(left)):
            if factor := left[i][column] * inverse % Q:
                left[i] = [(x - factor * y) % Q for x, y in zip(left[i], left[rank], strict=True)]
        rank += 1
    return rank


@functools.cache
def share_rows(sharing: Shamir) -> Rows:
    """Each member's row, out of what the code deals for every unknown alone."""
    out: Rows = [[] for _ in range(sharing.members)]
    for unknown in range(sharing.threshold):
        one = [int(i == unknown) for i in range(sharing.threshold)]
        elements = np.array(one[: sharing.packing], np.uint64)
        fresh = b"".join(x.to_bytes(8, "little") for x in one[sharing.packing :])
        shares = sharing.share(elements, lambda _, fresh=fresh: fresh)
        assert shares.shape == (sharing.members, 1)
        for row, (value,) in zip(out, shares.tolist(), strict=True):
            row.append(value)
    return out


def learned(view: Rows, about: Rows) -> int:
    """Independent combinations of `about` that a view determines."""
    return rank_of(view) + rank_of(about) - rank_of([*view, *about])


SHARINGS = [
    *(Circle.of(group(n, c)[1][0], 1).sharing for n, c in SMALL),
    Shamir(4, 3, 2),
    Shamir(4, 3, 1),
    Shamir(6, 5, 2),
    Shamir(8, 6, 2),
    Shamir(9, 7, 3),
]


def elements_of(sharing: Shamir) -> Rows:
    t = sharing.threshold
    return [[int(i == j) for j in range(t)] for i in range(sharing.packing)]


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
def test_every_seed_explains_the_shares_of_the_few(sharing: Shamir) -> None:
    rows, about = share_rows(sharing), elements_of(sharing)
    for ranks in itertools.combinations(range(sharing.members), sharing.privacy):
        seen = [rows[rank] for rank in ranks]
        # For each seed one choice of the random part gives these very shares, whatever they are.
        assert rank_of(row[sharing.packing :] for row in seen) == sharing.privacy
        assert learned(seen, about) == 0
    for count in range(sharing.privacy + 1, sharing.threshold + 1):
        for ranks in itertools.combinations(range(sharing.members), count):
            assert learned([rows[rank] for rank in ranks], about) == count - sharing.privacy


class View:
    """What colluders and the server see of the honest members' polynomials, in one round."""

    def __init__(self, sharing: Shamir, honest: Sequence[int]) -> None:
        self.sharing, self.honest = sharing, list(honest)
        self.bad = [r for r in range(sharing.members) if r not in honest]
        self.rows: Rows = [
            self._row({u: share_rows(sharing)[bad]}) for u in honest for bad in self.bad
        ]

    def _row(self, by_owner: dict[int, list[int]]) -> list[int]:
        nothing = [0] * self.sharing.threshold
        return [x for u in self.honest for x in by_owner.get(u, nothing)]

    def answers(self, survivors: Collection[int], ranks: Iterable[int]) -> None:
        """Sums of shares over a set, by some of its members."""
        for rank in ranks:
            row = share_rows(self.sharing)[rank]
            self.rows.append(self._row({u: row for u in self.honest if u in survivors}))

    def learned(self, of: Collection[int] | None = None) -> int:
        """What is known of the seeds of some honest members, of all by default."""
        chosen = self.honest if of is None else of
        about = [self._row({u: row}) for u in chosen for row in elements_of(self.sharing)]
        return learned(self.rows, about)


@pytest.mark.parametrize(
    "sharing", [Shamir(4, 3, 2), Shamir(4, 3, 1), Shamir(5, 4, 3), Shamir(5, 4, 1), Shamir(6, 4, 1)]
)
def test_a_sum_that_is_opened_tells_the_sum_and_no_more(sharing: Shamir) -> None:
    """With one colluder, and shares of one element or more in a polynomial."""
    everybody = range(sharing.members)
    for bad, survivors in itertools.product(
        everybody, itertools.combinations(everybody, sharing.members - 1)
    ):
        honest = [r for r in everybody if r != bad]
        view = View(sharing, honest)
        assert view.learned() == 0
        view.answers(survivors, survivors[: sharing.threshold])
        inside = [u for u in honest if u in survivors]
        assert view.learned() == view.learned(inside) == sharing.packing
        for out in inside:  # whoever is left out of it keeps the rest covered
            assert view.learned([u for u in inside if u != out]) == 0


def test_two_sets_of_one_round_would_tell_a_single_seed() -> None:
    """Why members sign one: the same argument sees it where there are two."""
    sharing = Shamir(6, 4, 3)
    view = View(sharing, range(1, 6))
    for survivors in ((1, 2, 3, 4, 5), (1, 2, 3, 4)):
        view.answers(survivors, survivors[:4])
    assert view.learned([5]) == 1
    # And why a set has c + 2: with one honest member in it, the sum is its seed.
    alone = View(sharing, range(1, 6))
    alone.answers((0, 5), range(4))
    assert alone.learned([5]) == 1


# --- a second implementation ---


VECTORS = json.loads(FILE.read_text())
BY_NAME = {case["name"]: case for case in (*VECTORS["whole"], *VECTORS["large"])}


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert contents() == VECTORS


def unhex(items: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(item) for item in items]


def numbers(items: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([int(item, 16) for item in items], np.uint64)


class Tape:
    """Gives out bytes in order."""

    def __init__(self, data: str) -> None:
        self.left = bytes.fromhex(data)

    def __call__(self, length: int) -> bytes:
        assert length <= len(self.left)
        out, self.left = self.left[:length], self.left[length:]
        return out


def stand(case: dict[str, Any], rank: int, keys: list[str]) -> tuple[Identity, Epoch, Slot]:
    identities = [Identity(seed) for seed in unhex(case["identities"])]
    roster = Roster.from_bytes(bytes.fromhex(case["roster"]))
    slot = Slot(*(bytes.fromhex(x) if isinstance(x, str) else x for x in case["slot"]))
    epoch = Epoch(
        id=slot.epoch,
        number=case["number"],
        run_id=slot.run_id,
        roster=roster,
        members=tuple(each.public for each in identities),
        rank=rank,
        group_key=bytes.fromhex(case["group_key"]),
        pair_keys=tuple(unhex(keys)),
    )
    return identities[rank], epoch, slot


@pytest.mark.parametrize("case", VECTORS["whole"], ids=lambda c: c["name"])
def test_vector(case: dict[str, Any]) -> None:
    survivors, elements = case["survivors"], case["elements"]
    signers = [int(rank) for rank in case["signatures"]]
    signatures = unhex(case["signatures"].values())
    for rank in range(case["size"]):
        identity, epoch, slot = stand(case, rank, case["pair_keys"][rank])
        random = Tape(case["random"][rank])
        dealt = masking.deal(epoch, slot, numbers(case["seeds"][rank]), random)
        assert random.left == b""
        assert list(dealt.boxes) == unhex(case["boxes"][rank])
        assert dealt.own.hex() == case["own"][rank]
        if rank not in survivors:
            continue
        inbox = [bytes.fromhex(case["boxes"][u][rank]) for u in survivors]
        agreed, signature = masking.agree(epoch, identity, dealt, survivors, inbox, elements)
        assert signature.hex() == case["signatures"][str(rank)]
        assert bytes(agreed.share).hex() == case["shares"][str(rank)]
        at = survivors.index(rank)
        for sealed, name in ((False, "answers"), (True, "sealed")):
            said = masking.release(
                epoch,
                identity,
                agreed,
                signers,
                signatures,
                elements,
                sealed=sealed,
                random=Tape(case["salts"][str(rank)]),
            )
            assert said.hex() == case[name][at]
    circle = Circle.of(epoch, elements)
    for reader, name in ((None, "answers"), (epoch, "sealed")):
        found = masking.combine(circle, slot, survivors, unhex(case[name]), epoch=reader)
        assert np.array_equal(found, numbers(case["sum"]))


@pytest.mark.parametrize("case", VECTORS["large"], ids=lambda c: c["name"])
def test_vector_of_a_large_group(case: dict[str, Any]) -> None:
    survivors, rank = case["survivors"], case["receiver"]
    _, epoch, slot = stand(case, 0, case["pair_keys"])
    random = Tape(case["random"])
    dealt = masking.deal(epoch, slot, numbers(case["seed"]), random)
    assert random.left == b""
    assert hashlib.sha256(b"".join(dealt.boxes)).hexdigest() == case["boxes_sha256"]
    identity, epoch, _ = stand(case, rank, case["receiver_keys"])
    mine = Dealt(slot, (b"",) * case["size"], bytes.fromhex(case["own"]))
    inbox = unhex(case["received"])
    agreed, signature = masking.agree(epoch, identity, mine, survivors, inbox, case["elements"])
    assert bytes(agreed.share).hex() == case["share"]
    assert signature.hex() == case["signature"]
    circle = Circle.of(epoch, case["elements"])
    stacked = np.stack(
        [np.frombuffer(bytes.fromhex(s), "<u8") for s in case["answer_shares"].values()]
    )
    ranks = [int(r) for r in case["answer_shares"]]
    found = circle.sharing.combine(ranks, stacked.astype(np.uint64), case["elements"])
    assert np.array_equal(found, numbers(case["sum"]))


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda b: b["name"].replace(" ", "-"))
def test_vector_that_must_fail(bad: dict[str, Any]) -> None:
    case = BY_NAME[bad["group"]]
    rank, survivors, elements = bad.get("rank", 0), case["survivors"], case["elements"]
    identity, epoch, slot = stand(case, rank, case["pair_keys"][rank])
    circle = Circle.of(epoch, elements)
    if bad["at"] == "agree":
        mine = Dealt(slot, tuple(unhex(case["boxes"][rank])), bytes.fromhex(case["own"][rank]))
        run = functools.partial(
            masking.agree, epoch, identity, mine, bad["survivors"], unhex(bad["boxes"]), elements
        )
    elif bad["at"] == "release":
        agreed = Agreed(slot, tuple(survivors), bytes.fromhex(case["shares"][str(rank)]))
        run = functools.partial(
            masking.release,
            epoch,
            identity,
            agreed,
            bad["signers"],
            unhex(bad["signatures"]),
            elements,
            sealed=False,
        )
    else:
        run = functools.partial(
            masking.combine, circle, slot, bad["survivors"], unhex(bad["answers"])
        )
    with pytest.raises(errors.FlheError) as caught:
        run()
    assert type(caught.value).__name__ == bad["error"]
