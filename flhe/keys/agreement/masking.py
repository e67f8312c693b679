"""Masking-key agreement: the sum of the survivors' seeds, and no seed of anybody.

Every client u has masked a vector with a seed k_u of field elements. The members find out the sum
of the seeds of one agreed set U, through a relay that nobody trusts:

    KSHARE   u -> each j   Shamir share of k_u for j, sealed for j; rides with the upload
    CONSIST  server -> u   a set U, and the shares for u from each of U; u signs U, once a round
    UNMASK   server -> u   t signatures on U; u returns the sum of its shares over U
    t answers give sum over U of k_u, because Shamir shares add.

    c = colluders, t = (N + c) // 2 + 1,  2 t > N + c

Two sets of survivors would need t signatures each, and honest members sign one: no two sets of a
round are ever opened. A member that has dropped out before CONSIST costs nothing, after it an answer.

Up to 64 members a polynomial shares one field element: fewer than t shares or answers say nothing.
From `PACKED_FROM` members on it shares t - c of them (packed Shamir), and an agreement takes some
100 KB a client: c shares of a seed still say nothing, so colluders and the server learn nothing of
anybody. But where only a few answers are missing, so is little of the sum of seeds, and lattice
reduction finds it: a set that t members have signed must be taken as opened, whether or not the
last answer came.

Steps are functions from a state and what came in to a state and what goes out. Who reads the answers
is whoever may read the sum: in clear for the server, or sealed under the group key for the members.

Source: SASH, Sec. 3.2; Bonawitz et al., CCS 2017, for the consistency check; Shamir, CACM 1979;
Franklin and Yung, STOC 1992 (packed sharing); docs/protocol.md.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from flhe.errors import AuthenticationError, ProtocolError, QuorumError, SharesError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import EVERYONE, NONE, Envelope, Header
from flhe.keys.agreement.thresholds import Thresholds
from flhe.keys.identity import Identity
from flhe.math.ring import Q, add
from flhe.math.shamir import Shamir
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.derive import hkdf
from flhe.wire.fields import SECRET, U32
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

logger = logging.getLogger("flhe")

CONSIST, UNMASK = "consist", "unmask"

PACKED_FROM = 65
"""Members from which on a polynomial shares several elements."""

_NONCE, _TAG, _SALT, _SIGNATURE = 12, 16, 32, 64
MAX_STATE = 256 << 20
"""Longest stored state, bytes: shares for 64 members take 1 MB, at 2048 elements."""

Elements = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Circle:
    """Public parameters of an agreement: what the relay knows too.

    Parameters
    ----------
    run_id, number : int
        Of the epoch.
    roster_hash : bytes
        SHA-256 of the roster, 32 bytes.
    members : tuple of bytes
        Identity keys, in order of rank.
    colluders : int
        c: members that may pool what they know with the relay.
    elements : int
        Field elements of a seed.
    """

    run_id: int
    number: int
    roster_hash: bytes
    members: tuple[bytes, ...]
    colluders: int
    elements: int

    @classmethod
    def of(cls, epoch: Epoch, elements: int) -> Circle:
        """The circle of an epoch's members, by the roster's own bound on collusion."""
        roster = epoch.roster
        return cls(
            epoch.run_id, epoch.number, roster.hash, epoch.members, roster.collusion, elements
        )

    @property
    def thresholds(self) -> Thresholds:
        """t, and how many may drop out."""
        return Thresholds(len(self.members), self.colluders)

    @property
    def sharing(self) -> Shamir:
        """How seeds are shared."""
        members, threshold = len(self.members), self.thresholds.threshold
        packed = members >= PACKED_FROM
        privacy = max(self.colluders, 1) if packed else threshold - 1
        return Shamir(members, threshold, privacy)

    @property
    def share_bytes(self) -> int:
        """Bytes of one share."""
        return 8 * self.sharing.width(self.elements)

    @property
    def box_bytes(self) -> int:
        """Bytes of one sealed share."""
        return _NONCE + self.share_bytes + _TAG

    def check_set(self, survivors: Sequence[int]) -> None:
        """Refuse a set that no honest member signs.

        Raises
        ------
        ProtocolError
            Ranks that are not members', out of order or repeated.
        QuorumError
            Fewer survivors than it takes.
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
        """The header of a member's signed message; `about` is the hash of the set it is about."""
        return Header(
            roster_hash=self.roster_hash,
            run_id=self.run_id,
            epoch=self.number,
            round=slot.round,
            attempt=slot.attempt,
            stage=stage,
            sender=self.members[sender],
            receiver=EVERYONE,
            policy_hash=about,
            layout_hash=slot.digest(),
        )

    def verify(self, header: Header, payload: bytes, signature: bytes) -> None:
        """Verify a member's signature; AuthenticationError if it is not."""
        if len(signature) != _SIGNATURE:
            raise AuthenticationError(f"{header.stage}: a signature is 64 bytes")
        Envelope(header, payload, signature).verify({}, senders=[header.sender])


