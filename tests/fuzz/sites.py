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
from flhe.sums import receipts
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.group import IDS, ROSTER, TERMS, exchange, scratch, slot, source

PASSPHRASE = "correct horse battery staple"
CHEAP = mock.patch.object(backup, "COST", 1 << 4)
"""A guess takes half a second otherwise, and 128 MiB."""


@functools.cache
def _roster_file(signers: int) -> bytes:
    made = SignedRoster(ROSTER)
    for identity in IDS[:signers]:
        made = made.signed(identity)
    return made.to_bytes()


def _pinned(data: bytes) -> Any:
    path = scratch() / "roster"
    path.write_bytes(data)
    return load_pinned(path, ROSTER.hash)


def _enrolments() -> list[bytes]:
    return [
        Enrolment.make("site-a", IDS[0]).to_bytes(),
        Enrolment.make("site-b", IDS[1], IDS[2]).to_bytes(),
    ]


def _model_key() -> ModelKey:
    return ModelKey.of(exchange().epochs[0])


@functools.cache
def _backup(number: int) -> bytes:
    with CHEAP:
        return Backup(IDS[number], (_model_key(),)).seal(PASSPHRASE, source("backup"))


def _restore(data: bytes) -> Backup:
    with CHEAP:
        return Backup.unseal(data, PASSPHRASE)


@functools.cache
def _receipt(rank: int, attempt: int = 0, missed: int = 0) -> bytes:
    return receipts.sign(IDS[rank], slot(attempt), exchange().epochs[0].number, TERMS, missed)


def _two_stories() -> bytes:
    other = dataclasses.replace(slot(), history=bytes(32))
    return receipts.sign(IDS[1], other, exchange().epochs[0].number, TERMS)


def _check(data: bytes) -> None:
    packed = receipts.pack([_receipt(0), data, _receipt(2)])
    receipts.check(exchange().epochs[0], slot(), TERMS, (0, 1, 2), packed)


def _check_packed(data: bytes) -> None:
    receipts.check(exchange().epochs[0], slot(), TERMS, (0, 1), data)


def entries() -> Sequence[Decoder]:
    """All of them."""
    return (
        Decoder(
            "roster file, pinned",
            lambda: [_roster_file(len(IDS))],
            _pinned,
            NEVER,
            lambda: [_roster_file(3)],
        ),
        Decoder(
            "enrolment",
            _enrolments,
            Enrolment.from_bytes,
            NEVER,
        ),
        Decoder("backup", lambda: [_backup(0)], _restore, NEVER),
        Decoder(
            "receipt",
            lambda: [_receipt(1)],
            _check,
            NEVER,
            lambda: [_receipt(3), _receipt(2), _receipt(1, 1), _two_stories()],
        ),
        Decoder(
            "receipts of a sum",
            lambda: [receipts.pack([_receipt(0), _receipt(1)])],
            _check_packed,
            NEVER,
            lambda: [receipts.pack([_receipt(0), _receipt(2)]), receipts.pack([_receipt(0)])],
        ),
    )
