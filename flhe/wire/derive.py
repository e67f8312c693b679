"""Key derivation: HKDF-SHA256 with one label a use.

    key = HKDF(salt, secret, info = CBOR ["flhe/v1/" + label, context...])

The info is one canonical CBOR array, so ("ab", "c") and ("a", "bc") derive different keys. By our
convention every context holds run_id and roster_hash.

Source: RFC 5869; docs/protocol.md.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flhe.errors import ConfigError
from flhe.wire.canonical import dumps
from flhe.wire.secret import Secret

PREFIX = "flhe/v1/"
"""Starts every label that is hashed, signed or derived under."""

Context = int | bytes | str
"""Type of a derivation's context values."""


def hash_of(label: str, *parts: object) -> bytes:
    """Return SHA-256 over canonical CBOR of a label and `parts`, 32 bytes."""
    return hashlib.sha256(dumps([PREFIX + label, *parts])).digest()


def hkdf(secret: bytes, label: str, *context: Context, salt: bytes = b"") -> Secret:
    """Derive 32 bytes from `secret`, bound to `label` and every `context` value.

    Raises ConfigError for an empty label or secret, or a context that canonical CBOR cannot carry.
    """
    if not label:
        raise ConfigError("hkdf: the label is empty, every use of a key needs its own")
    if not secret:
        raise ConfigError("hkdf: the secret is empty")
    info = dumps([PREFIX + label, *context])
    return Secret(HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(secret))
