"""Masking-key agreement: the sum of the survivors' seeds, and no seed of anybody.

Every client u has masked a vector with a seed k_u of field elements. The members find out the sum of
the seeds of one agreed set U, through a relay that nobody trusts:

    KSHARE   u -> each j   Shamir share of k_u for j, sealed for j; rides with the upload
    CONSIST  server -> u   a set U, and the shares for u from each of U; u signs U, once a model
    UNMASK   server -> u   t signatures on U; u returns the sum of its shares over U
    t answers give sum over U of k_u, because Shamir shares add.

Two sets of survivors would need t signatures each, and honest members sign one: no two sets of a round
are ever opened (`thresholds.py`). A member that has dropped out before CONSIST costs nothing, after it
an answer.

From `PACKED_FROM` members on a polynomial shares t - c field elements (packed Shamir), and a set that t
members have signed must be taken as opened, whether or not the last answer came: docs/protocol.md says
why.

Where the key of a scheme is shared instead (`shared_key.py`), KSHARE falls away. CONSIST shows the sum
itself, whose digest is signed with the set, and UNMASK returns a partial decryption of it.

Here are a member's steps; `circle.py` has what the relay knows too, `answers.py` what readers make of
the answers. Source: SASH, Sec. 3.2; Bonawitz et al., CCS 2017, for the consistency check; Shamir, CACM
1979; Franklin and Yung, STOC 1992 (packed sharing); docs/protocol.md.
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
"""Longest stored state, bytes: shares for 64 members take 1 MB, at 2048 elements."""


@dataclass(frozen=True, slots=True)
class Dealt(Record):
    """After KSHARE: what was sent, in case it is asked for again, and the own share, which is secret.

    `boxes` are sealed shares by the receiver's rank; empty at the own one.
    """

    FORM = Form("stored shares", MAX_STATE, "dealt", 1, row=True)

    slot: Slot
    boxes: tuple[bytes, ...] = field(repr=False)
    own: Annotated[bytes, SECRET]


@dataclass(frozen=True, slots=True)
class Agreed(Record):
    """After CONSIST: the one set of a slot, as ranks, and the sum of the shares of its seeds.

    Where a key is shared, `share` is a partial decryption of the sum whose digest is `total`. It is
    secret until the set is agreed on.
    """

    FORM = Form("stored agreement on survivors", MAX_STATE, "agreed", 2, row=True)

    slot: Slot
    survivors: tuple[U32, ...]
    share: Annotated[bytes, SECRET]
    total: bytes = b""

    def circle(self, epoch: Epoch) -> SharingParameters:
        """Whose agreement it is."""
        return SharingParameters.of(epoch, total=self.total, partial=len(self.share))


def deal(epoch: Epoch, slot: Slot, seed: Elements, random: Random = secrets.token_bytes) -> Dealt:
    """KSHARE: share `seed`, shape (elements,), among all members of `epoch`."""
    circle = SharingParameters.of(epoch, seed.size)
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
    """CONSIST: check the set that the server proposes, and sign it; returns what to keep, and 64 bytes.

    `survivors` are U, ascending ranks, `boxes` for each of them its sealed share for this member, empty
    at the own rank, and `elements` the field elements of a seed. The caller makes sure that no other
    set of this round is ever signed: on disk, before the signature leaves.

    Raises ProtocolError, QuorumError: a set that must not be signed (see
    `SharingParameters.check_set`), or without this member; SharesError: shares that do not open: whose.
    """
    circle, slot = SharingParameters.of(epoch, elements), dealt.slot
    signature = _signature(circle, epoch, identity, slot, survivors)
    if len(boxes) != len(survivors):
        raise ProtocolError(f"{len(boxes)} shares for {len(survivors)} survivors")
    name = slot.digest()
    total = np.zeros(circle.sharing.width(elements), np.uint64)
    bad = []
    for rank, box in zip(survivors, boxes, strict=True):
        try:
            share = dealt.own
            if rank != epoch.rank:
                share = open_share(epoch.pair_keys[rank], name, rank, epoch.rank, box)
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
    """CONSIST where a key is shared: check whose sum the server shows, `decrypt` it in part, sign it.

    Raises ProtocolError, QuorumError: as `agree`; a sum of another slot, or none that can be
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
    """Refuse a set on which fewer than t members are agreed.

    Raises ProtocolError: signers that are not among the survivors, or one that is there twice;
    QuorumError: too few of them; AuthenticationError: a signature that does not verify.
    """
    circle.check_set(survivors)
    if len(signers) != len(signatures) or len(set(signers)) != len(signers):
        raise ProtocolError("signatures on the survivors are repeated, or without a signer")
    if not set(signers) <= set(survivors):
        raise ProtocolError("a signature on the survivors by who is not among them")
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
    """UNMASK: the sum of this member's shares, once t members are known to have signed the same set.

    `signers` are ranks, `signatures` 64 bytes each. With `sealed` the answer is sealed for the members,
    so that the relay cannot read it. Raises as `check_agreement`.
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