def statement(survivors: Sequence[int]) -> bytes:
    """What members sign of a set; the header around it names slot and stage."""
    return dumps(list(survivors))


@dataclass(frozen=True, slots=True)
class Dealt(Record):
    """After KSHARE: what was sent, in case it is asked for again, and the own share.

    Parameters
    ----------
    slot : Slot
        Round and attempt.
    boxes : tuple of bytes
        Sealed shares by the receiver's rank; empty at the own one.
    own : bytes
        The own share of the own seed, secret.
    """

    FORM = Form("stored shares", MAX_STATE, "dealt", 1, row=True)

    slot: Slot
    boxes: tuple[bytes, ...] = field(repr=False)
    own: Annotated[bytes, SECRET]


@dataclass(frozen=True, slots=True)
class Agreed(Record):
    """After CONSIST: the one set of this round, and the sum of the shares of its seeds.

    Parameters
    ----------
    slot : Slot
        Round and attempt.
    survivors : tuple of int
        U, ranks.
    share : bytes
        Sum of the own shares over U, secret until U is agreed on.
    """

    FORM = Form("stored agreement on survivors", MAX_STATE, "agreed", 1, row=True)

    slot: Slot
    survivors: tuple[U32, ...]
    share: Annotated[bytes, SECRET]


@dataclass(frozen=True, slots=True)
class _Release(Record):
    FORM = Form("release", MAX_STATE, row=True)

    answers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Answer(Record):
    FORM = Form("answer to unmask", row=True)

    rank: U32
    payload: bytes
    signature: bytes


def deal(epoch: Epoch, slot: Slot, seed: Elements, random: Random = secrets.token_bytes) -> Dealt:
    """KSHARE: share `seed`, shape (elements,), among all members of `epoch`."""
    circle = Circle.of(epoch, seed.size)
    shares = circle.sharing.share(seed, random)
    name = slot.digest()
    mine, packed = epoch.rank, [pack_elements(share) for share in shares]
    boxes = [
        seal_share(key, name, mine, rank, packed[rank], random) if rank != mine else b""
        for rank, key in enumerate(epoch.pair_keys)
    ]
    return Dealt(slot, tuple(boxes), packed[mine])


def agree(
    epoch: Epoch,
    identity: Identity,
    dealt: Dealt,
    survivors: Sequence[int],
    boxes: Sequence[bytes],
    elements: int,
) -> tuple[Agreed, bytes]:
    """CONSIST: check the set that the server proposes, and sign it.

    The caller makes sure that no other set of this round is ever signed: on disk, before the signature
    leaves.

    Parameters
    ----------
    epoch, identity
        The member's own.
    dealt : Dealt
        From `deal`.
    survivors : sequence of int
        U, ascending ranks.
    boxes : sequence of bytes
        For each of U its sealed share for this member; empty at the own rank.
    elements : int
        Field elements of a seed.

    Returns
    -------
    Agreed
        To be kept.
    bytes
        The signature, 64 bytes.

    Raises
    ------
    ProtocolError, QuorumError
        A set that must not be signed; see `Circle.check_set`. This member is not in it.
    SharesError
        Shares that do not open: whose.
    """
    circle, slot = Circle.of(epoch, elements), dealt.slot
    circle.check_set(survivors)
    if len(survivors) < epoch.roster.min_opening:
        raise QuorumError(
            f"{len(survivors)} survivors, this roster opens no sum of fewer than "
            f"{epoch.roster.min_opening}"
        )
    if epoch.rank not in survivors:
        raise ProtocolError("this member's update is not in the sum that is to be opened")
    if len(boxes) != len(survivors):
        raise ProtocolError(f"{len(boxes)} shares for {len(survivors)} survivors")
    name = slot.digest()
    total = np.zeros(circle.sharing.width(elements), np.uint64)
    bad = []
    for rank, box in zip(survivors, boxes, strict=True):
        if rank == epoch.rank:
            share: bytes = dealt.own
        else:
            try:
                share = _open(epoch.pair_keys[rank], name, rank, epoch.rank, box)
            except AuthenticationError:
                bad.append(rank)
                continue
        try:
            total = add(total, _unpack(share, total.size))
        except ProtocolError:
            bad.append(rank)
    if bad:
        raise SharesError(
            f"the shares of the members of ranks {', '.join(map(str, bad[:8]))} do not open: they were "
            "changed on the way, or sealed for another round",
            tuple(bad),
        )
    header = circle.header(slot, CONSIST, epoch.rank)
    signature = Envelope.seal(identity, header, statement(survivors)).signature
    return Agreed(slot, tuple(survivors), pack_elements(total)), signature


