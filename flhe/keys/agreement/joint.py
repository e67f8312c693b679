"""Joint keys without a dealer: members learn s = sum of s_i, and nothing more about each s_i.

    JOINT      i -> all   AEAD(K_G, v_i),   v_i = s_i + sum over j > i of P_ij - sum over j < i of P_ij
    JOINT-SUM  i -> all   HMAC(K_G, "joint" | epoch | s)          s = sum of v_i, coefficients mod 2^32

    P_ij = AES-256-CTR under HKDF(k_ij, "joint" | epoch), 32-bit lanes: each is added once and
    subtracted once

As long as two members keep their masks secret, others learn only the sum of those two keys (ESAFL,
Theorem 5, for one epoch; docs/protocol.md covers a server that begins several). Each member checks
that s is as wide as a sum of N keys, and contains its own v_i.

Masks belong to one key agreement, with fresh X25519 keys behind k_ij. If asked twice in one
agreement, a member masks the same s_i again, so sends the same v_i. One mask on two keys would
reveal their difference. Alternatively, a trusted dealer makes keys offline (`dealt.py`): then there
is no JOINT.

Source: ESAFL, Sec. 6, "performing by the clients" (which leaves the protocol open); pairwise masks:
Bonawitz et al., CCS 2017, Sec. 4; docs/protocol.md.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.keys.agreement import broadcast
from flhe.keys.agreement.pairs import open_from, seal_to
from flhe.keys.agreement.states import Epoch
from flhe.keys.identity import Identity
from flhe.math.keystream import BLOCK, Stream
from flhe.schemes.keyed import JointKey
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random

STAGE, SUM = "joint", "joint-sum"
MAX_SHARE = 1 << 18
"""Maximum length of a JOINT, bytes; one takes 4 bytes a coefficient and some 700."""

Lanes = NDArray[np.uint32]
Own = NDArray[np.int8]


def share(
    identity: Identity, agreed: Epoch, adder: Any, random: Random = secrets.token_bytes
) -> tuple[Epoch, bytes]:
    """Draw s_i; return the epoch with it, and the JOINT.

    Raises ProtocolError: keys were drawn for another ring, or the sum is known already.
    """
    if agreed.scheme_public:
        raise ProtocolError("the sum of keys is known in this key agreement: start over")
    if not agreed.scheme_secret:
        agreed = replace(agreed, scheme_secret=adder.draw_own(random).tobytes())
    masked = _masked(agreed, _own_in(agreed, adder))
    head = broadcast.header_of(agreed, STAGE, identity.public)
    box = seal_to(agreed.group_key, head, masked, random)
    return agreed, broadcast.signed(identity, agreed, STAGE, box)


def add(
    identity: Identity, agreed: Epoch, messages: list[bytes], adder: Any
) -> tuple[Epoch, bytes]:
    """Take all JOINTs, own included, in any order; return the epoch and the JOINT-SUM.

    Raises AuthenticationError: a signature or a box that does not verify; ProtocolError: a message
    missing, repeated, changed or of another exchange; a sum that is not a sum of keys.
    """
    own = _own_in(agreed, adder)
    expect = broadcast.header_of(agreed, STAGE, agreed.members[0])
    total = np.zeros(adder.dimension, np.uint32)
    for rank, envelope in broadcast.one_each(agreed, messages, expect, MAX_SHARE).items():
        plain = open_from(agreed.group_key, envelope.header, envelope.payload)
        if len(plain) != 4 * total.size:
            raise ProtocolError(
                f"the JOINT by {agreed.roster.name(agreed.members[rank])} has another length"
            )
        if rank == agreed.rank and not hmac.compare_digest(plain, _masked(agreed, own)):
            raise ProtocolError("own JOINT was changed on the way: start over")
        total += np.frombuffer(plain, "<u4")
    return _with_sum(identity, agreed, JointKey(own, total.view(np.int32)), adder)


def take(identity: Identity, agreed: Epoch, key: JointKey, adder: Any) -> tuple[Epoch, bytes]:
    """Take offline dealt keys, in place of `share` and `add`; return the epoch and the JOINT-SUM.

    Raises ProtocolError: keys that no honest dealer makes; keys were drawn in this agreement.
    """
    if agreed.scheme_secret and not agreed.scheme_public:
        raise ProtocolError("keys were drawn in this key agreement, so dealt keys are refused")
    return _with_sum(identity, agreed, key, adder)


def _own_in(agreed: Epoch, adder: Any) -> Own:
    """Return the member's key, whether the sum is known or not."""
    if agreed.scheme_public:
        return JointKey.from_bytes(agreed.scheme_secret).own
    if not agreed.scheme_secret:
        raise ProtocolError("no key was drawn in this key agreement: start over")
    key = np.frombuffer(agreed.scheme_secret, np.int8)
    if key.size != adder.dimension:
        raise ProtocolError("keys were drawn for another ring: start over")
    adder.check_own(key)
    return key


def _with_sum(identity: Identity, agreed: Epoch, key: JointKey, adder: Any) -> tuple[Epoch, bytes]:
    """Check the keys, store them, and return the JOINT-SUM with the name of their sum."""
    key.check(adder)
    # Equal for all members with the same sum, and meaningless without K_G.
    mac_key = hkdf(agreed.group_key, SUM, agreed.run_id, agreed.roster.hash, agreed.id)
    name = hmac.digest(mac_key, key.total.astype("<i4").tobytes(), "sha256")
    if agreed.scheme_public and not hmac.compare_digest(agreed.scheme_public, name):
        raise ProtocolError("a second sum of keys in one key agreement: start over")
    agreed = replace(agreed, scheme_public=name, scheme_secret=key.to_bytes())
    return agreed, broadcast.signed(identity, agreed, SUM, broadcast.Digest(name).to_bytes())


def _masked(agreed: Epoch, own: Own) -> bytes:
    """Return v_i: the member's key under the masks of all pairs, little-endian 32-bit lanes."""
    lanes: Lanes = own.astype(np.int32).view(np.uint32).copy()
    for rank, key in enumerate(agreed.pair_keys):
        if rank != agreed.rank:
            mask = _mask(agreed, key, lanes.size)
            (np.add if rank > agreed.rank else np.subtract)(lanes, mask, out=lanes)
    return lanes.astype("<u4").tobytes()


def _mask(agreed: Epoch, pair_key: bytes, count: int) -> Lanes:
    key = hkdf(pair_key, "joint", agreed.run_id, agreed.roster.hash, agreed.id)
    data = np.empty(4 * count + BLOCK, np.uint8)
    # Stream 0 from block 0: safe because the key is derived for this one mask of one agreement.
    Stream(key, 0).into(data, 4 * count)
    return data[: 4 * count].view(np.dtype("<u4"))
