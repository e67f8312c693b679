"""Voids: a set of survivors that can never be opened, by what members promise of it.

    VOID   server -> u   a slot; u signs that it will neither sign nor answer for any set of it

Fewer than t answers open nothing. Once t members have promised, N - t + c < t are left who might
answer: the others, and those who collude. So whoever has signed a set of that slot may sign another
one that starts where it started.

From `PACKED_FROM` members on, fewer answers than t tell something of a sum. There a promise counts only
where its member has not signed either: then there are never t signatures, and nobody answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.messages import Envelope, Header
from flhe.keys.identity import Identity
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.fields import U32, Signature
from flhe.wire.record import Form, Record

VOID = "void"

MAX_VOID = 1 << 20
"""Longest encoding, bytes: 1024 members and their promises take 140 KB."""


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """One member's: whether it had signed a set of the slot, and its signature."""

    FORM = Form("promise", row=True)

    signed: bool
    signature: Signature = field(repr=False)


@dataclass(frozen=True, slots=True)
class Void(Record):
    """A slot, the circle whose members could open a set of it, and their promises by rank.

    The circle is that of the slot's epoch, and of no one sum.
    """

    FORM = Form("void", MAX_VOID, row=True)

    slot: Slot
    circle: SharingParameters
    promises: dict[U32, Promise] = field(default_factory=dict)

    @classmethod
    def of(cls, circle: SharingParameters, slot: Slot) -> Self:
        """A slot of which nobody has promised anything."""
        return cls(slot, replace(circle, elements=0, total=b"", partial=0))

    @property
    def scope(self) -> bytes:
        """SHA-256 over slot and circle, 32 bytes: a signer keeps it, and takes no other circle."""
        said = [self.slot.digest(), self.circle.to_fields()]
        return hashlib.sha256(dumps(["flhe/v1/void", *said])).digest()

    @property
    def counted(self) -> int:
        """How many promises count."""
        return sum(not (self.circle.packed and each.signed) for each in self.promises.values())

    @property
    def complete(self) -> bool:
        """Whether enough members have promised."""
        return self.counted >= self.circle.thresholds.threshold

    def with_promises(self, made: Mapping[int, Promise]) -> Self:
        """With more promises, which `check_promise` has seen."""
        return replace(self, promises=dict(sorted({**self.promises, **made}.items())))

    def check_promise(self, rank: int, made: Promise) -> None:
        """Refuse a promise that a member did not make of this slot.

        Raises ProtocolError: a rank that no member has; AuthenticationError: a forged one.
        """
        if rank >= len(self.circle.members):
            raise ProtocolError("a promise by who is no member")
        header = self.circle.header(self.slot, VOID, rank)
        self.circle.verify(header, dumps(made.signed), made.signature)

    def check(self) -> None:
        """Refuse what does not show that no set of the slot is ever opened.

        Raises QuorumError: too few promises; ProtocolError, AuthenticationError: as `check_promise`.
        """
        need = self.circle.thresholds.threshold
        if not self.complete:
            raise QuorumError(f"{self.counted} members have given a set up, {need} must")
        if len(set(self.circle.members)) != len(self.circle.members):
            raise ProtocolError("a void names a member twice")
        for rank, made in self.promises.items():
            self.check_promise(rank, made)


def promise(identity: Identity, slot: Slot, number: int, *, signed: bool) -> Promise:
    """A member's promise, which the caller has put on disk: it keeps it from here on.

    `number` is that of the slot's epoch, as the server says: a wrong one is a promise of no use.
    """
    header = Header.in_slot(slot, number, VOID, identity.public)
    return Promise(signed, Envelope.seal(identity, header, dumps(signed)).signature)
