"""Masking-key agreement: exact sums from any t answers, and what each step refuses."""

from __future__ import annotations

import itertools
import random as plain_random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import (
    AuthenticationError,
    ConfigError,
    FlheError,
    ProtocolError,
    QuorumError,
    RangeError,
)
from flhe.keys.agreement import masking, pairs
from flhe.keys.agreement.answers import box_key, check_answer
from flhe.keys.agreement.circle import UNMASK, SharingParameters
from flhe.keys.agreement.pairs import seal_share
from flhe.keys.agreement.thresholds import Thresholds
from flhe.wire.canonical import dumps, loads
from tests.keys.masking import Q, Told, group, play, six

# --- how many it takes ---


@given(st.integers(3, 2000), st.integers(0, 2000))
def test_thresholds(members: int, colluders: int) -> None:
    if colluders > members - 2:
        with pytest.raises(ConfigError, match="allow at most"):
            Thresholds(members, colluders)
        return
    bounds = Thresholds(members, colluders)
    assert 2 * bounds.threshold > members + colluders >= 2 * (bounds.threshold - 1)
    assert bounds.min_set == max(bounds.threshold, colluders + 2) <= members


@pytest.mark.parametrize("arguments", [(2, 0), (5, -1), (5, 4), (5.0, 1), (5, True + 0.5)])
def test_thresholds_that_cannot_be(arguments: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="Thresholds"):
        Thresholds(*arguments)


# --- the sum, from whoever answers ---


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("size", "collusion"), [(3, 0), (4, 1), (5, 0), (7, 2)])
def test_any_t_answers_give_the_sum_and_fewer_give_none(
    size: int, collusion: int, sealed: bool
) -> None:
    least = SharingParameters.of(group(size, collusion)[1][0], 5).thresholds.min_set
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


