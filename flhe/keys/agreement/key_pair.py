"""A scheme's own key pair, made by one member for all: the group key carries it.

    KEY-PAIR  lowest rank -> all   public key, AEAD(K_G, secret key), signed over both

A scheme whose ciphertexts are opened with a key pair (Paillier, CKKS) gets a fresh one in each
epoch. The member of the lowest rank makes it, never the server; the others test it before they
accept it. If asked twice in one agreement, the member seals the same pair again.

Source: BatchCrypt, Algorithm 1 (the leader client); docs/protocol.md.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Annotated

from flhe.errors import ProtocolError
from flhe.keys.agreement import broadcast
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.keys.agreement.states import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roles import check_pair
from flhe.schemes.keyed import KeyPairAdder
from flhe.wire.fields import Rule
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

STAGE = "key-pair"
MAX_PAIR = 1 << 20
"""Maximum length of such a message, bytes; one of Paillier takes some 2000."""


@dataclass(frozen=True, slots=True)
class _Pair(Record):
    FORM = Form("KEY-PAIR", MAX_PAIR, row=True)

    public: Annotated[bytes, Rule("a public key", bool)]
    box: bytes


def make(
    identity: Identity, agreed: Epoch, adder: KeyPairAdder, random: Random = secrets.token_bytes
) -> tuple[Epoch, bytes]:
    """Make the pair; return the epoch with it, and the message. The adder has no key yet.

    Raises ProtocolError: this member's rank is not the lowest.
    """
    if agreed.rank != 0:
        raise ProtocolError("the key pair is made by the member of the lowest rank")
    if not agreed.scheme_secret:
        public, secret = adder.new_pair(random)
        agreed = replace(agreed, scheme_public=public, scheme_secret=secret)
    head = broadcast.header_of(agreed, STAGE, identity.public)
    box = seal_to(agreed.group_key, head, agreed.scheme_secret, random)
    pair = _Pair(agreed.scheme_public, box)
    return agreed, broadcast.signed(identity, agreed, STAGE, pair.to_bytes())


def take(agreed: Epoch, message: bytes, adder: KeyPairAdder) -> Epoch:
    """Accept the pair that the member of the lowest rank made, after checking it.

    Raises AuthenticationError: a signature or a box that does not verify; ProtocolError: a message
    of another exchange or member, or a pair that no honest member makes; another pair than the one
    accepted before in this agreement.
    """
    envelope = Envelope.from_bytes(message, MAX_PAIR)
    maker = agreed.members[0]
    envelope.verify(broadcast.header_of(agreed, STAGE, maker).expected(), senders=[maker])
    pair = _Pair.from_bytes(envelope.payload)
    secret = open_from(agreed.group_key, envelope.header, pair.box)
    taken = replace(agreed, scheme_public=pair.public, scheme_secret=secret)
    if not agreed.scheme_secret:
        check_pair(adder, pair.public, secret)
    elif not hmac.compare_digest(taken.to_bytes(), agreed.to_bytes()):
        raise ProtocolError("a second key pair in one key agreement: start over")
    return taken


def announced(message: bytes, sender: bytes, scope: broadcast.Scope) -> bytes:
    """Return the public key in a KEY-PAIR, which is all that a relay needs.

    Raises ProtocolError, AuthenticationError: a message of another exchange, or not by `sender`.
    """
    return _Pair.from_bytes(broadcast.read(message, MAX_PAIR, STAGE, sender, scope)).public
