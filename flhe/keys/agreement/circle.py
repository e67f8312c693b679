"""The circle of an agreement on masking keys: its parameters, which the relay knows too.

It defines the members, the thresholds, the sets of survivors that an honest member signs, and the
signed statement (`masking.py` has the protocol).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import NONE, Envelope, Header
from flhe.keys.agreement.pairs import OVERHEAD
from flhe.keys.agreement.thresholds import Thresholds
from flhe.math.shamir import Shamir
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.fields import U32, Hash
from flhe.wire.record import Form, Record

CONSIST, UNMASK = "consist", "unmask"


@dataclass(frozen=True, slots=True)
class SharingParameters(Record):
    """Public parameters of an agreement, which the relay knows too.

    `number` is the epoch's. `members` are identity keys in order of rank. `sites` is N, all members
    of the roster, in the epoch or not. `colluders` is c, the members that may pool their knowledge
    with the relay. If seeds are released, `elements` is the number of field elements of one. If
    partial decryptions are, `total` is the digest of the sum, 32 bytes, and `partial` the bytes of
    one of them.
    """

    FORM = Form("circle", row=True)

    number: U32
    members: tuple[Hash, ...]
    sites: U32
    colluders: U32
    elements: int = 0
    total: bytes = b""
    partial: int = 0

    @classmethod
    def of(
        cls, epoch: Epoch, elements: int = 0, total: bytes = b"", partial: int = 0
    ) -> SharingParameters:
        """Return the circle of an epoch's members, by the roster's own bound on collusion."""
        sites, bound = len(epoch.roster.members), epoch.roster.collusion
        return cls(epoch.number, epoch.members, sites, bound, elements, total, partial)

    @property
    def thresholds(self) -> Thresholds:
        """Thresholds for this number of sites and colluders."""
        return Thresholds(self.sites, self.colluders)

    @property
    def sharing(self) -> Shamir:
        """Scheme for sharing seeds: p shares of one reveal nothing, a quarter of t - c more than c."""
        threshold, bound = self.thresholds.threshold, self.colluders
        return Shamir(len(self.members), threshold, bound + max((threshold - bound) // 4, 1))

    @property
    def given_up(self) -> int:
        """Number of promises that give a set up for good, by signers or others.

        The others and the colluders then have as many answers as reveal nothing. Sites that are not
        members have no share.
        """
        return len(self.members) + self.colluders - self.sharing.privacy

    def followers(self, rank: int) -> list[int]:
        """Return the p ranks after a member's, which derive their shares of its seed."""
        size = len(self.members)
        return [(rank + i) % size for i in range(1, self.sharing.privacy + 1)]

    def leaders(self, rank: int) -> list[int]:
        """Return the p ranks before a member's, of whose seeds it derives its shares."""
        size = len(self.members)
        return [(rank - i) % size for i in range(1, self.sharing.privacy + 1)]

    def sent_bytes(self, rank: int) -> list[int]:
        """Return the bytes that travel from a member to each: none to itself."""
        sizes = [self.box_bytes] * len(self.members)
        for follower in self.followers(rank):
            sizes[follower] = OVERHEAD
        sizes[rank] = 0
        return sizes

    @property
    def share_bytes(self) -> int:
        """Bytes of one share."""
        return 8 * self.sharing.width(self.elements)

    @property
    def answer_bytes(self) -> int:
        """Bytes of a member's release: a sum of shares, or a partial decryption."""
        return self.partial if self.total else self.share_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of one sealed share."""
        return self.share_bytes + OVERHEAD

    def check_members(self) -> None:
        """Refuse an epoch with too few members to open a sum; QuorumError."""
        size, need = len(self.members), self.thresholds.min_set
        if size < need:
            raise QuorumError(
                f"{size} members of a roster of {self.sites} answered, {need} must, or two groups of "
                "one roster could each open sums: wait for more nodes"
            )

    def check_set(self, survivors: Sequence[int]) -> None:
        """Refuse a set that no honest member signs.

        Raises ProtocolError: ranks that are not members', out of order or repeated; QuorumError:
        fewer survivors than needed.
        """
        size = len(self.members)
        if not all(type(rank) is int and 0 <= rank < size for rank in survivors):
            raise ProtocolError("the survivors are not all members")
        if list(survivors) != sorted(set(survivors)):
            raise ProtocolError("the survivors do not ascend, or one is there twice")
        need = self.thresholds.min_set
        if len(survivors) < need:
            raise QuorumError(
                f"{len(survivors)} survivors of {size} members, {need} are needed for their sum"
            )

    def header(self, slot: Slot, stage: str, sender: int, about: bytes = NONE) -> Header:
        """Return the header of a member's signed message; `about` is the hash of its set."""
        return Header.in_slot(slot, self.number, stage, self.members[sender], about)

    def statement(self, survivors: Sequence[int]) -> bytes:
        """Return the statement that members sign for a set; its header names slot and stage."""
        return dumps([list(survivors), self.total] if self.total else list(survivors))

    def about(self, survivors: Sequence[int]) -> bytes:
        """Return the hash of a set, 32 bytes, which answers refer to."""
        return hashlib.sha256(self.statement(survivors)).digest()

    def verify(self, header: Header, payload: bytes, signature: bytes) -> None:
        """Verify a member's signature, which is 64 bytes.

        Raises ProtocolError: of another length; AuthenticationError: it does not verify.
        """
        Envelope(header, payload, signature).verify({}, senders=[header.sender])