@pytest.mark.parametrize("size", [10, 50, 100])
def test_a_polynomial_shares_several_elements(size: int) -> None:
    """t + 2 of the survivors go on after the update; one colluder more than c learns nothing."""
    collusion, chosen = (size - 1) // 3, set(range(size)) - {1, size // 2}
    t = (size + collusion) // 2 + 1
    agreeing = sorted(chosen)[-min(t + 2, len(chosen)) :]
    told = play(size, collusion, chosen, agreeing, elements=50)
    sharing = told.circle.sharing
    assert sharing.privacy == collusion + max((t - collusion) // 4, 1)
    packing = {10: 3, 50: 14, 100: 26}[size]
    assert (sharing.threshold, sharing.packing) == (t, t - sharing.privacy)
    assert told.circle.share_bytes == 8 * -(-50 // packing)
    assert {len(box) for box in told.inbox(1)} == {28, told.circle.share_bytes + 28}
    answers = {rank: told.release(rank) for rank in told.agreed}
    drawn = plain_random.Random(size)
    for count in (t, t, t, len(answers)):
        ranks = drawn.sample(sorted(answers), count)
        assert told.combine([answers[rank] for rank in ranks]) == told.total()
    with pytest.raises(QuorumError):
        told.combine([answers[rank] for rank in drawn.sample(sorted(answers), t - 1)])


# --- CONSIST: what no member signs ---


@pytest.mark.parametrize(
    ("survivors", "error", "text"),
    [
        ((0, 1, 3, 3, 4, 5), ProtocolError, "one is there twice"),
        ((0, 1, 3), QuorumError, "^3 survivors of 6 members, 4 are needed"),
        ((0, 1, 3, 4, 6), ProtocolError, "not all members"),
        ((-1, 0, 1, 3, 4), ProtocolError, "not all members"),
        ((0, True, 3, 4, 5), ProtocolError, "not all members"),
        ((0, 1.0, 3, 4, 5), ProtocolError, "not all members"),
        ((0, "1", 3, 4, 5), ProtocolError, "not all members"),
    ],
)
def test_a_set_that_nobody_signs(survivors: Any, error: type[FlheError], text: str) -> None:
    told = six()
    assert told.agree(0, told.survivors, told.inbox(0)) == (told.agreed[0], told.signatures[0])
    with pytest.raises(error, match=text) as caught:
        told.agree(0, survivors, [told.dealt[0].boxes[1]] * len(survivors))
    assert type(caught.value) is error
    told.circle.check_set((0, 1, 3, 4))


def test_a_roster_may_ask_for_more_survivors() -> None:
    told = six()
    epoch = replace(told.epochs[0], roster=replace(told.epochs[0].roster, min_survivors=6))
    dealt = masking.deal(epoch, told.slot, told.seeds[0])
    with pytest.raises(QuorumError, match="5 survivors, this roster opens no sum of fewer than 6"):
        masking.agree(epoch, told.identities[0], dealt, told.survivors, told.inbox(0), 5)


def boxed(share: bytes, rank: int) -> bytes:
    """A box for rank 0 that opens, whatever is in it."""
    told = six()
    return seal_share(told.epochs[rank].pair_keys[0], told.slot.digest(), rank, 0, share)


def beyond(length: int) -> bytes:
    """A share whose first element is none."""
    return Q.to_bytes(8, "little") + bytes(length - 8)


@pytest.mark.parametrize(
    ("share", "rank"),
    [*((share, 3) for share in (b"", bytes(23), bytes(25), beyond(24))), (bytes(24), 4)],
)
def test_a_box_that_opens_to_no_share(share: bytes, rank: int) -> None:
    """Nor a full one of rank 4, whose share is derived."""
    told = six()
    with pytest.raises(AuthenticationError, match=f"of ranks {rank} do not open"):
        told.agree(0, told.survivors, told.inbox(0, {rank: boxed(share, rank)}))
    told.agree(0, told.survivors, told.inbox(0, {3: boxed(bytes(24), 3)}))


def test_whose_boxes_do_not_open() -> None:
    """Eight names are enough; the own share is never taken from the server."""
    told, many = six(), play(12, 0, agreeing=())
    sizes = [len(box) for box in told.dealt[5].boxes]
    assert sizes == told.circle.sent_bytes(5) == [28, 28, 52, 52, 52, 0]
    crossed = {1: told.dealt[3].boxes[0], 3: told.dealt[1].boxes[0]}
    with pytest.raises(AuthenticationError, match="of ranks 1, 3 do not open") as caught:
        told.agree(0, told.survivors, told.inbox(0, crossed))
    assert caught.value.ranks == (1, 3)
    with pytest.raises(AuthenticationError, match="ranks 1, 2, 3, 4, 5, 6, 7, 8 do not open"):
        many.agree(0, many.survivors, [b""] * 12)
    for count in (0, 4, 6):
        with pytest.raises(ProtocolError, match=f"^{count} shares for 5 survivors"):
            told.agree(0, told.survivors, (told.inbox(0) * 2)[:count])
    own = told.agree(0, told.survivors, told.inbox(0, {0: b"whatever"}))
    assert own == (told.agreed[0], told.signatures[0])
    with pytest.raises(RangeError):
        masking.deal(told.epochs[0], told.slot, np.array([1, Q], np.uint64))


# --- UNMASK: what no member answers to ---


SIGNED = {**six().signatures, 2: six().statement(2)}
ENOUGH = (0, 1, 3, 4)
BAD = [
    *((each, AuthenticationError) for each in (six().statement(4, range(6)), SIGNED[5])),
    (six().statement(4, stage=UNMASK), AuthenticationError),
    *((each, ProtocolError) for each in (b"", SIGNED[4] + b"\0")),
]


def by(*ranks: int) -> list[bytes]:
    return [SIGNED[rank] for rank in ranks]


@pytest.mark.parametrize(
    ("signers", "signatures", "error", "text"),
    [
        ((3, 4, 5), by(3, 4, 5), QuorumError, "^3 members agree"),
        ((0, 1, 3, 3), by(0, 1, 3, 3), ProtocolError, "repeated"),
        ((0, 1, 3, True), by(0, 1, 3, 1), ProtocolError, "repeated"),
        (ENOUGH, by(0, 1, 3), ProtocolError, "without a signer"),
        ((0, 1, 3), by(*ENOUGH), ProtocolError, "without a signer"),
        ((0, 1, 3, 2), by(0, 1, 3, 2), ProtocolError, "not among them"),  # dropped out
        ((0, 1, 3, 6), by(0, 1, 3, 2), ProtocolError, "not among them"),  # no member
        ((0, 1, 3, -1), by(0, 1, 3, 2), ProtocolError, "not among them"),
        # None is outvoted by as many as are enough.
        *((ENOUGH, [*by(0, 1, 3), bad], error, "signature") for bad, error in BAD),
        *(((0, 1, 3, 5, 4), [*by(0, 1, 3, 5), bad], error, "signature") for bad, error in BAD),
    ],
)
def test_signatures_on_which_nobody_answers(
    signers: Sequence[int], signatures: list[bytes], error: type[FlheError], text: str
) -> None:
    """The member that is asked refuses them, and whoever else checks."""
    told = six()
    with pytest.raises(error, match=text) as caught:
        told.release(0, signers, signatures=signatures)
    assert type(caught.value) is error
    with pytest.raises(error, match=text):
        masking.check_agreement(told.circle, told.slot, told.survivors, signers, signatures)
    small = (0, 1, 3)  # which is too small, though it was signed
    signed = [told.statement(rank, small) for rank in small]
    with pytest.raises(QuorumError, match=r"^3 survivors"):
        masking.check_agreement(told.circle, told.slot, small, small, signed)


# --- answers: what nobody combines ---


def forged(rank: int, answer: bytes) -> bytes:
    """An answer under another rank."""
    return dumps([rank, *loads(answer, 1000, "")[1:]])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        *(
            (lambda t, s, r=rank: forged(r, t.answer(2, s)), ProtocolError, "is none of")
            for rank in (2, 6, (1 << 32) - 1)
        ),
        *(
            (lambda t, s, n=n: t.answer(0, bytes(n)), ProtocolError, f"{n} bytes, it takes")
            for n in (0, 39, 41, 68)
        ),
        (lambda t, s: dumps([0, bytes(2000), bytes(64)]), ProtocolError, "at most"),
        (lambda t, s: t.answer(0, s, range(6)), AuthenticationError, "signature"),
        (lambda t, s: forged(0, t.answer(1, s)), AuthenticationError, "signature"),
        (lambda t, s: t.answer(0, beyond(24)), ProtocolError, "of rank 0: a share holds what"),
    ],
)
def test_an_answer_that_is_not_by_that_member_for_this_set(
    make: Callable[[Told, bytes], bytes], error: type[FlheError], text: str
) -> None:
    told = six()
    answer = make(told, bytes(told.agreed[0].share))
    with pytest.raises(error, match=text):
        check_answer(told.circle, told.slot, told.survivors, answer, sealed=False)
    with pytest.raises(error, match=text):
        told.combine([answer, *told.releases((1, 3, 4, 5))])