def pack(answers: Sequence[bytes]) -> bytes:
    """Answers to UNMASK as they travel to members, beside the sum that they open."""
    return _Release(tuple(answers)).to_bytes()


def unpack(release: bytes) -> list[bytes]:
    """Inverse of `pack`; ProtocolError for anything else."""
    return list(_Release.from_bytes(release).answers)


def check_agreement(
    circle: Circle,
    slot: Slot,
    survivors: Sequence[int],
    signers: Sequence[int],
    signatures: Sequence[bytes],
) -> None:
    """Refuse a set on which fewer than t members are agreed.

    Raises
    ------
    ProtocolError
        Signers that are not among the survivors, or one that is there twice.
    QuorumError
        Too few of them.
    AuthenticationError
        A signature that does not verify.
    """
    circle.check_set(survivors)
    if len(signers) != len(signatures) or len(set(signers)) != len(signers):
        raise ProtocolError("signatures on the survivors are repeated, or without a signer")
    if not set(signers) <= set(survivors):
        raise ProtocolError("a signature on the survivors by who is not among them")
    need = circle.thresholds.threshold
    if len(signers) < need:
        raise QuorumError(f"{len(signers)} members agree on the survivors, {need} must")
    said = statement(survivors)
    for signer, signature in zip(signers, signatures, strict=True):
        circle.verify(circle.header(slot, CONSIST, signer), said, signature)


def release(
    epoch: Epoch,
    identity: Identity,
    agreed: Agreed,
    signers: Sequence[int],
    signatures: Sequence[bytes],
    elements: int,
    *,
    sealed: bool,
    random: Random = secrets.token_bytes,
) -> bytes:
    """UNMASK: the sum of this member's shares, once t members are known to have signed the same set.

    Parameters
    ----------
    epoch, identity, agreed
        The member's own; `agreed` is the one set of this round.
    signers, signatures
        Who signed it: ranks, and 64 bytes each.
    elements : int
        Field elements of a seed.
    sealed : bool
        Seal the answer for the members, so that the relay cannot read it.

    Raises
    ------
    ProtocolError, QuorumError, AuthenticationError
        As `check_agreement`.
    """
    circle, slot = Circle.of(epoch, elements), agreed.slot
    check_agreement(circle, slot, agreed.survivors, signers, signatures)
    header = circle.header(slot, UNMASK, epoch.rank, about(agreed.survivors))
    payload: bytes = agreed.share
    if sealed:
        salt = random(_SALT)
        if len(salt) != _SALT:
            raise ProtocolError("the random source gave a salt of another length than 32")
        cipher = ChaCha20Poly1305(_group_box_key(epoch, slot, epoch.rank, salt))
        # Nonce 0: safe because the key is derived from 32 fresh random bytes, for this one box.
        payload = salt + cipher.encrypt(bytes(_NONCE), payload, header.to_bytes())
    return answer_of(epoch.rank, Envelope.seal(identity, header, bytes(payload)))


def answer_of(rank: int, envelope: Envelope) -> bytes:
    """A signed answer as it travels: its header is known to whoever asked."""
    return _Answer(rank, envelope.payload, envelope.signature).to_bytes()


def check_answer(
    circle: Circle, slot: Slot, survivors: Sequence[int], answer: bytes, *, sealed: bool
) -> tuple[int, bytes]:
    """A member's rank and payload, out of its answer to UNMASK.

    Raises
    ------
    ProtocolError
        Malformed, of another length, or by who is not among the survivors.
    AuthenticationError
        Not signed by that member for this set.
    """
    length = circle.share_bytes + (_SALT + _TAG if sealed else 0)
    found = _Answer.from_bytes(answer, length + 256)
    rank, payload = found.rank, found.payload
    if rank not in survivors:
        raise ProtocolError("answer to unmask: it is by none of the survivors")
    if len(payload) != length:
        raise ProtocolError(f"answer to unmask: {len(payload)} bytes, a share has {length}")
    header = circle.header(slot, UNMASK, rank, about(survivors))
    circle.verify(header, payload, found.signature)
    return rank, payload


