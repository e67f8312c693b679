"""Shares of a seed: as bytes, and sealed for the one member that gets one.

    key = HKDF(k_ij, "kshare" | slot | sender | receiver)
    box = nonce | ChaCha20-Poly1305(key, nonce, elements, AAD = slot)

Source: docs/protocol.md; RFC 8439.
"""

from __future__ import annotations

import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flhe.errors import AuthenticationError, ProtocolError
from flhe.math.ring import Q
from flhe.math.ring_arrays import Elements
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random

_NONCE, _TAG = 12, 16
OVERHEAD = _NONCE + _TAG
"""Bytes that a sealed share is longer than the share."""


def pack_elements(elements: Elements) -> bytes:
    """A share as it travels."""
    return elements.astype("<u8").tobytes()


def unpack_elements(data: bytes, count: int) -> Elements:
    """Field elements out of `pack_elements`; ProtocolError for another number, or one not reduced."""
    if len(data) != 8 * count:
        raise ProtocolError(f"a share of {len(data)} bytes, {8 * count} were expected")
    elements = np.frombuffer(data, "<u8").astype(np.uint64)
    if np.any(elements >= np.uint64(Q)):
        raise ProtocolError("a share holds what is no field element")
    return elements


def _pair_box(pair_key: bytes, name: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """One key for each slot and direction."""
    return ChaCha20Poly1305(hkdf(pair_key, "kshare", name, sender, receiver))


def seal_share(
    pair_key: bytes,
    name: bytes,
    sender: int,
    receiver: int,
    share: bytes,
    random: Random = secrets.token_bytes,
) -> bytes:
    """One share for one receiver, by rank; `name` is the slot's digest."""
    # The key is for one share. The nonce is random all the same: a step that is run twice after a crash
    # must not encrypt two shares under one key and nonce.
    nonce = random(_NONCE)
    return nonce + _pair_box(pair_key, name, sender, receiver).encrypt(nonce, share, name)


def open_share(pair_key: bytes, name: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """What `seal_share` sealed; AuthenticationError for anything else."""
    try:
        if len(box) < OVERHEAD:
            raise InvalidTag
        cipher = _pair_box(pair_key, name, sender, receiver)
        return cipher.decrypt(box[:_NONCE], box[_NONCE:], name)
    except InvalidTag:
        raise AuthenticationError("a share does not open") from None
