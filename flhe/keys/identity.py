"""A site's identity: one Ed25519 key pair, made offline; and its statements outside of any run.

    signature = Ed25519( CBOR ["flhe/v1/site/" + kind, SHA-512(body)] )

Labels of a run's messages have no second slash (`agreement/messages.py`). So no message can pass
for a statement, or the reverse.

Public keys of small order are refused, because one signature would fit many messages. So are keys
not in their shortest form: one key could pass for two.

Source: RFC 8032; docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX
from flhe.wire.secret import Random, Secret

Statement = Literal["roster", "enrol", "replace", "card", "federation", "reply"]
"""Kind of a statement: a site joins a roster, asks to be listed, passes its place to a key, hands out
its card, or has sealed a whole reply (`flhe.wire.outgoing`); a coordinator publishes a federation."""

_P = 2**255 - 19
_Y8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# y of the eight points whose order divides 8: (0, 1), (0, -1), (+-sqrt(-1), 0) and four of order 8.
_SMALL_ORDER_Y = frozenset({0, 1, _P - 1, _Y8, _P - _Y8})


@dataclass(frozen=True, slots=True)
class Identity:
    """A signing key: its secret `seed`, and `public`, which a roster lists; 32 bytes each."""

    seed: bytes
    public: bytes = field(init=False)
    _key: Ed25519PrivateKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, bytes) or len(self.seed) != 32:
            raise ConfigError("Identity: the seed must be 32 bytes; make one with `generate()`")
        object.__setattr__(self, "seed", Secret(self.seed))
        object.__setattr__(self, "_key", Ed25519PrivateKey.from_private_bytes(self.seed))
        object.__setattr__(self, "public", self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, random: Random = secrets.token_bytes) -> Identity:
        """Make a fresh identity."""
        return cls(random(32))

    def sign(self, message: bytes) -> bytes:
        """Sign `message`; 64 bytes, the same for the same message."""
        return self._key.sign(message)

    def state(self, kind: Statement, body: bytes) -> bytes:
        """Sign `body` as a statement; 64 bytes."""
        return self.sign(_stated(kind, body))


def check_public(public: object) -> None:
    """Raise ProtocolError unless `public` is 32 bytes that an honest Ed25519 key could have."""
    if type(public) is not bytes or len(public) != 32:
        raise ProtocolError("an Ed25519 public key is 32 bytes")
    y = int.from_bytes(public, "little") & ((1 << 255) - 1)
    if y >= _P or y in _SMALL_ORDER_Y:
        raise ProtocolError("this Ed25519 public key is invalid: no honest site has it")


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Return if `signature` over `message` is by the holder of `public`; else AuthenticationError.

    Raises ProtocolError if `public` is not a key at all (see `check_public`).
    """
    check_public(public)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise AuthenticationError(
            f"the signature does not verify under the key {public.hex()[:16]}"
        ) from None


def verify_statement(public: bytes, signature: bytes, kind: Statement, body: bytes) -> None:
    """Return if the holder of `public` has stated `body`; raises as `verify`."""
    verify(public, signature, _stated(kind, body))


def _stated(kind: Statement, body: bytes) -> bytes:
    return dumps([f"{PREFIX}site/{kind}", hashlib.sha512(body).digest()])
