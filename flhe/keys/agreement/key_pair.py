"""A scheme's own key pair, made by one member for all: the group key carries it.

    KEY-PAIR  lowest rank -> all   public key, seal(K_G, secret key), signed over both

A scheme whose ciphertexts are opened with a key pair (Paillier, CKKS) gets a fresh one in each
epoch. The member of the lowest rank makes it, never the server, once everybody's CONFIRM is there: no
secret is sealed for a group that has not agreed. The others check those CONFIRMs too, then the pair,
which they try out. Asked twice in one agreement, the member seals the same pair again.

Source: BatchCrypt, Algorithm 1 (the leader client); docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Annotated

from flhe.errors import ProtocolError
from flhe.keys import seal
from flhe.keys.agreement import broadcast, epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.states import Confirmed, Epoch
from flhe.keys.roles import check_pair
from flhe.schemes.base import KeyPairAdder
from flhe.wire.fields import Rule
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

STAGE = "key-pair"
MAX_PAIR = 1 << 20
"""Longest such message, bytes; one of Paillier takes some 2000."""


@dataclass(frozen=True, slots=True)
class _Pair(Record):
    FORM = Form("KEY-PAIR", MAX_PAIR, row=True)

    public: Annotated[bytes, Rule("a public key", bool)]
    box: bytes


def make(
    state: Confirmed,
    confirms: list[bytes],
    adder: KeyPairAdder,
    random: Random = secrets.token_bytes,
) -> tuple[Confirmed, bytes]:
    """Make the pair of an epoch that all have confirmed; returns the state to keep and the message.

    `confirms` are everyone's, the adder has no key yet.

    Raises ProtocolError: this member's rank is not the lowest, or the confirmations are not those of
    `epoch.finish`.
    """
    agreed = epoch.finish(state, confirms)
    if agreed.rank != 0:
        raise ProtocolError("the key pair is made by the member of the lowest rank")
    if not state.scheme_secret:
        public, secret = adder.new_pair(random)
        state = replace(state, scheme_public=public, scheme_secret=secret)
    public = state.scheme_public
    box = seal.seal(agreed.group_key, _box_header(agreed, public), state.scheme_secret, random)
    return state, broadcast.signed(state, agreed, STAGE, _Pair(public, box))


def take(state: Confirmed, confirms: list[bytes], message: bytes, adder: KeyPairAdder) -> Confirmed:
    """Take the pair that the member of the lowest rank made, once it has proved sound.

    Raises AuthenticationError: a signature or a box that does not verify; ProtocolError: a message of
    another exchange or member, or a pair that no honest member makes; another pair than was taken
    before in this agreement.
    """
    agreed = epoch.finish(state, confirms)
    envelope = Envelope.from_bytes(message, MAX_PAIR)
    maker = agreed.members[0]
    envelope.verify(broadcast.header(agreed, STAGE, maker).expected(), senders=[maker])
    pair = _Pair.from_bytes(envelope.payload)
    public = pair.public
    _, secret = seal.unseal(agreed.group_key, pair.box, _box_header(agreed, public))
    taken = replace(state, scheme_public=public, scheme_secret=secret)
    if not state.scheme_secret:
        check_pair(adder, public, secret)
    elif not hmac.compare_digest(taken.to_bytes(), state.to_bytes()):
        raise ProtocolError("a second key pair in one key agreement: start over")
    return taken


def announced(message: bytes, sender: bytes, scope: broadcast.Scope) -> bytes:
    """Public key that a KEY-PAIR speaks of: what a relay can know, and all that it needs.

    Raises ProtocolError, AuthenticationError: a message of another exchange, or not by `sender`.
    """
    return _Pair.from_bytes(broadcast.read(message, MAX_PAIR, STAGE, sender, scope)).public


def _box_header(agreed: Epoch, public: bytes) -> dict[str, int | str | bytes]:
    return broadcast.box_header(agreed, STAGE, 0, public=hashlib.sha256(public).digest())
