"""Masking-key agreement: the sum of the survivors' seeds, and no single seed.

Every client u has masked a vector with a seed k_u of field elements. The members compute the sum of
the seeds of one agreed set U, through an untrusted relay:

    KSHARE   u -> each j   Shamir share of k_u for j, sealed for j; rides with the upload
                           (p ranks after u derive theirs: an empty box travels)
    CONSIST  server -> u   a set U, and the shares for u from each of U; u signs U, once a model
    UNMASK   server -> u   t signatures on U; u returns the sum of its shares over U
    t answers give sum over U of k_u, because Shamir shares add.

Two sets of survivors would need t signatures each, and honest members sign one: no two sets of a
round are ever opened (`thresholds.py`). A member that drops out before CONSIST costs nothing, one
that drops out later costs an answer.

A polynomial shares t - p field elements (packed Shamir); p shares reveal nothing. So a set with t
signatures must count as opened, even without the last answer: docs/protocol.md explains.

If the key of a scheme is shared instead (`shared_key.py`), KSHARE is dropped. CONSIST shows the sum
itself, whose digest is signed with the set, and UNMASK returns a partial decryption of it.

This module has a member's steps, `circle.py` the parameters that the relay knows too, `answers.py`
the readers' part. Source: SASH, Sec. 3.2; Bonawitz et al., CCS 2017, for the consistency check;
Shamir, CACM 1979; Franklin and Yung, STOC 1992 (packed sharing); docs/protocol.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from flhe.errors import ProtocolError, QuorumError, SharesError
from flhe.keys.agreement.answers import Answer, box_key
from flhe.keys.agreement.circle import CONSIST, UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import (
    boxed,
    derived_share,
    open_share,
    pack_elements,
    seal_share,
    unpack_elements,
)
from flhe.keys.identity import Identity
from flhe.math.ring import Elements, add
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.fields import SECRET, U32
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

MAX_STATE = 1 << 30
"""Maximum length of a stored state, bytes: shares for 64 members take 1 MB, at 2048 elements."""


@dataclass(frozen=True, slots=True)
class Dealt(Record):
    """State after KSHARE: the sent shares, for repeated requests, and the own secret share.

    `boxes` are sealed shares by the receiver's rank, of no bytes at the own one.
    """

    FORM = Form("stored shares", MAX_STATE, "dealt", 2, row=True)

    slot: Slot
    boxes: tuple[bytes, ...] = field(repr=False)
    own: Annotated[bytes, SECRET]


@dataclass(frozen=True, slots=True)
class Agreed(Record):
    """State after CONSIST: the one set of a slot, as ranks, and the sum of the shares of its seeds.

    If a key is shared, `share` is a partial decryption of the sum whose digest is `total`. It is
    secret until the set is agreed on.
    """

    FORM = Form("stored agreement on survivors", MAX_STATE, "agreed", 2, row=True)

    slot: Slot
    survivors: tuple[U32, ...]
    share: Annotated[bytes, SECRET]
    total: bytes = b""

    def circle(self, epoch: Epoch) -> SharingParameters:
        """Return the circle of an epoch's agreement."""
        return SharingParameters.of(epoch, total=self.total, partial=len(self.share))


def deal(epoch: Epoch, slot: Slot, seed: Elements, random: Random = secrets.token_bytes) -> Dealt:
    """KSHARE: share `seed`, shape (elements,), among all members of `epoch`."""
    circle = SharingParameters.of(epoch, seed.size)
    sharing, name, mine = circle.sharing, slot.digest(), epoch.rank
    width, keys = sharing.width(seed.size), epoch.pair_keys
    boxes, given = [b""] * len(keys), {}
    for rank in sorted(circle.followers(mine)):
        boxes[rank] = seal_share(keys[rank], name, mine, rank, b"", random)
        given[rank] = derived_share(keys[rank], name, mine, rank, boxes[rank], width)
    packed = [pack_elements(share) for share in sharing.share(seed, given=given)]
    for rank, key in enumerate(keys):
        if rank != mine and rank not in given:
            boxes[rank] = seal_share(key, name, mine, rank, packed[rank], random)
    return Dealt(slot, tuple(boxes), packed[mine])


