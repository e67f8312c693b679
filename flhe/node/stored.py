"""What a node keeps on its disk between messages, as `claims.py` and `updates.py` read and write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flhe.errors import NoKeyError
from flhe.training.contract import MAX_BYTES, Contract
from flhe.wire.fields import size
from flhe.wire.record import Form, Record

MAX_STORED = 64 << 20
"""Longest state of an agreement, bytes."""


@dataclass(frozen=True, slots=True)
class StoredAgreement(Record):
    """A key agreement under way: what for, its step and state."""

    FORM = Form(
        "stored agreement",
        MAX_STORED,
        version=4,
        row=True,
        damaged=NoKeyError("a stored agreement is damaged, or of another version: start over"),
    )

    step: str
    contract: Contract
    state: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredSession(Record):
    """The epoch of a federation, and what all have signed that it does."""

    FORM = Form("stored session", 2 * MAX_BYTES, version=2)

    epoch: Annotated[bytes, size(16)]
    contract: Contract


@dataclass(frozen=True, slots=True)
class StoredNote(Record):
    """What is kept with a claim: of the model, of the support or the survivors, of the slot."""

    FORM = Form(
        "claim", MAX_BYTES, row=True, damaged=NoKeyError("a claim is damaged: agree on a new epoch")
    )

    digest: bytes
    support: bytes
    mode: str
    history: bytes


@dataclass(frozen=True, slots=True)
class StoredOutput(Record):
    """What stands before a kept ciphertext."""

    FORM = Form("stored update", MAX_BYTES, row=True)

    header: bytes
    envelope: bytes
