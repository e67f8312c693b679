"""Pairwise masking: the sum of members' vectors for a server that must see no single one.

Every member u of an epoch makes, for one sum, an X25519 key s_u and a seed b_u, shares both among its
neighbours in a graph, and masks its vector with a stream for b_u and one for each neighbour. What two
neighbours share cancels in the sum. What does not comes off with shares: of b_u for those whose vectors
are in the sum, of s_u for those who dropped out. Nobody ever gives away both for one member.

    mask-key    u -> neighbours   S_u, commitment to b_u; signed                 U1
    mask-share  u -> v            AEAD(k_uv, share of b_u | share of s_u)        U2
    (upload)    u -> server       y_u, see `masks`                               U3
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

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import check_ephemeral, open_from, seal_to
from flhe.keys.identity import Identity
from flhe.math.prg import random_elements
from flhe.math.ring import Q
from flhe.wire.canonical import dumps, loads
from flhe.wire.secret import Secret
from flhe_lab.variants.secagg.masks import Lanes, agree, apply, commitment, self_key, towards
from flhe_lab.variants.secagg.plan import Plan

KEY, SHARE, WITH, SET, OPEN = "mask-key", "mask-share", "mask-with", "mask-set", "mask-open"

MAX_MESSAGE = 1024
"""Longest "mask-key", "mask-with" and "mask-set", bytes; 1024 members need some 650."""

NONE = Secret(b"")
SEED = 32
"""Bytes of a seed and of an X25519 secret: four field elements."""


@dataclass(frozen=True, slots=True)
class State:
    """One member of an epoch in one sum, as far as it has come."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    secret: Secret = NONE  # s_u, the X25519 key; until it has masked
    seed: Secret = NONE  # b_u; the same
    publics: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Neighbours' keys, by rank; the same."""
    shares: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Of the own secrets, by rank, and once it has masked of neighbours' too."""
    message: bytes = field(default=b"", repr=False)
    """The "mask-with" that goes with the masked vector."""
    senders: tuple[int, ...] = ()  # The one set that this member signs

    @property
    def rank(self) -> int:
        """The own rank."""
        return self.epoch.rank

    def signed(self, stage: str, payload: bytes) -> bytes:
        """A message to all."""
        header = self.plan.header(stage, self.rank)
        return Envelope.seal(self.identity, header, payload).to_bytes()


def advertise(identity: Identity, epoch: Epoch, plan: Plan) -> tuple[State, bytes]:
    """Make the key and the seed of this sum; returns the "mask-key" for all neighbours."""
    secret, seed = _fresh(), _fresh()
    state = State(identity, epoch, plan, secret, seed)
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return state, state.signed(KEY, dumps([public, commitment(seed, plan, state.rank)]))


def share(state: State, keys: Iterable[bytes]) -> tuple[State, dict[int, bytes]]:
    """Take the neighbours' "mask-key" messages (U1); returns the "mask-share" for each, by rank.

    Raises ProtocolError: a message of somebody who is no neighbour, or of another sum; a sender or a
    key that comes twice. AuthenticationError: a bad signature. QuorumError: fewer than the threshold.
    """
    plan, me = state.plan, state.rank
    near, publics = set(plan.graph.neighbours(me)), dict[int, bytes]()
    for message in keys:
        rank, publics[rank], _ = read_key(plan, message, near)
        near.remove(rank)
    if len(set(publics.values())) < len(publics):
        raise ProtocolError(f"{KEY}: two members have one key")
    plan.need(len(publics) + 1, "have a key")
    rows = plan.shamir.share(_elements(state.seed + state.secret))
    places = enumerate(plan.graph.around(me))
    shares = {rank: rows[place].astype("<u8").tobytes() for place, rank in places}
    boxes = {
        rank: seal_to(state.epoch.pair_keys[rank], plan.header(SHARE, me, rank), shares[rank])
        for rank in publics
    }
    return replace(state, publics=publics, shares={me: shares[me]}), boxes


def mask(state: State, boxes: Mapping[int, bytes], vector: Lanes) -> tuple[State, Lanes]:
    """Take the "mask-share" that neighbours sent (U2), by rank; returns the masked vector.

    The new state has the "mask-with" that goes with it.

    Raises ProtocolError: a box of somebody who sent no key, or that does not hold two shares.
    AuthenticationError: a box that does not open. QuorumError: with this member, fewer than the
    threshold.

    Erase `state` when this returns: a second vector under the same masks would give away both. `vector`
    has shape (plan.length,), uint32, or uint64 field elements; it stays as it is.
    """
    plan, me = state.plan, state.rank
    plan.need(len(boxes) + 1, "have sent shares")
    shares = dict(state.shares)
    for rank, box in boxes.items():
        if rank not in state.publics:
            raise ProtocolError(f"{SHARE} message of rank {rank}, who sent no key: not a neighbour")
        plain = open_from(state.epoch.pair_keys[rank], plan.header(SHARE, rank, me), box)
        if len(plain) != 2 * SEED or int(_elements(plain).max()) >= Q:
            raise ProtocolError(f"{SHARE} message of rank {rank}: not two shares")
        shares[rank] = plain
    total = vector.copy()
    private = X25519PrivateKey.from_private_bytes(state.secret)
    pairs = (
        (towards(me, rank), agree(private, state.publics[rank], plan, me, rank))
        for rank in sorted(boxes)
    )
    apply(plan, total, itertools.chain([(True, self_key(state.seed, plan, me))], pairs))
    message = state.signed(WITH, to_bits(plan, sorted(shares)))
    return State(state.identity, state.epoch, plan, shares=shares, message=message), total


