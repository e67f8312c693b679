"""Group key agreement through an untrusted relay: advertise, share, confirm.

Every member i makes an ephemeral X25519 key and 32 random bytes r_i; the server only carries
messages.

    ADVERTISE  i -> all   ephemeral key, nonce                         T1 = H(members | ADVERTISEs)
    SHARE      i -> j     AEAD(k_ij, r_i), header as AAD, i < 8        T2 = H(T1 | SHAREs)
    CONFIRM    i -> all   T2, HMAC under a key of K_G                  id = H(T2)[:16]

    k_ij = HKDF(X25519(i, j), salt=T1, "pair" | min | max)
    K_G  = HKDF(r_1 | ... | r_8, salt=T2, "group")

The first `CONTRIBUTORS` members contribute. Every member knows K_G in the end, so more contributors
would not make it more secret. Every SHARE goes to all members. T1 contains every nonce, so a key is
never an old one.

Each step is a pure function (identity, state, inbound) -> (state, outbound). All messages are
signed envelopes. A server may swap a key, drop, repeat or replay a message, or show two members
different lists. Each of these changes T1 or T2 for a member: then views differ, CONFIRM fails and
the epoch never starts. After an error at any step, erase the state and start over with fresh keys.

Source: docs/protocol.md; SIGMA (Krawczyk, CRYPTO 2003) for signing the common transcript and MACing
the identity; RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flhe.errors import AuthenticationError, ProtocolError, QuorumError
from flhe.keys.agreement.broadcast import header_of, one_each, signed
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope
from flhe.keys.agreement.pairs import (
    check_ephemeral,
    check_usable,
    open_from,
    pair_key,
    seal_to,
)
from flhe.keys.agreement.states import Advertised, Confirmed, Epoch, Shared
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import MAX_MEMBERS, Roster
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX, hash_of, hkdf
from flhe.wire.fields import Hash
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

ADVERTISE, SHARE, CONFIRM = "advertise", "share", "confirm"

CONTRIBUTORS = 8
"""Members whose random bytes make the group key, in order of rank; all of them in smaller groups."""

__all__ = ["Advertised", "Confirmed", "Epoch", "Shared", "advertise", "confirm", "finish", "share"]


@dataclass(frozen=True, slots=True)
class _Hello(Record):
    """Payload of an ADVERTISE."""

    FORM = Form("ADVERTISE", row=True)

    ephemeral: Hash
    nonce: Hash


@dataclass(frozen=True, slots=True)
class _Proof(Record):
    """Payload of a CONFIRM."""

    FORM = Form("CONFIRM", row=True)

    t2: Hash
    mac: Hash


def advertise(
    identity: Identity,
    run_id: int,
    epoch_number: int,
    roster: Roster | None,
    contract: bytes,
    random: Random = secrets.token_bytes,
) -> tuple[Advertised, bytes]:
    """Start an epoch: return the state to keep and the ADVERTISE for all members.

    `contract` is the hash of the run's terms, 32 bytes. Every message of this agreement is signed
    for it, so members with different contracts share no key. With `roster=None`
    (`trust="first-use"`) all advertisers are members.

    Raises ProtocolError: `identity` is not in the roster, or was revoked in it.
    """
    if roster is not None:
        roster.rank(identity.public)
    secret = random(32)
    ephemeral = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    state = Advertised(identity.public, run_id, epoch_number, contract, roster, secret, b"")
    message = signed(identity, state, ADVERTISE, _Hello(ephemeral, random(32)).to_bytes())
    return replace(state, message=message), message


def share(
    identity: Identity,
    state: Advertised,
    advertises: list[bytes],
    random: Random = secrets.token_bytes,
) -> tuple[Shared, list[bytes]]:
    """Take all ADVERTISEs, own included, in any order; return a SHARE for each other member.

    Only contributors send any; for other members the list is empty.

    Raises AuthenticationError: own message missing or changed, a bad signature, a key that gives no
    secret; ProtocolError: a message of another run, epoch or roster, or by a revoked key; a
    repeated member or ephemeral key; QuorumError: fewer members than the roster's bounds need.
    """
    if len(advertises) > MAX_MEMBERS:
        raise ProtocolError(f"{len(advertises)} ADVERTISE messages, at most {MAX_MEMBERS} fit")
    if state.message not in advertises:
        raise AuthenticationError("own ADVERTISE is missing or was changed on the way: start over")
    me = state.identity
    listed = None if state.roster is None else frozenset(state.roster.publics)
    expect = header_of(state, ADVERTISE, me).expected()
    messages: dict[bytes, bytes] = {}
    ephemerals: dict[bytes, bytes] = {}
    for data in advertises:
        envelope = Envelope.from_bytes(data, MAX_MESSAGE)
        sender = envelope.header.sender
        if state.roster is not None:  # before the header check, for a clearer error
            state.roster.check_not_revoked(sender)
        envelope.verify(expect, senders=listed)
        if sender in messages:
            raise ProtocolError(f"two ADVERTISE messages by {sender.hex()[:16]}: start over")
        messages[sender] = data
        ephemerals[sender] = _Hello.from_bytes(envelope.payload).ephemeral
        check_ephemeral(ephemerals[sender])
    if len(set(ephemerals.values())) < len(ephemerals):
        raise ProtocolError("two members advertise one ephemeral key: start over with fresh keys")
    members = tuple(sorted(messages))
    roster = state.roster or Roster.first_use(members)
    if len(members) < roster.min_members:
        raise QuorumError(
            f"{len(members)} members answered, {roster.min_members} are needed: "
            "wait for more nodes, or agree on a roster with lower bounds"
        )

    t1 = hash_of("t1", roster.hash, list(members), [messages[m] for m in members])
    scope = (state.run_id, roster.hash)
    pair_keys = tuple(
        b"" if peer == me else pair_key(state.secret, ephemerals[peer], (me, peer), t1, scope)
        for peer in members
    )
    contribution, outbound, rank = random(32), [], members.index(me)
    head = header_of(replace(state, roster=roster), SHARE, me)
    for peer, key in zip(members, pair_keys, strict=True):
        if peer != me and rank < CONTRIBUTORS:
            header = replace(head, receiver=peer)
            payload = seal_to(key, header, contribution, random)
            outbound.append(Envelope.seal(identity, header, payload).to_bytes())
    shared = Shared(
        identity=state.identity,
        run_id=state.run_id,
        number=state.number,
        contract=state.contract,
        roster=roster,
        members=members,
        rank=rank,
        t1=t1,
        pair_keys=pair_keys,
        contribution=contribution,
        sent=hash_of("sent", outbound),
    )
    return shared, outbound


def confirm(identity: Identity, state: Shared, shares: list[bytes]) -> tuple[Confirmed, bytes]:
    """Take the SHAREs of all to all members, in any order; return the CONFIRM for all members.

    A member verifies the signatures of SHAREs to itself. T2 binds the others: each receiver
    verifies its own, and no epoch starts without its CONFIRM. (Verifying all would take N^2
    checks.)

    Raises ProtocolError for a message missing, repeated or of another exchange, AuthenticationError
    for one that was changed, own messages included.
    """
    me, members = state.identity, state.members
    known = frozenset(members)
    contributors = members[:CONTRIBUTORS]
    need = len(contributors) * (len(members) - 1)
    if len(shares) != need:
        raise ProtocolError(f"{len(shares)} SHARE messages, {need} are needed: start over")
    expect = header_of(state, SHARE, me).expected("receiver")  # in turn, every member
    digests: dict[tuple[bytes, bytes], bytes] = {}
    sent: dict[bytes, bytes] = {}
    inbox: dict[bytes, Envelope] = {}
    for data in shares:
        envelope = Envelope.from_bytes(data, MAX_MESSAGE)
        envelope.header.check(expect)
        sender, receiver = envelope.header.sender, envelope.header.receiver
        if sender not in known or receiver not in known or sender == receiver:
            raise ProtocolError("a SHARE that is not between two members of this epoch")
        if sender not in contributors:
            raise ProtocolError("a SHARE by a member that contributes nothing to the key")
        if (sender, receiver) in digests:
            raise ProtocolError(f"two SHARE messages of one pair, by {state.roster.name(sender)}")
        digests[sender, receiver] = hashlib.sha256(data).digest()
        if sender == me:
            sent[receiver] = data
        if receiver == me:
            envelope.verify({}, senders=known)
            inbox[sender] = envelope
    mine = [sent[m] for m in members if m != me] if me in contributors else []
    if hash_of("sent", mine) != state.sent:
        raise AuthenticationError("own SHARE messages were changed on the way: start over")

    t2 = hash_of("t2", state.t1, [digests[pair] for pair in sorted(digests)])
    secret = b"".join(
        state.contribution if m == me else _contribution(state.pair_keys[i], inbox[m])
        for i, m in enumerate(contributors)
    )
    group_key = hkdf(secret, "group", state.run_id, state.roster.hash, state.number, salt=t2)
    payload = _Proof(t2, _mac(_mac_key(state, group_key), t2, me)).to_bytes()
    message = signed(identity, state, CONFIRM, payload)
    confirmed = Confirmed(
        **state.common(), identity=state.identity, t2=t2, group_key=group_key, message=message
    )
    return confirmed, message


def finish(state: Confirmed, confirms: list[bytes]) -> Epoch:
    """Take all CONFIRMs, own included, in any order; return the epoch that all agree on.

    Raises AuthenticationError naming the member with other messages or another key, ProtocolError
    for a message missing, repeated or of another exchange. Encrypt nothing under the group key
    before this step returns.
    """
    found = one_each(state, confirms, header_of(state, CONFIRM, state.identity))
    if state.message not in confirms:
        raise AuthenticationError("own CONFIRM was changed on the way: start over")
    key = _mac_key(state, state.group_key)  # once: the roster is hashed for it
    for rank, envelope in found.items():
        sender = state.members[rank]
        proof = _Proof.from_bytes(envelope.payload)
        if not hmac.compare_digest(proof.t2, state.t2):
            raise AuthenticationError(f"{state.roster.name(sender)} saw other messages: start over")
        if not hmac.compare_digest(proof.mac, _mac(key, state.t2, sender)):
            raise AuthenticationError(f"{state.roster.name(sender)} holds another key: start over")
    return Epoch(
        id=_epoch_id(state.t2),
        **state.common(),
        group_key=state.group_key,
        scheme_public=state.scheme_public,
        scheme_secret=state.scheme_secret,
    )


def advertised(message: bytes) -> bytes:
    """Return the ephemeral key of an ADVERTISE, for a relay; ProtocolError if no member can use it."""
    hello = _Hello.from_bytes(Envelope.from_bytes(message, MAX_MESSAGE).payload)
    check_usable(hello.ephemeral)
    return hello.ephemeral


def announced(message: bytes) -> tuple[bytes, bytes]:
    """Return the roster hash and epoch id of a CONFIRM, for a relay; members call `finish`."""
    envelope = Envelope.from_bytes(message, MAX_MESSAGE)
    return envelope.header.roster_hash, _epoch_id(_Proof.from_bytes(envelope.payload).t2)


def _epoch_id(t2: bytes) -> bytes:
    return hash_of("epoch-id", t2)[:16]


def _contribution(key: bytes, envelope: Envelope) -> bytes:
    plain = open_from(key, envelope.header, envelope.payload)
    if len(plain) != 32:  # r_1 | ... | r_M is unambiguous because each has one length
        raise ProtocolError("SHARE: a contribution must be 32 bytes")
    return plain


def _mac_key(state: Shared | Confirmed, group_key: bytes) -> bytes:
    """Return the key of confirmations."""
    return hkdf(group_key, "confirm", state.run_id, state.roster.hash, state.number)


def _mac(key: bytes, t2: bytes, sender: bytes) -> bytes:
    """Return the confirmation of `sender`, over its own key to prevent reflection."""
    return hmac.digest(key, dumps([PREFIX + "confirm", t2, sender]), "sha256")
