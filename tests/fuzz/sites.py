"""What sites hand to each other as files, and what members sign of each other's results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any
from unittest import mock

from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.signed_roster import SignedRoster, load_pinned
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.schemes.sealed import Slot
from flhe.sums import receipts
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.group import CONTRACT, IDS, ROSTER, exchange, scratch, slot, source

PASSPHRASE = "correct horse battery staple"
CHEAP = mock.patch.object(backup, "COST", 1 << 4)
"""A guess takes half a second otherwise, and 128 MiB."""
EPOCH = exchange().epochs[0]


def _roster_file(signers: int) -> bytes:
    return functools.reduce(SignedRoster.signed, IDS[:signers], SignedRoster(ROSTER)).to_bytes()


def _pinned(data: bytes) -> Any:
    path = scratch() / "roster"
    path.write_bytes(data)
    return load_pinned(path, ROSTER.hash)


def _backup() -> list[bytes]:
    with CHEAP:
        return [Backup(IDS[0], (ModelKey.of(EPOCH),)).seal(PASSPHRASE, source("backup"))]


def _restore(data: bytes) -> Backup:
    with CHEAP:
        return Backup.unseal(data, PASSPHRASE)


def _receipt(rank: int, of: Slot) -> bytes:
    return receipts.sign(IDS[rank], of, EPOCH.number, CONTRACT, 0)


def _check(data: bytes) -> None:
    packed = receipts.pack([_receipt(0, slot()), data, _receipt(2, slot())])
    receipts.check(EPOCH, slot(), CONTRACT, (0, 1, 2), packed)


def _check_packed(data: bytes) -> None:
    receipts.check(EPOCH, slot(), CONTRACT, (0, 1), data)


def entries() -> Sequence[Decoder]:
    """All of them."""
    each = [_receipt(rank, slot()) for rank in range(4)]
    two_stories = _receipt(1, dataclasses.replace(slot(), history=bytes(32)))
    other_receipts = [each[3], each[2], _receipt(1, slot(1)), two_stories]
    packed, *others = map(receipts.pack, (each[:2], [each[0], each[2]], each[:1]))
    enrolments = [Enrolment.make("site-a", IDS[0]), Enrolment.make("site-b", IDS[1], IDS[2])]
    read = Enrolment.from_bytes
    return (
        Decoder("roster file, pinned", [_roster_file(4)], _pinned, NEVER, [_roster_file(3)]),
        Decoder("enrolment", [one.to_bytes() for one in enrolments], read, NEVER),
        Decoder("backup", _backup, _restore, NEVER),
        Decoder("receipt", [each[1]], _check, NEVER, other_receipts),
        Decoder("receipts of a sum", [packed], _check_packed, NEVER, others),
    )
