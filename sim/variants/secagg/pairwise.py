"""Pairwise masking: the sum of members' vectors for a server that must see no single one.

Every member u of an epoch makes, for one sum, an X25519 key s_u and a seed b_u, shares both among its
neighbours in a graph, and masks its vector with a stream for b_u and one for each neighbour. What two
neighbours share cancels in the sum. What does not comes off with shares: of b_u for those whose vectors
are in the sum, of s_u for those who dropped out. Nobody ever gives away both for one member.

    mask-key    u -> neighbours   S_u, commitment to b_u; signed                 U1
    mask-share  u -> v            AEAD(k_uv, share of b_u | share of s_u)        U2
    (upload)    u -> server       y_u, see `pairwise_masks`                      U3
    mask-with   u -> neighbours   whom u has masked with; signed
    mask-set    u -> neighbours   U3, as the server tells it; signed, one set a member
    mask-open   u -> server       for neighbours v in U3: share of b_v; in U2 but not U3: of s_v

k_uv is the epoch's pair key; "mask-open" needs t signatures on one set among u and its neighbours.

Let 2 t > k + 1 + c (`Thresholds`) for k neighbours, and no more than c colluders among any member and
its neighbours. Then no server can have both secrets of an honest member, and s_v never comes out once
v has answered: t around v have signed a set with v in it. On the complete graph one set is opened, if
any. On a sparse one, a server that shows different sets to distant members may get sums of parts, but
each of at least t - c honest members: whoever gives a share of b_u has it signed by u that it masked
with them, so t - c - 1 honest neighbours of u share masks with it that stay.

Each step is a function (state, inbound) -> (state, outbound), and is taken once.

Source: Bonawitz et al., CCS 2017, Fig. 4 (with signatures: active servers); Bell et al., CCS 2020 (the
graph, and saying whom one has masked with). Ours: shares travel under the epoch's pair keys, and b_u is
committed to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flhe.errors import AuthenticationError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.keys.identity import Identity
from flhe.math.prg import random_elements
from flhe.math.ring import Q
from flhe.wire.canonical import dumps
from flhe_lab.variants.secagg.masks import Lanes, apply, check_lanes, commitment, own_terms
from flhe_lab.variants.secagg.messages import (
    KEY,
    OPEN,
    SET,
    SHARE,
    WITH,
    check_signatures,
    check_statements,
    read_key,
    to_bits,
)
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.states import SEED, Advertised, Masked, Shared, Signed

__all__ = [
    "KEY",
    "OPEN",
    "SET",
    "SHARE",
    "WITH",
    "Advertised",
    "Masked",
    "Plan",
    "Shared",
    "Signed",
    "advertise",
    "consist",
    "mask",
    "share",
    "to_bits",
    "unmask",
]


def advertise(identity: Identity, epoch: Epoch, plan: Plan) -> tuple[Advertised, bytes]:
    """Make the key and the seed of this sum; returns the "mask-key" for all neighbours.

    Raises ProtocolError if the plan is another epoch's, or `identity` not the epoch's member.
    """
    secret, seed = _fresh(), _fresh()
    state = Advertised(
        identity=identity, epoch=epoch, plan=plan, secret=secret, seed=seed, message=b""
    )
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    payload = dumps([public, commitment(seed, plan, state.rank)])
    message = Envelope.seal(identity, plan.header(KEY, state.rank), payload).to_bytes()
    return replace(state, message=message), message


def share(state: Advertised, keys: Iterable[bytes]) -> tuple[Shared, dict[int, bytes]]:
    """Take the neighbours' "mask-key" messages (U1); returns the "mask-share" for each, by rank.

    The own message may be among them.

    Raises
    ------
    ProtocolError
        A message of somebody who is no neighbour, or of another sum; a sender or a key that comes
        twice.
    AuthenticationError
        A bad signature; the own message, changed.
    QuorumError
        With this member, fewer than the threshold.
    """
    plan, me = state.plan, state.rank
    around = plan.graph.around(me)
    places = {rank: place for place, rank in enumerate(around)}
    found: dict[int, bytes] = {}
    for message in keys:
        rank, public, _ = read_key(plan, message)
        if rank == me and message != state.message:
            raise AuthenticationError("the own mask-key was changed on the way: start over")
        if rank not in places:
            raise ProtocolError(f"{KEY} message of rank {rank}, who is no neighbour")
        if rank in found:
            raise ProtocolError(f"{KEY}: two messages of rank {rank}")
        found[rank] = public
    found.pop(me, None)
    if len(set(found.values())) < len(found):
        raise ProtocolError(f"{KEY}: two members have one key")
    plan.need(len(found) + 1, "have a key")
    rows = plan.shamir.share(_elements(state.seed + state.secret))
    shares = {rank: rows[place].astype("<u8").tobytes() for rank, place in places.items()}
    boxes = {
        rank: seal_to(state.epoch.pair_keys[rank], plan.header(SHARE, me, rank), shares[rank])
        for rank in found
    }
    shared = Shared(
        identity=state.identity,
        epoch=state.epoch,
        plan=plan,
        secret=state.secret,
        seed=state.seed,
        publics=tuple(found.get(rank, b"") for rank in around),
        shares=tuple(shares[me] if rank == me else b"" for rank in around),
    )
    return shared, boxes


def mask(state: Shared, boxes: Mapping[int, bytes], vector: Lanes) -> tuple[Masked, Lanes]:
    """Take the "mask-share" that neighbours sent (U2), by rank; returns the masked vector.

    The new state has the "mask-with" that goes with it.

    Parameters
    ----------
    state : Shared
        Erase it when this returns: a second vector under the same masks would give away both.
    boxes : mapping of int to bytes
        By sender.
    vector : NDArray
        Shape (plan.length,): uint32, or uint64 field elements; it stays as it is.

    Raises
    ------
    ProtocolError
        A box of somebody who sent no key, or that does not hold two shares.
    AuthenticationError
        A box that does not open, or a key that gives no secret.
    QuorumError
        With this member, fewer than the threshold.
    RangeError
        A vector that is not the plan's.
    """
    plan, me = state.plan, state.rank
    check_lanes(plan, vector)
    around = plan.graph.around(me)
    publics = dict(zip(around, state.publics, strict=True))
    for rank in boxes:
        if not publics.get(rank):
            raise ProtocolError(f"{SHARE} message of rank {rank}, who sent no key: not a neighbour")
    plan.need(len(boxes) + 1, "have sent shares")
    shares = dict(zip(around, state.shares, strict=True))
    for rank, box in boxes.items():
        plain = open_from(state.epoch.pair_keys[rank], plan.header(SHARE, rank, me), box)
        if len(plain) != 2 * SEED or int(_elements(plain).max()) >= Q:
            raise ProtocolError(f"{SHARE} message of rank {rank}: not two shares")
        shares[rank] = plain
    total = vector.copy()
    masked_with = [(rank, publics[rank]) for rank in around if rank in boxes]
    apply(plan, total, own_terms(plan, me, state.seed, state.secret, masked_with))
    bits = to_bits(plan, sorted((me, *boxes)))
    masked = Masked(
        identity=state.identity,
        epoch=state.epoch,
        plan=plan,
        shares=tuple(shares[rank] for rank in around),
        message=Envelope.seal(state.identity, plan.header(WITH, me), bits).to_bytes(),
    )
    return masked, total


def consist(
    state: Masked, senders: Sequence[int], statements: Iterable[bytes]
) -> tuple[Signed, bytes]:
    """Sign the set U3 that the server proposes, as ascending ranks; returns the "mask-set".

    `statements` are the "mask-with" messages of the neighbours in it; the own may be among them. Who
    has signed one set keeps the new state alone, and signs no other.

    Raises
    ------
    ProtocolError
        A set that is not ascending ranks, has a neighbour of whom there is no share, or lacks this
        member; a neighbour in it who did not mask with this member, or does not say so.
    AuthenticationError
        A bad signature.
    QuorumError
        A set that is smaller than `min_set`, or than the threshold around this member.
    """
    plan, me = state.plan, state.rank
    chosen = tuple(senders)
    bits = to_bits(plan, chosen)
    if me not in chosen:
        raise ProtocolError("the set of senders lacks this member, whose vector was sent")
    held = dict(zip(plan.graph.around(me), state.shares, strict=True))
    for rank in chosen:
        if rank in held and not held[rank]:
            raise ProtocolError(f"the set of senders has rank {rank}, of whom there is no share")
    if len(chosen) < plan.min_set:
        raise QuorumError(f"a set of {len(chosen)} senders, {plan.min_set} are needed")
    plan.need(len(held.keys() & set(chosen)), "are in the set of senders")
    check_statements(plan, me, [rank for rank in held if rank in set(chosen)], statements)
    message = Envelope.seal(state.identity, plan.header(SET, me), bits).to_bytes()
    signed = Signed(
        identity=state.identity,
        epoch=state.epoch,
        plan=plan,
        shares=state.shares,
        senders=chosen,
    )
    return signed, message


def unmask(state: Signed, signatures: Iterable[bytes]) -> bytes:
    """Take neighbours' "mask-set" messages; returns the "mask-open", for the server.

    The own signature counts, whether it is among them or not.

    Raises
    ------
    ProtocolError
        A signature by somebody who is no neighbour or not in the set, on another set, or of another
        sum; a signer that comes twice.
    AuthenticationError
        A bad signature.
    QuorumError
        Fewer than the threshold.
    """
    plan, me = state.plan, state.rank
    around = plan.graph.around(me)
    bits, chosen = to_bits(plan, state.senders), frozenset(state.senders)
    allowed = {plan.members[rank] for rank in around if rank in chosen}
    signers = check_signatures(plan, allowed, bits, signatures)
    plan.need(len(signers | {me}), "have signed the set of senders")
    given = [
        share[:SEED] if rank in chosen else share[SEED:]
        for rank, share in zip(around, state.shares, strict=True)
        if share
    ]
    owners = [rank for rank, share in zip(around, state.shares, strict=True) if share]
    payload = dumps([bits, to_bits(plan, owners), b"".join(given)])
    return Envelope.seal(state.identity, plan.header(OPEN, me), payload).to_bytes()


def _fresh() -> bytes:
    """32 secret bytes that are four field elements: all but 2**-30 of what 32 bytes can be."""
    return random_elements(SEED // 8).astype("<u8").tobytes()


def _elements(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(data, "<u8").astype(np.uint64)
