"""What sites hand to each other as files, and what members sign of the model that they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.seal import ModelKey
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.training.session import Session
from flhe.training.terms import Terms
from flhe.training.vouching import Holding
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.group import IDS, ROSTER, exchange, scratch, source
from tests.fuzz.stored import models

PASSPHRASE = "correct horse battery staple"
CHEAP = mock.patch.object(backup, "COST", 1 << 4)
"""A guess takes half a second otherwise, and 128 MiB."""
EPOCH = exchange().epochs[0]
OTHER = dataclasses.replace(ROSTER, collusion=0)


def _pinned(data: bytes) -> Any:
    path = scratch() / "roster"
    path.write_bytes(data)
    return load_pinned(path, ROSTER.hash.hex())


def _backup() -> list[bytes]:
    with CHEAP:
        return [Backup(IDS[0].seed, (ModelKey.of(EPOCH),)).seal(PASSPHRASE, source("backup"))]


def _restore(data: bytes) -> Backup:
    with CHEAP:
        return Backup.unseal(data, PASSPHRASE)


def _holding(round_: int = 3) -> Holding:
    model = dataclasses.replace(models()[0], round=round_)
    return Session(EPOCH, Terms(), model.layout).holding(model, bytes(32))


def _vouch(data: bytes) -> None:
    _holding().check(data, [IDS[1].public])


def entries() -> Sequence[Decoder]:
    """All of them."""
    vouchers = [_holding().sign(IDS[rank]) for rank in range(4)]
    others = [vouchers[3], vouchers[2], _holding(4).sign(IDS[1])]
    enrolments = [Enrolment.make("site-a", IDS[0]), Enrolment.make("site-b", IDS[1], IDS[2])]
    read = Enrolment.from_bytes
    return (
        Decoder("roster file, pinned", [ROSTER.to_bytes()], _pinned, NEVER, [OTHER.to_bytes()]),
        Decoder("enrolment", [one.to_bytes() for one in enrolments], read, NEVER),
        Decoder("backup", _backup, _restore, NEVER),
        Decoder("voucher", [vouchers[1]], _vouch, NEVER, others),
    )
