"""Shares of a seed: as bytes, and sealed for the one member that gets one.

    key = HKDF(k_ij, "kshare" | slot | sender | receiver)
    box = nonce | ChaCha20-Poly1305(key, nonce, elements, AAD = slot)

Source: docs/protocol.md; RFC 8439.
"""

from __future__ import annotations

import secrets

import numpy as np

from flhe.errors import ProtocolError
from flhe.keys.agreement.pairs import boxed, unboxed
from flhe.math.ring import Q
from flhe.math.ring_arrays import Elements
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random


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


def seal_share(
    pair_key: bytes,
    name: bytes,
    sender: int,
    receiver: int,
    share: bytes,
    random: Random = secrets.token_bytes,
) -> bytes:
    """One share for one receiver, by rank; `name` is the slot's digest."""
    return boxed(hkdf(pair_key, "kshare", name, sender, receiver), share, name, random)


def open_share(pair_key: bytes, name: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """What `seal_share` sealed; AuthenticationError for anything else."""
    key = hkdf(pair_key, "kshare", name, sender, receiver)
    return unboxed(key, box, name, "a share does not open")
