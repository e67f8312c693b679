"""Voids: proof by members' promises that a set of survivors can never be opened.

    VOID   server -> u   a slot; u signs that it will neither sign nor answer for any set of it

A member answers only to t signatures, and p answers reveal nothing (`SharingParameters.sharing`). So
either of two kinds of proof is enough, of the M members of the slot's epoch:

- t members promise that had not signed: there are never t signatures, and no member answers.
- M + c - p promise, whether they had signed or not: only p can still answer, the others and the
  colluders.

Then a member that has signed a set of that slot may sign another one with the same start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.messages import Envelope, Header
from flhe.keys.identity import Identity
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, Signature
from flhe.wire.record import Form, Record

VOID = "void"

MAX_VOID = 1 << 20
"""Maximum length of an encoding, bytes: 1024 members and their promises take 140 KB."""


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """One member's promise: whether it had signed a set of the slot, and its signature."""

    FORM = Form("promise", row=True)

    signed: bool
    signature: Signature = field(repr=False)


@dataclass(frozen=True, slots=True)
class Void(Record):
    """A slot, the circle whose members could open a set of it, and their promises by rank.

    The circle is that of the slot's epoch, not of one sum.
    """

    FORM = Form("void", MAX_VOID, row=True)

    slot: Slot
    circle: SharingParameters
    promises: dict[U32, Promise] = field(default_factory=dict)

    @classmethod
    def of(cls, circle: SharingParameters, slot: Slot) -> Self:
        """Return a slot without promises."""
        return cls(slot, replace(circle, elements=0, total=b"", partial=0))

    @property
    def scope(self) -> bytes:
        """SHA-256 over slot and circle, 32 bytes: a signer stores it and accepts no other."""
        return hash_of("void", self.slot.digest(), self.circle.to_fields())

    @property
    def complete(self) -> bool:
        """True if enough members have promised."""
        return self.would_do(())

    def would_do(self, more: Iterable[bool]) -> bool:
        """Return whether more promises would complete it; for each, whether its member has signed."""
        signed = [*(each.signed for each in self.promises.values()), *more]
        free = signed.count(False)
        return free >= self.circle.thresholds.threshold or len(signed) >= self.circle.given_up

    def with_promises(self, made: Mapping[int, Promise]) -> Self:
        """Return the void with more promises, which `check_promise` has passed."""
        return replace(self, promises=dict(sorted({**self.promises, **made}.items())))

    def check_promise(self, rank: int, made: Promise) -> None:
        """Refuse a promise that a member did not make for this slot.

        Raises ProtocolError: a rank that no member has; AuthenticationError: a forged one.
        """
        if rank >= len(self.circle.members):
            raise ProtocolError("a promise by a key that is not a member's")
        header = self.circle.header(self.slot, VOID, rank)
        self.circle.verify(header, dumps(made.signed), made.signature)

    def check(self) -> None:
        """Refuse a void that does not prove that no set of the slot is ever opened.

        Raises QuorumError: too few promises; ProtocolError, AuthenticationError: as `check_promise`.
        """
        if not self.complete:
            free, need = self.circle.thresholds.threshold, self.circle.given_up
            raise QuorumError(
                f"{len(self.promises)} members have given up the set; {need} must, or {free} that "
                "have not signed it"
            )
        if len(set(self.circle.members)) != len(self.circle.members):
            raise ProtocolError("a void names a member twice")
        for rank, made in self.promises.items():
            self.check_promise(rank, made)


def promise(identity: Identity, slot: Slot, number: int, *, signed: bool) -> Promise:
    """Return a member's promise, which the caller has put on disk and which binds it from then on.

    `number` is the server's number of the slot's epoch: a wrong one makes the promise useless.
    """
    header = Header.in_slot(slot, number, VOID, identity.public)
    return Promise(signed, Envelope.seal(identity, header, dumps(signed)).signature)
