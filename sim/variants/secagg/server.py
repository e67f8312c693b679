"""The server's part of a pairwise masking: carry messages, and take the masks off the sum.

It holds no secret before the answers come, and then those of members who dropped out, and seeds of
those who did not; the plan is all that it needs to know. Every answer is verified before a mask is
made: a rebuilt key must belong to the public one that was signed, a rebuilt seed to its commitment.

Source: Bonawitz et al., CCS 2017, Fig. 4, Round 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flhe.errors import ProtocolError, QuorumError
from flhe.wire.canonical import loads
from flhe.wire.secret import Secret
from flhe_lab.variants.secagg import masks
from flhe_lab.variants.secagg.masks import Lanes
from flhe_lab.variants.secagg.pairwise import OPEN, SEED, from_bits, read_key, to_bits
from flhe_lab.variants.secagg.plan import Plan

MAX_ANSWER = 1 << 16
"""Longest "mask-open", bytes; 1024 members take 37,000."""

WORDS = SEED // 8
"""Field elements in a share of one secret."""

Shares = dict[int, NDArray[np.uint64]]


def unmask_sum(
    plan: Plan,
    total: Lanes,
    *,
    keys: Mapping[int, bytes],
    sharers: Iterable[int],
    senders: Sequence[int],
    answers: Iterable[bytes],
) -> Lanes:
    """The sum of the senders' vectors, shape (plan.length,); `total` is used up.

    Raises QuorumError: fewer shares of somebody's secret than the threshold: names the owner's rank.
    ProtocolError: an answer about another set, or by another than a sender; shares that do not fit
    together, or are not of the secret that its owner committed to. AuthenticationError: a bad
    signature.

    `total` is the sum of their masked vectors, uint32 or field elements: masks are taken off in place.
    `keys` are "mask-key" messages by rank, of all `sharers`: U2, who sent shares, and whose shares were
    carried to all neighbours. `senders` are U3, ascending: whose vectors are in `total`. `answers` are
    "mask-open" messages.
    """
    chosen, gone = frozenset(senders), frozenset(sharers) - frozenset(senders)
    publics, committed = {}, {}
    for rank in chosen | gone:
        _, publics[rank], committed[rank] = read_key(plan, keys[rank], (rank,))
    bits, held = to_bits(plan, senders), dict[int, Shares]()
    for message in answers:
        rank, shares = read_answer(plan, bits, chosen, message)
        for owner, row in shares.items():
            held.setdefault(owner, {})[rank] = row
    seeds = _rebuild(
        plan,
        sorted(chosen),
        held,
        lambda owner, secret: masks.commitment(secret, plan, owner) == committed[owner],
    )
    secrets = _rebuild(plan, sorted(gone), held, lambda owner, s: _public(s) == publics[owner])

    def terms() -> Iterator[masks.Term]:
        for rank, seed in seeds.items():
            yield False, masks.self_key(seed, plan, rank)
        for rank, secret in secrets.items():
            private = X25519PrivateKey.from_private_bytes(secret)
            for other in plan.graph.neighbours(rank):
                if other in chosen:
                    # What `rank` would have added is what `other` took away, and the reverse.
                    key = masks.agree(private, publics[other], plan, rank, other)
                    yield masks.towards(rank, other), key

    masks.apply(plan, total, terms())
    return total


def read_answer(
    plan: Plan, chosen: bytes, allowed: Collection[int], message: bytes
) -> tuple[int, Shares]:
    """Verify a "mask-open" by one of `allowed` about the set `chosen`, as bits.

    Returns its sender, and shares by owner: of seeds for those in the set, of keys for the others.
    """
    rank, payload = plan.read(OPEN, message, MAX_ANSWER, allowed)
    match loads(payload, MAX_ANSWER, OPEN):
        case [bytes(bits), bytes(about), bytes(data)] if bits == chosen:
            owners = from_bits(plan, about)
            if not set(owners) <= set(plan.graph.around(rank)) or len(data) != SEED * len(owners):
                raise ProtocolError(f"{OPEN} message of rank {rank}: shares of others than its own")
            rows = np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, WORDS)
            return rank, dict(zip(owners, rows, strict=True))
    raise ProtocolError(f"{OPEN} message of rank {rank}: not an answer about this set of senders")


def _rebuild(
    plan: Plan,
    owners: Sequence[int],
    held: Mapping[int, Shares],
    right: Callable[[int, bytes], bool],
) -> dict[int, Secret]:
    """The owners' secrets. Those whose shares have the same places are interpolated together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for owner in owners:
        holders = held.get(owner, {})
        if len(holders) < plan.threshold:
            raise QuorumError(
                f"{len(holders)} shares of a secret of rank {owner}, {plan.threshold} are needed"
            )
        around = plan.graph.around(owner)
        at = tuple(place for place, rank in enumerate(around) if rank in holders)
        groups.setdefault(at, []).append(owner)
    out: dict[int, Secret] = {}
    for places, group in groups.items():
        rows = [np.stack([held[owner][h] for h in sorted(held[owner])]) for owner in group]
        shares = np.concatenate(rows, axis=1)
        found = plan.shamir.combine(places, shares, shares.shape[1])
        for i, owner in enumerate(group):
            secret = found[WORDS * i : WORDS * (i + 1)].astype("<u8").tobytes()
            if not right(owner, secret):
                raise ProtocolError(f"shares of a secret of rank {owner} are wrong")
            out[owner] = Secret(secret)
    return {owner: out[owner] for owner in owners}


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
