"""What a node keeps on its disk between messages, as `claims.py` and `updates.py` read and write it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Annotated

from flhe.errors import NoKeyError, StoreError
from flhe.training.contract import MAX_BYTES, Contract
from flhe.wire.fields import U32, size
from flhe.wire.record import Form, Record

MAX_STORED = 64 << 20
"""Longest state of an agreement, bytes."""


@dataclass(frozen=True, slots=True)
class StoredAgreement(Record):
    """A key agreement under way: what for, its step and state, and what tells this disk from a copy."""

    FORM = Form(
        "stored agreement",
        MAX_STORED,
        version=3,
        row=True,
        damaged=NoKeyError("a stored agreement is damaged, or of another version: start over"),
    )

    step: str
    stamp: str
    boot: str
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


@dataclass(frozen=True, slots=True)
class HighWaterMarks(Record):
    """Rounds that are over: the last whose sum, and mean squares, were opened or may have been.

    And the last that anything was encrypted in, `reached`. The marks of an epoch are in the file that
    holds its keys, and go with it: when the next epoch begins, when the node leaves, when the file is
    damaged. What they said is kept here first, in runs/<id>/floor: canonical CBOR [1, opened, ranged,
    reached].
    """

    FORM = Form(
        "floor",
        64,
        version=1,
        row=True,
        damaged=StoreError(
            "what says which rounds are over is damaged here: begin another federation"
        ),
    )

    opened: U32 = 0
    ranged: U32 = 0
    reached: U32 = 0

    def raised(self, other: HighWaterMarks) -> HighWaterMarks:
        """The higher of both, mark by mark."""
        return HighWaterMarks(*map(max, astuple(self), astuple(other)))