def combine(
    circle: Circle,
    slot: Slot,
    survivors: Sequence[int],
    answers: Sequence[bytes],
    *,
    epoch: Epoch | None = None,
) -> Elements:
    """The sum of the survivors' seeds, shape (elements,), out of t answers or more.

    Parameters
    ----------
    circle, slot, survivors
        Who, which round, whose seeds.
    answers : sequence of bytes
        From `release`.
    epoch : Epoch, optional
        A member's, where answers are sealed for members.

    Raises
    ------
    QuorumError
        Fewer than t answers.
    ProtocolError, AuthenticationError
        An answer that is not a survivor's, or given twice.
    SharesError, ProtocolError
        Answers that do not fit each other, and without those that are known to be wrong too few are
        left. (Those that are known to be wrong are named in the log, and left out.)
    """
    circle.check_set(survivors)
    shares: dict[int, Elements] = {}
    width = circle.sharing.width(circle.elements)
    if len(answers) > len(survivors):
        raise ProtocolError("more answers to unmask than survivors")
    for answer in answers:
        rank, payload = check_answer(circle, slot, survivors, answer, sealed=epoch is not None)
        if rank in shares:
            raise ProtocolError(f"two answers to unmask by the member of rank {rank}")
        if epoch is not None:
            header = circle.header(slot, UNMASK, rank, about(survivors))
            payload = _open_group(epoch, slot, header, rank, payload)
        shares[rank] = _share_of(rank, payload, width)
    need = circle.thresholds.threshold
    if len(shares) < need:
        raise QuorumError(f"{len(shares)} answers to unmask, {need} are needed")
    while True:
        ranks = sorted(shares)
        stacked = np.stack([shares[rank] for rank in ranks])
        try:
            return circle.sharing.combine(ranks, stacked, circle.elements)
        except SharesError as error:
            if len(shares) - len(error.ranks) < need:
                raise
            logger.warning("%s: left out", error)
            for rank in error.ranks:
                del shares[rank]


def about(survivors: Sequence[int]) -> bytes:
    """Hash of a set, 32 bytes: what answers are about."""
    return _about(tuple(survivors))


@functools.lru_cache(maxsize=16)
def _about(survivors: tuple[int, ...]) -> bytes:
    return hashlib.sha256(statement(survivors)).digest()


def pack_elements(elements: Elements) -> bytes:
    """A share as it travels."""
    return elements.astype("<u8").tobytes()


def _share_of(rank: int, payload: bytes, width: int) -> Elements:
    try:
        return _unpack(payload, width)
    except ProtocolError as error:
        raise ProtocolError(f"the answer to unmask of rank {rank}: {error}") from None


def _unpack(data: bytes, count: int) -> Elements:
    """Field elements out of `_pack`; ProtocolError for another number, or what is not reduced."""
    if len(data) != 8 * count:
        raise ProtocolError(f"a share of {len(data)} bytes, {8 * count} were expected")
    elements = np.frombuffer(data, "<u8").astype(np.uint64)
    if np.any(elements >= np.uint64(Q)):
        raise ProtocolError("a share holds what is no field element")
    return elements


def _pair_box(pair_key: bytes, name: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """One key for each slot and direction."""
    return ChaCha20Poly1305(hkdf(pair_key, "kshare", name, sender, receiver))


def seal_share(
    pair_key: bytes,
    name: bytes,
    sender: int,
    receiver: int,
    share: bytes,
    random: Random = secrets.token_bytes,
) -> bytes:
    """One share for one receiver, by rank; `name` is the slot's digest."""
    # The key is for one share. The nonce is random all the same: a step that is run twice after a crash
    # must not encrypt two shares under one key and nonce.
    nonce = random(_NONCE)
    return nonce + _pair_box(pair_key, name, sender, receiver).encrypt(nonce, share, name)


def _open(pair_key: bytes, name: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    try:
        if len(box) < _NONCE + _TAG:
            raise InvalidTag
        cipher = _pair_box(pair_key, name, sender, receiver)
        return cipher.decrypt(box[:_NONCE], box[_NONCE:], name)
    except InvalidTag:
        raise AuthenticationError("a share does not open") from None


def _group_box_key(epoch: Epoch, slot: Slot, rank: int, salt: bytes) -> bytes:
    return hkdf(epoch.group_key, "unmask", slot.digest(), rank, salt)


def _open_group(epoch: Epoch, slot: Slot, header: Header, rank: int, box: bytes) -> bytes:
    cipher = ChaCha20Poly1305(_group_box_key(epoch, slot, rank, box[:_SALT]))
    try:
        return cipher.decrypt(bytes(_NONCE), box[_SALT:], header.to_bytes())
    except InvalidTag:
        raise AuthenticationError(
            f"the answer to unmask by the member of rank {rank} does not open: it was sealed under "
            "another key"
        ) from None