def agree(
    epoch: Epoch,
    identity: Identity,
    dealt: Dealt,
    survivors: Sequence[int],
    boxes: Sequence[bytes],
    elements: int,
) -> tuple[Agreed, bytes]:
    """Run CONSIST: check the server's proposed set and sign it; return the state, and 64 bytes.

    `survivors` are U, ascending ranks. `boxes` holds the sealed share of each for this member,
    ignored at the own rank. `elements` is the number of field elements of a seed. The caller ensures
    that no other set of this round is ever signed: on disk, before the signature is sent.

    Raises ProtocolError, QuorumError: a set that must not be signed (see
    `SharingParameters.check_set`), or without this member; SharesError: names the members whose
    shares do not open.
    """
    circle, slot = SharingParameters.of(epoch, elements), dealt.slot
    signature = _signature(circle, epoch, identity, slot, survivors)
    if len(boxes) != len(survivors):
        raise ProtocolError(f"{len(boxes)} shares for {len(survivors)} survivors")
    name = slot.digest()
    total = np.zeros(circle.sharing.width(elements), np.uint64)
    bad, leaders = [], set(circle.leaders(epoch.rank))
    for rank, box in zip(survivors, boxes, strict=True):
        try:
            share, here = dealt.own, (epoch.pair_keys[rank], name, rank, epoch.rank, box)
            if rank != epoch.rank:
                share = open_share(*here)
            if rank in leaders:
                unpack_elements(share, 0)
                total = add(total, derived_share(*here, total.size))
            else:
                total = add(total, unpack_elements(share, total.size))
        except ProtocolError:
            bad.append(rank)
    if bad:
        raise SharesError(
            f"the shares of the members of ranks {', '.join(map(str, bad[:8]))} do not open: they were "
            "changed on the way, or sealed for another round",
            tuple(bad),
        )
    return Agreed(slot, tuple(survivors), pack_elements(total)), signature


def agree_on_sum(
    epoch: Epoch, identity: Identity, slot: Slot, total: Sealed, decrypt: Callable[[Sealed], bytes]
) -> tuple[Agreed, bytes]:
    """Run CONSIST for a shared key: check the server's sum, `decrypt` it in part, and sign it.

    Raises ProtocolError, QuorumError: as `agree`; a sum of another slot, or one that cannot be
    decrypted.
    """
    if total.slot != slot:
        raise ProtocolError("the sum to be opened is of another round than this node's update")
    circle = SharingParameters.of(epoch, total=total.digest())
    signature = _signature(circle, epoch, identity, slot, total.senders)
    return Agreed(slot, total.senders, decrypt(total), circle.total), signature


def _signature(
    circle: SharingParameters,
    epoch: Epoch,
    identity: Identity,
    slot: Slot,
    survivors: Sequence[int],
) -> bytes:
    """Sign a set, unless this member must not; see `agree`."""
    circle.check_set(survivors)
    if len(survivors) < epoch.roster.min_opening:
        raise QuorumError(
            f"{len(survivors)} survivors, this roster opens no sum of fewer than "
            f"{epoch.roster.min_opening}"
        )
    if epoch.rank not in survivors:
        raise ProtocolError("this member's update is not in the sum that is to be opened")
    header = circle.header(slot, CONSIST, epoch.rank)
    return Envelope.seal(identity, header, circle.statement(survivors)).signature


def check_agreement(
    circle: SharingParameters,
    slot: Slot,
    survivors: Sequence[int],
    signers: Sequence[int],
    signatures: Sequence[bytes],
) -> None:
    """Refuse a set with valid signatures of fewer than t members.

    Raises ProtocolError: signers that are not survivors, or a repeated one; QuorumError: too few of
    them; AuthenticationError: a signature that does not verify.
    """
    circle.check_set(survivors)
    if len(signers) != len(signatures) or len(set(signers)) != len(signers):
        raise ProtocolError("signatures on the survivors are repeated, or without a signer")
    if not set(signers) <= set(survivors):
        raise ProtocolError("a signature on the survivors by a member that is not among them")
    need = circle.thresholds.threshold
    if len(signers) < need:
        raise QuorumError(f"{len(signers)} members agree on the survivors, {need} must")
    said = circle.statement(survivors)
    for signer, signature in zip(signers, signatures, strict=True):
        circle.verify(circle.header(slot, CONSIST, signer), said, signature)


def release(
    epoch: Epoch,
    identity: Identity,
    agreed: Agreed,
    signers: Sequence[int],
    signatures: Sequence[bytes],
    *,
    sealed: bool,
    random: Random = secrets.token_bytes,
) -> bytes:
    """Run UNMASK: return the sum of this member's shares, if t members signed the same set.

    `signers` are ranks, `signatures` 64 bytes each. With `sealed` the answer is sealed for the
    members, so that the relay cannot read it. Raises as `check_agreement`.
    """
    circle, slot = agreed.circle(epoch), agreed.slot
    check_agreement(circle, slot, agreed.survivors, signers, signatures)
    if agreed.total and not agreed.share:
        raise ProtocolError("this member is not one of those that open the sum")
    header = circle.header(slot, UNMASK, epoch.rank, circle.about(agreed.survivors))
    share = bytes(agreed.share)
    if sealed:
        share = boxed(box_key(epoch, slot, epoch.rank), share, header.to_bytes(), random)
    signature = Envelope.seal(identity, header, share).signature
    return Answer(epoch.rank, share, signature).to_bytes()