def consist(
    state: State, senders: Sequence[int], statements: Iterable[bytes]
) -> tuple[State, bytes]:
    """Sign the set U3 that the server proposes, as ascending ranks; returns the "mask-set".

    `statements` are the "mask-with" messages of the neighbours in it. Who has signed one set keeps the
    new state alone, and signs no other.

    Raises ProtocolError: a set that is not ascending ranks, has a neighbour of whom there is no share,
    or lacks this member; a neighbour in it who did not mask with this member, or does not say so.
    AuthenticationError: a bad signature. QuorumError: a set that is smaller than `min_set`, or than the
    threshold around this member.
    """
    plan, me = state.plan, state.rank
    bits = to_bits(plan, senders)
    if me not in senders:
        raise ProtocolError("the set of senders lacks this member, whose vector was sent")
    near = set(plan.graph.around(me)).intersection(senders)
    if unknown := near - state.shares.keys():
        raise ProtocolError(
            f"the set of senders has rank {min(unknown)}, of whom there is no share"
        )
    if len(senders) < plan.min_set:
        raise QuorumError(f"a set of {len(senders)} senders, {plan.min_set} are needed")
    plan.need(len(near), "are in the set of senders")
    said = {me}
    for message in statements:
        rank, masked_with = plan.read(WITH, message, MAX_MESSAGE, near)
        if not int.from_bytes(masked_with, "little") >> me & 1:
            raise ProtocolError(f"{WITH}: rank {rank} did not mask with this member: start over")
        said.add(rank)
    if silent := near - said:
        raise ProtocolError(f"{WITH}: the message of rank {min(silent)} is missing")
    return replace(state, senders=tuple(senders)), state.signed(SET, bits)


def unmask(state: State, signatures: Iterable[bytes]) -> bytes:
    """Take neighbours' "mask-set" messages; returns the "mask-open", for the server.

    The own signature counts, and is not among them.

    Raises ProtocolError: a signature by somebody who is no neighbour or not in the set, on another set,
    or of another sum. AuthenticationError: a bad signature. QuorumError: fewer than the threshold.
    """
    plan, me = state.plan, state.rank
    bits, chosen = to_bits(plan, state.senders), frozenset(state.senders)
    signers, allowed = {me}, chosen.intersection(plan.graph.neighbours(me))
    for message in signatures:
        rank, signed = plan.read(SET, message, MAX_MESSAGE, allowed)
        if signed != bits:
            raise ProtocolError(f"{SET}: rank {rank} signed another set of senders: start over")
        signers.add(rank)
    plan.need(len(signers), "have signed the set of senders")
    owners = sorted(state.shares)
    halves = (slice(0, SEED) if rank in chosen else slice(SEED, None) for rank in owners)
    given = [state.shares[rank][half] for rank, half in zip(owners, halves, strict=True)]
    return state.signed(OPEN, dumps([bits, to_bits(plan, owners), b"".join(given)]))


def read_key(plan: Plan, message: bytes, allowed: Collection[int]) -> tuple[int, bytes, bytes]:
    """Verify a "mask-key"; returns its sender's rank, X25519 key and commitment, for server too."""
    rank, payload = plan.read(KEY, message, MAX_MESSAGE, allowed)
    match loads(payload, MAX_MESSAGE, KEY):
        case [bytes(public), bytes(committed)] if len(committed) == 32:
            check_ephemeral(public)
            check_order(public)
            return rank, public, committed
    raise ProtocolError(f"{KEY} message of rank {rank}: not two strings of 32 bytes")


def check_order(public: bytes) -> None:
    """Raise ProtocolError for a public key of low order, which gives everybody one secret with anybody.

    So its owner is told apart from those who could do nothing with it.
    """
    try:  # any secret will do: a point of low order gives zero with all of them (RFC 7748, Sec. 6.1)
        shared = X25519PrivateKey.from_private_bytes(bytes(range(32))).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        shared = b""
    if not any(shared):
        raise ProtocolError("an ephemeral key is of low order")


def to_bits(plan: Plan, ranks: Sequence[int]) -> bytes:
    """A set of ranks, one bit each; rank 0 is the lowest bit of the first byte.

    Raises ProtocolError unless they ascend, each a member's.
    """
    count = len(plan.members)
    if not all(0 <= r < count for r in ranks) or any(b <= a for a, b in itertools.pairwise(ranks)):
        raise ProtocolError(f"a set of senders: ranks below {count} are needed, ascending")
    return sum(1 << r for r in ranks).to_bytes(-(-count // 8), "little")


def from_bits(plan: Plan, bits: bytes) -> tuple[int, ...]:
    """Inverse of `to_bits`; ProtocolError for what it does not write."""
    count = len(plan.members)
    number = int.from_bytes(bits, "little")
    if len(bits) != -(-count // 8) or number >> count:
        raise ProtocolError(f"a set of ranks: {count} bits are needed, in whole bytes")
    return tuple(rank for rank, bit in enumerate(reversed(f"{number:b}")) if bit == "1")


def _fresh() -> Secret:
    """32 secret bytes that are four field elements: all but 2**-30 of what 32 bytes can be."""
    return Secret(random_elements(SEED // 8).astype("<u8").tobytes())


def _elements(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(data, "<u8").astype(np.uint64)
