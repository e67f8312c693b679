"""Secrets between two members, or for all of them.

    k_ij = HKDF(X25519(i, j), salt=T1, "pair" | min(i, j) | max(i, j) | run_id | roster_hash)
    key  = HKDF(k_ij, "pair-aead" | header of the message, sender and receiver in it)
    box  = nonce | ChaCha20-Poly1305(key, nonce, plaintext, AAD = header)

For a secret for all members, K_G replaces k_ij. Each direction and each message header has its own
key. The nonce is random all the same: a step that runs twice after a crash must not encrypt two
secrets under one key and nonce. The same holds for a share of a seed, where the slot and both ranks
replace the header:

    key  = HKDF(k_ij, "kshare" | slot | sender | receiver)
    box  = nonce | ChaCha20-Poly1305(key, nonce, elements, AAD = slot)

Some shares do not travel: both members expand one from a key that they derive. The nonce of an empty
box makes it another one in each dealing, and the box proves that there was one.

    key  = HKDF(k_ij, "kshare-derived" | slot | sender | receiver | nonce of the box)

Source: RFC 7748 (X25519; Sec. 6.1 asks to refuse an all-zero secret), RFC 8439.
"""

from __future__ import annotations

import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.agreement.messages import Header
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, Q
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random, Secret

OVERHEAD = 28
"""Bytes by which a box exceeds its plaintext: nonce 12, tag 16."""

_NONCE = 12
_P = 2**255 - 19


def check_ephemeral(public: bytes) -> None:
    """Raise ProtocolError unless `public` is 32 bytes that X25519 itself would write.

    X25519 accepts other spellings of the same point; with those, one key could pass for two.
    """
    if len(public) != 32 or int.from_bytes(public, "little") >= _P:
        raise ProtocolError("an ephemeral key is not 32 bytes in canonical form")


def check_usable(public: bytes) -> None:
    """Raise ProtocolError as `check_ephemeral`, or for a key that gives no secret with any other."""
    check_ephemeral(public)
    # Any private key shows it, so a fixed one is safe: nothing is derived from the secret.
    try:
        X25519PrivateKey.from_private_bytes(bytes(32)).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise ProtocolError("an ephemeral key gives no secret") from None


def pair_key(
    secret: bytes,
    ephemeral: bytes,
    pair: tuple[bytes, bytes],
    transcript: bytes,
    scope: tuple[int, bytes],
) -> Secret:
    """Agree on k_ij from our X25519 `secret` and the peer's `ephemeral` key.

    `pair` is (our, the peer's) Ed25519 key, `transcript` is T1, `scope` is (run_id, roster_hash).

    Raises AuthenticationError naming the peer if its key gives an all-zero secret.
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(ephemeral)
        )
        if not any(shared):
            raise ValueError
    except ValueError:  # low order: the secret would be public
        raise AuthenticationError(
            f"the ephemeral key of {pair[1].hex()[:16]} gives no secret: start over without it"
        ) from None
    low, high = sorted(pair)
    return hkdf(shared, "pair", low, high, *scope, salt=transcript)


def seal_to(
    key: bytes, header: Header, plaintext: bytes, random: Random = secrets.token_bytes
) -> bytes:
    """Encrypt `plaintext` for `header.receiver` under k_ij, or for everyone under K_G."""
    aad = header.to_bytes()
    return boxed(hkdf(key, "pair-aead", aad), plaintext, aad, random)


def open_from(key: bytes, header: Header, box: bytes) -> Secret:
    """Decrypt a box of `header.sender` under `key`. Raises AuthenticationError naming it."""
    aad = header.to_bytes()
    says = (
        f"{header.stage} message by {header.sender.hex()[:16]}: it does not decrypt, it was "
        "changed or its sender saw other messages than we did: start over"
    )
    return unboxed(hkdf(key, "pair-aead", aad), box, aad, says)


def seal_share(
    key: bytes,
    name: bytes,
    sender: int,
    receiver: int,
    share: bytes,
    random: Random = secrets.token_bytes,
) -> bytes:
    """Encrypt a share of a seed under k_ij, for one rank; `name` is the slot's digest."""
    return boxed(hkdf(key, "kshare", name, sender, receiver), share, name, random)


def open_share(key: bytes, name: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """Decrypt what `seal_share` encrypted; AuthenticationError for anything else."""
    says = "a share does not open"
    return unboxed(hkdf(key, "kshare", name, sender, receiver), box, name, says)


def derived_share(
    key: bytes, name: bytes, sender: int, receiver: int, box: bytes, width: int
) -> Elements:
    """Return a share of a seed that sender and receiver derive beside a box, uint64 (width,)."""
    elements = FieldElements(hkdf(key, "kshare-derived", name, sender, receiver, box[:_NONCE]))
    share: Elements = elements.blocks(0, 1, width)[0]
    return share


def pack_elements(elements: Elements) -> bytes:
    """Return a share as it travels."""
    return elements.astype("<u8").tobytes()


def unpack_elements(data: bytes, count: int) -> Elements:
    """Invert `pack_elements`; ProtocolError for another count, or an unreduced element."""
    if len(data) != 8 * count:
        raise ProtocolError(f"a share of {len(data)} bytes, {8 * count} were expected")
    elements = np.frombuffer(data, "<u8").astype(np.uint64)
    if np.any(elements >= np.uint64(Q)):
        raise ProtocolError("a share holds what is no field element")
    return elements


def boxed(key: bytes, plaintext: bytes, aad: bytes, random: Random) -> bytes:
    """Seal under a key of one message, behind a random nonce; see the module."""
    nonce = random(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, aad)


def unboxed(key: bytes, box: bytes, aad: bytes, says: str) -> Secret:
    """Invert `boxed`; AuthenticationError with the text `says` for anything else."""
    try:
        if len(box) < OVERHEAD:
            raise InvalidTag
        return Secret(ChaCha20Poly1305(key).decrypt(box[:_NONCE], box[_NONCE:], aad))
    except InvalidTag:
        raise AuthenticationError(says) from None
