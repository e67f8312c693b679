"""Answers to UNMASK: a member's signed sum of shares, and the sum of seeds from t answers.

An answer travels in clear if the server reads the sum. If the members do, it is sealed under the
group key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flhe.errors import (
    AuthenticationError,
    FlheError,
    ProtocolError,
    QuorumError,
    SharesError,
    logger,
)
from flhe.keys.agreement.circle import UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.pairs import OVERHEAD, unboxed, unpack_elements
from flhe.math.ring import Elements
from flhe.schemes.sealed import Slot
from flhe.wire.derive import hkdf
from flhe.wire.fields import U32, Signature
from flhe.wire.record import Form, Record
from flhe.wire.secret import Secret

MAX_RELEASE = 1 << 30
"""Maximum length of a release, bytes: one answer for each survivor."""


@dataclass(frozen=True, slots=True)
class _Release(Record):
    FORM = Form("release", MAX_RELEASE, row=True)

    answers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Answer(Record):
    """A signed answer as it travels; the receiver knows its header."""

    FORM = Form("answer to unmask", row=True)

    rank: U32
    payload: bytes
    signature: Signature


def pack(answers: Sequence[bytes]) -> bytes:
    """Encode answers to UNMASK for members, to travel beside their sum; b"" for none."""
    return _Release(tuple(answers)).to_bytes() if answers else b""


def unpack(release: bytes) -> tuple[bytes, ...]:
    """Invert `pack`; ProtocolError for anything else."""
    return _Release.from_bytes(release).answers if release else ()


def check_answer(
    circle: SharingParameters, slot: Slot, survivors: Sequence[int], answer: bytes, *, sealed: bool
) -> tuple[int, bytes]:
    """Return the rank and payload of a member's answer to UNMASK.

    Raises ProtocolError: malformed, of another length, no share, or by a member that is not a
    survivor; AuthenticationError: not signed by that member for this set.
    """
    length = circle.answer_bytes + (OVERHEAD if sealed else 0)
    found = Answer.from_bytes(answer, length + 256)
    rank, payload = found.rank, found.payload
    if rank not in survivors:
        raise ProtocolError("answer to unmask: its sender is none of the survivors")
    if len(payload) != length:
        raise ProtocolError(f"answer to unmask: {len(payload)} bytes, it takes {length}")
    header = circle.header(slot, UNMASK, rank, circle.about(survivors))
    circle.verify(header, payload, found.signature)
    if not sealed:
        _check_share(circle, rank, payload)
    return rank, payload


def _check_share(circle: SharingParameters, rank: int, payload: bytes) -> None:
    """Refuse what is no sum of shares; a partial decryption is checked where it is used."""
    try:
        if not circle.total:
            unpack_elements(payload, circle.sharing.width(circle.elements))
    except ProtocolError as error:
        raise ProtocolError(f"the answer to unmask of rank {rank}: {error}") from None


def opened(
    circle: SharingParameters,
    slot: Slot,
    survivors: Sequence[int],
    answers: Sequence[bytes],
    *,
    epoch: Epoch | None = None,
) -> dict[int, bytes]:
    """Return the survivors' releases for their sum, by rank.

    `answers` are those of `release`; `epoch` is a member's, if they are sealed for members. A sealed
    answer that holds no share is logged and left out while enough remain: the server passed it on
    unread, and its sender must not cost all others the sum.

    Raises QuorumError: fewer survivors than any sum has; ProtocolError, AuthenticationError: an
    answer that is not a survivor's, a repeated one, or too few that hold a share.
    """
    circle.check_set(survivors)
    found: dict[int, bytes | None] = {}
    trouble: FlheError | None = None
    if len(answers) > len(survivors):
        raise ProtocolError("more answers to unmask than survivors")
    for answer in answers:
        rank, payload = check_answer(circle, slot, survivors, answer, sealed=epoch is not None)
        if rank in found:
            raise ProtocolError(f"two answers to unmask by the member of rank {rank}")
        found[rank] = payload
        if epoch is None:
            continue
        header = circle.header(slot, UNMASK, rank, circle.about(survivors))
        says = (
            f"the answer to unmask by the member of rank {rank} does not open: it was sealed "
            "under another key"
        )
        try:
            inside = unboxed(box_key(epoch, slot, rank), payload, header.to_bytes(), says)
            _check_share(circle, rank, inside)
            found[rank] = inside
        except (AuthenticationError, ProtocolError) as error:
            logger.warning("%s: left out", error)
            found[rank], trouble = None, trouble or error
    good = {rank: payload for rank, payload in found.items() if payload is not None}
    if trouble is not None and len(good) < circle.thresholds.threshold:
        raise trouble
    return good


def combine(
    circle: SharingParameters,
    slot: Slot,
    survivors: Sequence[int],
    answers: Sequence[bytes],
    *,
    epoch: Epoch | None = None,
) -> Elements:
    """Return the sum of the survivors' seeds, (elements,), from t or more answers, as `opened`.

    Raises QuorumError: fewer than t answers; SharesError, ProtocolError: inconsistent answers, of
    which too few remain without the ones known to be wrong. (Wrong answers are logged by rank and
    left out.)
    """
    width = circle.sharing.width(circle.elements)
    found = opened(circle, slot, survivors, answers, epoch=epoch)
    shares = {rank: unpack_elements(payload, width) for rank, payload in found.items()}
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


def box_key(epoch: Epoch, slot: Slot, rank: int) -> Secret:
    """Return the key of one share, which is sealed anew, under a fresh nonce, for each request."""
    return hkdf(epoch.group_key, "unmask", slot.digest(), rank)
