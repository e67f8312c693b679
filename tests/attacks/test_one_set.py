"""A server that has two sets of updates to one model summed: their difference is one update."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest

from flhe.errors import AuthenticationError, ProtocolError, QuorumError
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.voids import Promise, Void, promise
from flhe.keys.identity import Identity
from flhe.schemes.sealed import Slot
from tests.mods.harness import refused, update
from tests.mods.masked import Masked, answer_in, promise_in

ALL, BUT_ONE = (0, 1, 2, 3), (0, 1, 2)
"""c = 1, t = 3."""
ME = 1


@pytest.fixture(params=["server", "clients"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Masked:
    """Everybody has sent an update of round 1."""
    return Masked(tmp_path, 4, request.param).agree().uploaded()


def slot_of(group: Masked, rank: int = ME) -> Slot:
    return group.dealt(rank).slot


def test_a_second_sum_from_one_model_is_not_opened(group: Masked) -> None:
    """It was: all of them in round 1, all but one in round 2, which starts where round 1 did."""
    group.answers(ALL, group.signatures(ALL, ALL))
    for rank in ALL:
        reply = group.upload(rank, round_=2)
        refused(reply, 1012)
        refused(group.upload(rank, round_=2, attempt=1), 1012)
    assert "may be opened" in (group.sites[ME].home / "errors.log").read_text()


def test_nor_is_it_signed_where_it_was_encrypted_before(group: Masked) -> None:
    """Whoever has sent updates to both rounds before it signs one set signs that one only."""
    for rank in ALL:
        update(group.upload(rank, round_=2))
    group.signatures(BUT_ONE, BUT_ONE, round_=2)
    for rank in BUT_ONE:
        refused(group.upload(rank, round_=3), 1012)
    update(group.upload(3, round_=3))  # who has signed nothing goes on
    refused(group.consist(ME, ALL, round_=3), 1014)


def test_nor_across_an_epoch(group: Masked) -> None:
    slot, circle = slot_of(group), group.circle
    group.answers(BUT_ONE, group.signatures(BUT_ONE, ALL))
    group.renew()
    for rank in BUT_ONE:
        refused(group.upload(rank, round_=2), 1012)
        refused(group.void(rank, slot, circle.number), 1012)
    void = group.voided((3,), slot, circle)  # its epoch is over, and it has answered nothing
    refused(group.upload(ME, round_=2, voids=[void.to_bytes()]), 1011)


def test_a_set_of_an_epoch_that_is_over_is_given_up(group: Masked) -> None:
    slot, circle = slot_of(group), group.circle
    group.signatures(ALL, ALL)
    group.renew()
    refused(group.upload(ME, round_=2), 1012)
    void = group.voided((0, 2, 3), slot, circle)
    update(group.upload(ME, round_=2, voids=[void.to_bytes()]))


def test_who_has_answered_does_not_promise(group: Masked) -> None:
    signatures = group.signatures(ALL, ALL)
    slot, number = slot_of(group), group.circle.number
    answer_in(group.unmask(ME, signatures))
    refused(group.void(ME, slot, number), 1012)
    promise_in(group.void(0, slot, number))


def test_who_has_promised_does_not_answer(group: Masked) -> None:
    """Nor does it sign the set, or another one of that round."""
    signatures = group.signatures(BUT_ONE, ALL)
    slot, number = slot_of(group), group.circle.number
    assert promise_in(group.void(ME, slot, number)).signed
    assert not promise_in(group.void(3, slot, number)).signed
    refused(group.unmask(ME, signatures), 1014)
    for rank in (ME, 3):
        refused(group.consist(rank, ALL), 1012)
        refused(group.upload(rank, attempt=1), 1012)
        promise_in(group.void(rank, slot, number))  # asked again
    answer_in(group.unmask(0, signatures))


def test_a_promise_is_kept_by_who_has_not_heard_of_the_round(tmp_path: Path) -> None:
    group = Masked(tmp_path, 4).agree()
    for rank in BUT_ONE:
        update(group.upload(rank))
    slot = slot_of(group)
    promise_in(group.void(3, slot, group.circle.number, confirms=group.confirms))
    refused(group.upload(3), 1012)
    update(group.upload(3, round_=2))


def test_an_epoch_that_did_not_begin_is_not_given_up(group: Masked) -> None:
    """Its members could sign in it later."""
    slot = dataclasses.replace(slot_of(group), epoch=bytes(16))
    refused(group.void(ME, slot, group.circle.number + 1), 1020)
    other = dataclasses.replace(slot_of(group), run_id=8)
    refused(group.void(ME, other, group.circle.number), 1014)
    far = dataclasses.replace(slot_of(group), round=1000)
    refused(group.void(ME, far, group.circle.number), 1014)


Lie = Literal["too few", "another slot", "forged", "one for two", "another circle", "a stranger"]
CODES: dict[Lie, int] = {
    "too few": 1011,
    "another slot": 1012,
    "forged": 1013,
    "one for two": 1013,
    "another circle": 1012,
    "a stranger": 1014,
}


def lied(group: Masked, how: Lie, slot: Slot) -> Void:
    """What does not show that nobody opens the set."""
    if how == "another slot":
        slot = dataclasses.replace(slot, attempt=9)
    whom = (0, 2) if how == "too few" else (0, 2, 3)
    void = group.voided(whom, slot, group.circle)
    promises: dict[int, Promise] = dict(void.promises)
    if how == "forged":
        promises[3] = promise(Identity(bytes(32)), slot, void.circle.number, signed=False)
    elif how == "one for two":
        promises[3] = promises[2]
    elif how == "a stranger":
        promises[4] = promises.pop(3)
    elif how == "another circle":  # in which two would be enough
        smaller = dataclasses.replace(void.circle, colluders=0, sites=3)
        return dataclasses.replace(void, circle=smaller)
    return dataclasses.replace(void, promises=promises)


@pytest.mark.parametrize("how", CODES)
def test_promises_that_free_nobody(group: Masked, how: Lie) -> None:
    group.signatures(ALL, ALL)
    void = lied(group, how, slot_of(group))
    refused(group.upload(ME, round_=2, voids=[void.to_bytes()]), CODES[how])
    refused(group.upload(ME, round_=2), 1012)


@pytest.mark.parametrize(
    ("sites", "size", "collusion"),
    [(4, 4, 1), (10, 10, 0), (10, 10, 3), (10, 8, 3), (10, 7, 3), (8, 6, 1), (50, 50, 16)],
)
def test_how_many_give_a_set_up(sites: int, size: int, collusion: int) -> None:
    """t that have not signed it, or so many that the rest and c more learn nothing from answers."""
    slot = Slot(7, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
    made = [Identity(bytes([i + 1]) * 32) for i in range(size)]
    by_rank = sorted(made, key=lambda each: each.public)
    circle = SharingParameters(1, tuple(each.public for each in by_rank), sites, collusion)
    void, t, all_told = Void(slot, circle), circle.thresholds.threshold, circle.given_up
    assert size - all_told + collusion == circle.sharing.privacy < t
    assert all_told < size  # one may be silent, also where the epoch is smaller than the roster

    def told(signers: int, free: int) -> Void:
        promises = {
            r: promise(by_rank[r], slot, 1, signed=r < signers) for r in range(signers + free)
        }
        return void.with_promises(promises)

    told(0, t).check()
    told(all_told, 0).check()
    for short in (told(0, t - 1), told(all_told - 1, 0)):
        if len(short.promises) < all_told:
            with pytest.raises(QuorumError, match=f"^{len(short.promises)} members have given up"):
                short.check()
    promises = told(0, t).promises
    turned = dataclasses.replace(promises[0], signed=True)
    with pytest.raises(AuthenticationError):
        void.check_promise(0, turned)
    with pytest.raises(ProtocolError):
        void.check_promise(size, promises[0])
