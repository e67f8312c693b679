"""Signed messages between members.

    digest    = SHA-512( CBOR [header, SHA-256(payload)] )
    signature = Ed25519( CBOR ["flhe/v1/" + stage, digest] )

The header says everything that decides what a message means: suite, roster, run, epoch, round,
attempt, stage, sender, receiver, policy and layout. A receiver compares it field by field with what
it waits for, so a message of another run, round or stage is refused and the error names the field.

A payload of megabytes travels beside its header and signature (the detached form): they bind its
SHA-256, and nobody copies it into CBOR. Both forms have one signature.

Source: docs/protocol.md; RFC 8032.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import get_type_hints

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.identity import Identity, verify
from flhe.wire.canonical import dumps, loads, record
from flhe.wire.derive import PREFIX

VERSION = 1
SUITE = "x25519-ed25519-chacha20poly1305-sha256"
"""The cryptography behind version 1; another suite is another name, never a negotiation."""
EVERYONE = b""
"""The receiver of a message to all members."""
NONE = b""
"""policy_hash and layout_hash before there is a policy or a layout."""
MAX_DETACHED = 2048
"""Longest detached envelope, bytes; a header takes some 400."""

_STAGE = re.compile(r"[a-z-]{1,16}")
_SUITE = re.compile(r"[a-z0-9-]{1,64}")

Expected = Mapping[str, int | str | bytes]
"""Header field -> the one value that the receiver accepts."""


def _unsigned(bits: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and 0 <= value < 1 << bits


def _text(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: type(value) is str and pattern.fullmatch(value) is not None


def _sized(*sizes: int) -> Callable[[object], bool]:
    return lambda value: type(value) is bytes and len(value) in sizes


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "v": (lambda value: type(value) is int and value == VERSION, f"{VERSION}"),
    "suite": (_text(_SUITE), "1 to 64 of a-z 0-9 -"),
    "roster_hash": (_sized(32), "32 bytes"),
    "run_id": (_unsigned(64), "an unsigned 64-bit integer"),
    "epoch": (_unsigned(32), "an unsigned 32-bit integer"),
    "round": (_unsigned(32), "an unsigned 32-bit integer"),
    "attempt": (_unsigned(32), "an unsigned 32-bit integer"),
    "stage": (_text(_STAGE), "1 to 16 of a-z -"),
    "sender": (_sized(32), "32 bytes"),
    "receiver": (_sized(0, 32), "32 bytes, or none for everyone"),
    "policy_hash": (_sized(0, 32), "32 bytes, or none"),
    "layout_hash": (_sized(0, 32), "32 bytes, or none"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a message is about; public.

    `run_id` is below 2**64; `epoch`, `round` and `attempt` below 2**32. `sender` and `receiver` are
    Ed25519 public keys (`EVERYONE` = to all). The hashes are SHA-256; `NONE` where there is nothing
    to hash yet. Raises ProtocolError naming the first field that is out of bounds.
    """

    v: int = VERSION
    suite: str = SUITE
    roster_hash: bytes
    run_id: int
    epoch: int
    round: int
    attempt: int
    stage: str
    sender: bytes
    receiver: bytes
    policy_hash: bytes
    layout_hash: bytes

    def __post_init__(self) -> None:
        for name, (rule, needs) in _RULES.items():
            if not rule(getattr(self, name)):
                raise ProtocolError(f"header: field {name} must be {needs}")

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR: what is bound as associated data."""
        return dumps(self.fields())

    def fields(self) -> dict[str, int | str | bytes]:
        """All of it by name; `asdict` would copy each value deeply, for every message."""
        return {name: getattr(self, name) for name in _RULES}

    def check(self, expect: Expected) -> None:
        """Raise ProtocolError naming the first field that differs from `expect`.

        Fields that `expect` leaves out may have any value. Raises ConfigError for an unknown field.
        """
        if not expect.keys() <= _RULES.keys():
            raise ConfigError("Header.check: `expect` names a field that headers do not have")
        for name in _RULES:
            if name in expect and getattr(self, name) != expect[name]:
                raise ProtocolError(
                    f"{self.stage} message: {name} is {_brief(getattr(self, name))}, expected "
                    f"{_brief(expect[name])}: it belongs to another exchange"
                )


_KINDS: dict[str, type] = get_type_hints(Header)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A header, its payload and the sender's signature over both."""

    header: Header
    payload: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.signature) != 64:
            raise ProtocolError("envelope: an Ed25519 signature is 64 bytes")

    @classmethod
    def seal(cls, identity: Identity, header: Header, payload: bytes) -> Envelope:
        """Sign `payload` under `header`. Raises ConfigError if `identity` is not its sender."""
        return cls(header, payload, _sign(identity, header, hashlib.sha256(payload).digest()))

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR."""
        return dumps(
            {
                "header": self.header.fields(),
                "payload": self.payload,
                "signature": self.signature,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int) -> Envelope:
        """Decode an envelope of at most `max_bytes` bytes; nothing is verified yet.

        Raises ProtocolError for anything but the canonical encoding of a well-formed envelope.
        """
        kinds = {"header": dict, "payload": bytes, "signature": bytes}
        body = record(loads(data, max_bytes, "envelope"), "envelope", kinds)
        return cls(_header(body["header"]), body["payload"], body["signature"])

    def verify(self, expect: Expected, *, senders: Collection[bytes] | None) -> None:
        """Return if this is the message that the receiver waits for, signed by its sender.

        Parameters
        ----------
        expect : mapping
            Header fields and their one accepted value; see `Header.check`.
        senders : collection of bytes, or None
            Public keys that may have sent it. None accepts any key, which only the first message of
            a first-use federation should do.

        Raises
        ------
        ProtocolError
            A field differs (it is named), or the sender is not among `senders`.
        AuthenticationError
            The signature does not verify.
        """
        digest = hashlib.sha256(self.payload).digest()
        _verify(self.header, digest, self.signature, expect, senders)


def sign_detached(identity: Identity, header: Header, payload_sha256: bytes) -> bytes:
    """Sign a payload that travels on its own, by its SHA-256; returns header and signature as CBOR.

    Raises ConfigError if `identity` is not the header's sender or the digest is not 32 bytes.
    """
    if len(payload_sha256) != 32:
        raise ConfigError("sign_detached: payload_sha256 must be the 32 bytes of a SHA-256")
    signature = _sign(identity, header, payload_sha256)
    return dumps(
        {"header": header.fields(), "payload_sha256": payload_sha256, "signature": signature}
    )


def open_detached(
    data: bytes, payload_sha256: bytes, expect: Expected, *, senders: Collection[bytes] | None
) -> Header:
    """Verify what `sign_detached` wrote against the SHA-256 of the payload that came with it.

    `expect` and `senders` as for `Envelope.verify`, which lists the errors; a payload with another
    digest raises ProtocolError.
    """
    kinds = {"header": dict, "payload_sha256": bytes, "signature": bytes}
    body = record(loads(data, MAX_DETACHED, "detached envelope"), "detached envelope", kinds)
    header = _header(body["header"])
    if not hmac.compare_digest(body["payload_sha256"], payload_sha256):
        raise ProtocolError(f"{header.stage} message: it was signed for another payload")
    _verify(header, payload_sha256, body["signature"], expect, senders)
    return header


def _header(obj: object) -> Header:
    return Header(**record(obj, "header", _KINDS))


def _signed(header: Header, payload_sha256: bytes) -> bytes:
    digest = hashlib.sha512(dumps([header.fields(), payload_sha256])).digest()
    return dumps([PREFIX + header.stage, digest])


def _sign(identity: Identity, header: Header, payload_sha256: bytes) -> bytes:
    if header.sender != identity.public:
        raise ConfigError("a message is signed by its sender: header.sender is another key")
    return identity.sign(_signed(header, payload_sha256))


def _verify(
    header: Header,
    payload_sha256: bytes,
    signature: bytes,
    expect: Expected,
    senders: Collection[bytes] | None,
) -> None:
    header.check({"suite": SUITE, **expect})
    if senders is not None and header.sender not in senders:
        raise ProtocolError(
            f"{header.stage} message: the sender {header.sender.hex()[:16]} is not a member"
        )
    verify(header.sender, signature, _signed(header, payload_sha256))


def _brief(value: int | str | bytes) -> str:
    """Return a public header value in a few characters."""
    return (value.hex()[:16] or "empty") if isinstance(value, bytes) else str(value)
