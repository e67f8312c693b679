"""Statements: what a site signs outside of any run.

    signature = Ed25519( CBOR ["flhe/v1/site/" + what, SHA-512(body)] )

A label of a run's messages has no second slash (`agreement/messages.py`), so no message of a
protocol can be shown as a statement, nor the other way round.

Source: RFC 8032; docs/protocol.md.
"""

from __future__ import annotations

import hashlib

from flhe.errors import ConfigError
from flhe.keys.identity import Identity, verify
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX

KINDS = ("roster", "enrol", "replace")
"""What statements there are."""


def sign(identity: Identity, what: str, body: bytes) -> bytes:
    """Sign `body` as a statement of the kind `what`; 64 bytes. ConfigError for another kind."""
    return identity.sign(_signed(what, body))


def check(public: bytes, signature: bytes, what: str, body: bytes) -> None:
    """Return if the holder of `public` signed `body` as a statement of the kind `what`.

    Raises AuthenticationError if not, ProtocolError if `public` is no key.
    """
    verify(public, signature, _signed(what, body))


def _signed(what: str, body: bytes) -> bytes:
    if what not in KINDS:
        raise ConfigError(f"a site signs {', '.join(KINDS)}, and not {what}")
    return dumps([f"{PREFIX}site/{what}", hashlib.sha512(body).digest()])
