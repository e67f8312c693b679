"""Messages of a pairwise masking that members and the server read: keys, sets, statements.

Source: Bonawitz et al., CCS 2017, Fig. 4; Bell et al., CCS 2020, for the statements.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from flhe.errors import ProtocolError
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import check_ephemeral, check_order
from flhe.wire.canonical import loads
from flhe_lab.variants.secagg.plan import Plan

KEY, SHARE, WITH, SET, OPEN = "mask-key", "mask-share", "mask-with", "mask-set", "mask-open"

MAX_MESSAGE = 1024
"""Longest "mask-key", "mask-with" and "mask-set", bytes; 1024 members need some 650."""

MAX_ANSWER = 1 << 16
"""Longest "mask-open", bytes; 1024 members take 37,000."""


def read_key(plan: Plan, message: bytes) -> tuple[int, bytes, bytes]:
    """Verify a "mask-key"; returns its sender's rank, X25519 key and commitment, for server too."""
    envelope = Envelope.from_bytes(message, MAX_MESSAGE)
    rank = plan.rank(envelope.header.sender)
    envelope.verify(plan.expect(KEY), senders=None)  # the sender has a rank: it is a member
    match loads(envelope.payload, MAX_MESSAGE, KEY):
        case [bytes(public), bytes(committed)] if len(committed) == 32:
            check_ephemeral(public)
            check_order(public)
            return rank, public, committed
    raise ProtocolError(f"{KEY} message of rank {rank}: not two strings of 32 bytes")


def check_statements(plan: Plan, me: int, near: Sequence[int], statements: Iterable[bytes]) -> None:
    """Refuse unless every neighbour of `near` says that it masked with `me`."""
    allowed = {plan.members[rank] for rank in near}
    said = {me}
    for message in statements:
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        if envelope.header.sender in allowed:  # those of others are not needed
            envelope.verify(plan.expect(WITH), senders=allowed)
            rank, at = plan.rank(envelope.header.sender), me // 8
            if len(envelope.payload) <= at or not envelope.payload[at] >> me % 8 & 1:
                raise ProtocolError(
                    f"{WITH}: rank {rank} did not mask with this member: start over"
                )
            said.add(rank)
    for rank in near:
        if rank not in said:
            raise ProtocolError(f"{WITH}: the message of rank {rank} is missing")


def check_signatures(
    plan: Plan, allowed: Collection[bytes], bits: bytes, signatures: Iterable[bytes]
) -> set[int]:
    """Ranks of those of `allowed` (keys) who signed the set `bits`; refuses any other message."""
    signers: set[int] = set()
    for message in signatures:
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        envelope.verify(plan.expect(SET), senders=allowed)
        rank = plan.rank(envelope.header.sender)
        if rank in signers:
            raise ProtocolError(f"{SET}: two messages of rank {rank}")
        if envelope.payload != bits:
            raise ProtocolError(f"{SET}: rank {rank} signed another set of senders: start over")
        signers.add(rank)
    return signers


def to_bits(plan: Plan, ranks: Sequence[int]) -> bytes:
    """A set of ranks, one bit each; rank 0 is the lowest bit of the first byte.

    Raises ProtocolError unless they ascend, each a member's.
    """
    count = len(plan.members)
    if len(ranks) > count or not all(type(r) is int and 0 <= r < count for r in ranks):
        raise ProtocolError(f"a set of senders: ranks below {count}, each once, are needed")
    if any(b <= a for a, b in itertools.pairwise(ranks)):
        raise ProtocolError("a set of senders: ranks must ascend, each once")
    return sum(1 << r for r in ranks).to_bytes(-(-count // 8), "little")


def from_bits(plan: Plan, bits: bytes) -> tuple[int, ...]:
    """Inverse of `to_bits`; ProtocolError for what it does not write."""
    count = len(plan.members)
    number = int.from_bytes(bits, "little")
    if len(bits) != -(-count // 8) or number >> count:
        raise ProtocolError(f"a set of ranks: {count} bits are needed, in whole bytes")
    return tuple(rank for rank, bit in enumerate(reversed(f"{number:b}")) if bit == "1")
