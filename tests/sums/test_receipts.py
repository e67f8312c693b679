"""Receipts: signed results, by which a server that tells two stories is found out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flhe.errors import AuthenticationError, EquivocationError, ProtocolError
from flhe.schemes.sealed import Slot
from flhe.sums import receipts
from flhe.sums.receipts import Receipt
from flhe.wire import canonical
from tests.keys.masking import group, slot_for

IDENTITIES, EPOCHS = group(4, 1)
TERMS = bytes([9]) * 32
SLOT = slot_for(EPOCHS[0])


def sign(rank: int, slot: Slot = SLOT, missed: int = 0, terms: bytes = TERMS) -> bytes:
    return receipts.sign(IDENTITIES[rank], slot, 4, terms, missed)


def check(signed: list[Any], senders: tuple[int, ...] = (0, 2, 3)) -> dict[int, Receipt]:
    packed = receipts.pack(signed)
    return dict(receipts.check(EPOCHS[1], SLOT, TERMS, senders, packed))


def test_each_sender_has_signed_the_readers_own_result() -> None:
    found = check([sign(0, missed=2), sign(2), sign(3)])
    said = {rank: (receipt.history, receipt.missed) for rank, receipt in found.items()}
    assert said == {0: (SLOT.history, 2), 2: (SLOT.history, 0), 3: (SLOT.history, 0)}
    assert len(sign(0)) < receipts.MAX_RECEIPT


def test_who_was_told_another_story_is_named() -> None:
    other = dataclasses.replace(SLOT, history=bytes([6]) * 32)
    with pytest.raises(EquivocationError, match=r"site-2 has signed .* two stories") as caught:
        check([sign(0), sign(2, other), sign(3)])
    assert SLOT.history.hex()[:16] in str(caught.value)
    assert other.history.hex()[:16] in str(caught.value)


@pytest.mark.parametrize(
    "signed", [[], [sign(0), sign(2)], [sign(0), sign(2), sign(3), sign(3)], [sign(0), sign(2), 3]]
)
def test_there_is_one_for_each_sender(signed: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="receipt"):
        check(signed)


@pytest.mark.parametrize(
    "last",
    [
        sign(2),
        sign(1),
        *(sign(3, dataclasses.replace(SLOT, **{n: 8})) for n in ("round", "attempt", "run_id")),
        sign(3, dataclasses.replace(SLOT, epoch=bytes(16))),
        sign(3, dataclasses.replace(SLOT, roster_hash=bytes(32))),
        sign(3, terms=bytes(32)),
        receipts.sign(IDENTITIES[3], SLOT, 1, TERMS),
        canonical.dumps([SLOT.history, 1, canonical.loads(sign(3), 1024, "receipt")[2]]),
        canonical.dumps([SLOT.history, 0, bytes(64)]),
    ],
)
def test_a_receipt_of_another_member_or_attempt_or_changed(last: bytes) -> None:
    with pytest.raises(AuthenticationError):
        check([sign(0), sign(2), last])


HASH, SIGNATURE = bytes(32), bytes(64)
ROWS: list[Any] = [
    *([], [bytes(31), 0, SIGNATURE], [HASH, -1, SIGNATURE], [HASH, True, SIGNATURE]),
    *([HASH, 1 << 32, SIGNATURE], [HASH, 0, bytes(63)], [HASH, 0, "0" * 64]),
    *([HASH, 0, SIGNATURE, 0], {"history": HASH}),
]


@pytest.mark.parametrize(
    "data", [b"", *map(canonical.dumps, ROWS), bytes(receipts.MAX_RECEIPT + 1)]
)
def test_what_is_no_receipt(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        check([data], (0,))