@pytest.mark.parametrize("opens", [False, True])
def test_a_sealed_answer_that_holds_no_share_costs_nobody_the_sum(
    opens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server passes it on unread; members go on while enough remain."""
    told = six()
    reader, key = told.epochs[0], box_key(told.epochs[5], told.slot, 5)
    header = told.circle.header(told.slot, UNMASK, 5, told.circle.about(told.survivors))
    junk = b"\xff" * len(told.agreed[5].share)
    bad = told.answer(5, pairs.boxed(key, junk, header.to_bytes() if opens else b"", bytes))
    enough = told.releases((0, 1, 3, 4), sealed=True)
    with caplog.at_level("WARNING", "flhe"):
        assert told.combine([bad, *enough], reader) == told.total()
    assert caplog.messages[0].startswith("the answer to unmask")
    assert caplog.messages[0].endswith(": left out")
    with pytest.raises((ProtocolError, AuthenticationError), match="rank 5"):
        told.combine([bad, *enough[1:]], reader)


@pytest.mark.parametrize("sealed", [False, True])
def test_answers_twice_or_more_than_survivors(sealed: bool) -> None:
    told, reader = six(), six().epochs[0] if sealed else None
    answers = told.releases((0, 3, 4, 1), sealed=sealed)
    again = told.release(1, sealed=sealed)  # another box, where it is sealed
    with pytest.raises(ProtocolError, match="two answers to unmask by the member of rank 1"):
        told.combine([*answers, again], reader)
    with pytest.raises(ProtocolError, match="more answers to unmask than survivors"):
        told.combine([*answers, again, again], reader)


def test_sealed_answers_are_for_members_and_clear_ones_for_the_server() -> None:
    told = six()
    clear = told.releases(told.survivors)
    sealed = told.releases(told.survivors, sealed=True)
    with pytest.raises(ProtocolError, match="52 bytes, it takes 24"):
        told.combine(sealed)
    with pytest.raises(ProtocolError, match="24 bytes, it takes 52"):
        told.combine(clear, told.epochs[0])
    for rank in range(6):  # also who is not among the survivors reads the sum
        assert told.combine(sealed, told.epochs[rank]) == told.total()
    outsider = replace(told.epochs[0], group_key=bytes([1]) * 32)
    with pytest.raises(AuthenticationError, match="rank 0 does not open"):
        told.combine(sealed, outsider)
    for answer, rank in zip(sealed, told.survivors, strict=True):
        assert bytes(told.agreed[rank].share)[:16] not in answer


def test_a_sealed_answer_of_elsewhere_signed_anew() -> None:
    """Its member signs it, and it still opens for its own rank, set and round only."""
    told = six()
    elsewhere = [told.release(1, sealed=True)]
    for other in (play(6, 1, told.survivors, round_=4), play(6, 1)):
        elsewhere.append(other.release(0, sealed=True))
    others = told.releases((3, 4, 5), sealed=True)
    for moved in elsewhere:
        again = told.answer(0, loads(moved, 1000, "")[1])
        with pytest.raises(AuthenticationError, match="rank 0 does not open"):
            told.combine([again, *others], told.epochs[0])
    assert told.combine([elsewhere[0], *others], told.epochs[0]) == told.total()


def off(share: bytes) -> bytes:
    """A share with one element changed."""
    return ((int.from_bytes(share[:8], "little") + 1) % Q).to_bytes(8, "little") + share[8:]


@pytest.mark.parametrize("wrong", [(1,), (8,), (0, 9), (3, 4)])
def test_wrong_shares_are_named_and_left_out(
    wrong: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Ten members, six shares needed: of four to spare, two wrong ones are told by the other eight."""
    told = play(10, 0)
    answers = [
        told.answer(rank, off(told.agreed[rank].share)) if rank in wrong else told.release(rank)
        for rank in told.survivors
    ]
    names = ", ".join(map(str, wrong))
    assert told.combine(answers) == told.total()
    assert f"shares of ranks {names} do not fit the others: left out" in caplog.text


def test_a_wrong_share_is_noticed_with_one_to_spare_and_not_without() -> None:
    told = play(10, 0)
    bad = told.answer(2, off(told.agreed[2].share))
    with pytest.raises(ProtocolError, match="disagree"):
        told.combine([bad, *told.releases(range(4, 10))])
    assert told.combine([bad, *told.releases(range(5, 10))]) != told.total()
