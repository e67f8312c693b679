"""What sites hand to each other as files, and what members sign of each other's results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any
from unittest import mock

from flhe.errors import ProtocolError
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.signed_roster import SignedRoster, load_pinned
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.sums import receipts
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, NEVER, Decoder
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


def _limits(data: bytes) -> Limits:
    found = canonical.loads(data, 4096, "limits")
    if type(found) is not dict:  # as the roster around it sees to
        raise ProtocolError("no limits")
    return Limits.from_fields(found)


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
    keys = "flhe.keys."
    return (
        Decoder(
            "roster file",
            lambda: [_roster_file(3), _roster_file(len(IDS))],
            SignedRoster.from_bytes,
            SignedRoster.to_bytes,
            covers=(keys + "signed_roster.SignedRoster.from_bytes",),
        ),
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
            covers=(keys + "enrolment.Enrolment.from_bytes",),
        ),
        Decoder("backup", lambda: [_backup(0)], _restore, NEVER),
        Decoder(
            "key of models",
            lambda: [_model_key().to_bytes()],
            ModelKey.from_bytes,
            ModelKey.to_bytes,
            covers=(keys + "model_key.ModelKey.from_bytes",),
        ),
        Decoder(
            "limits of a roster",
            lambda: [
                canonical.dumps(Limits(min_select=0.25, counts=False, min_members=4).to_fields())
            ],
            _limits,
            ANY,  # the roster around them is compared with what was read
            covers=(keys + "limits.Limits.from_fields",),
        ),
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
