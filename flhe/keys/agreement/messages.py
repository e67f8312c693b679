"""Signed messages between members.

    digest    = SHA-512( CBOR [header, SHA-256(payload)] )
    signature = Ed25519( CBOR ["flhe/v1/" + stage, digest] )

The header contains the whole context of a message: suite, roster, run, epoch, round, attempt,
stage, sender, receiver, policy and layout. A receiver compares it field by field with the expected
one. So a message of another run, round or stage is refused, and the error names the field.

A payload of megabytes travels beside its envelope, whose own payload is then the SHA-256 of it.

Source: docs/protocol.md; RFC 8032.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.identity import Identity, verify
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX
from flhe.wire.fields import U32, U64, Hash, Signature, matching, size
from flhe.wire.record import Form, Record

SUITE = "x25519-ed25519-chacha20poly1305-sha256"
"""The cryptography behind version 1; another suite has another name, and none is negotiated."""
EVERYONE = b""
"""The receiver of a message to all members."""
NONE = b""
"""policy_hash and layout_hash before there is a policy or a layout."""
MAX_MESSAGE = 1024
"""Maximum length of an envelope of some hashes, bytes; one takes some 500."""

Expected = Mapping[str, int | str | bytes]
"""Header field -> the one value that the receiver accepts."""


_OrNone = Annotated[bytes, size(0, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Record):
    """The context of a message; public.

    `run_id` is below 2**64; `epoch`, `round` and `attempt` below 2**32. `sender` and `receiver` are
    Ed25519 public keys (`EVERYONE` = to all). The hashes are SHA-256; `NONE` if there is nothing to
    hash yet. Raises ProtocolError naming the first field that is out of bounds.
    """

    FORM = Form("header")

    v: Literal[1] = 1
    suite: Annotated[str, matching("[a-z0-9-]{1,64}", "1 to 64 of a-z 0-9 -")] = SUITE
    roster_hash: Hash
    run_id: U64
    epoch: U32
    round: U32 = 0
    attempt: U32 = 0
    stage: Annotated[str, matching("[a-z-]{1,16}", "1 to 16 of a-z -")]
    sender: Hash
    receiver: _OrNone = EVERYONE
    policy_hash: _OrNone = NONE
    layout_hash: _OrNone = NONE

    @classmethod
    def in_slot(
        cls, slot: Slot, number: int, stage: str, sender: bytes, policy_hash: bytes = NONE
    ) -> Header:
        """Return the header of a message about one sum; `number` is its epoch's."""
        return cls(
            roster_hash=slot.roster_hash,
            run_id=slot.run_id,
            epoch=number,
            round=slot.round,
            attempt=slot.attempt,
            stage=stage,
            sender=sender,
            policy_hash=policy_hash,
            layout_hash=slot.digest(),
        )

    def expected(self, *without: str) -> dict[str, int | str | bytes]:
        """Return the fields by name, without these and the sender, as a stage's messages share them."""
        return {n: getattr(self, n) for n in _NAMES if n not in ("sender", *without)}

    def check(self, expect: Expected) -> None:
        """Raise ProtocolError naming the first field that differs from `expect`.

        Fields that `expect` leaves out may have any value. Raises ConfigError for an unknown field.
        """
        if not expect.keys() <= _NAMES.keys():
            raise ConfigError("Header.check: `expect` names a field that headers do not have")
        for name in _NAMES:
            if name in expect and getattr(self, name) != expect[name]:
                raise ProtocolError(
                    f"{self.stage} message: {name} is {_brief(getattr(self, name))}, expected "
                    f"{_brief(expect[name])}: it belongs to another exchange"
                )


_NAMES = dict.fromkeys(field.name for field in fields(Header))


@dataclass(frozen=True, slots=True)
class Envelope(Record):
    """A header, its payload and the sender's signature over both."""

    FORM = Form("envelope")

    header: Header
    payload: bytes = field(repr=False)
    signature: Signature = field(repr=False)

    @classmethod
    def seal(cls, identity: Identity, header: Header, payload: bytes) -> Envelope:
        """Sign `payload` under `header`. Raises ConfigError if `identity` is not its sender."""
        if header.sender != identity.public:
            raise ConfigError("a message is signed by its sender: header.sender is another key")
        return cls(header, payload, identity.sign(_signed(header, payload)))

    def verify(self, expect: Expected, *, senders: Collection[bytes] | None) -> None:
        """Return if this is the expected message, signed by its sender.

        `expect` is as in `Header.check`; `senders` are the public keys that may have sent it. None
        accepts any key, which only the first message of a first-use federation should do.

        Raises ProtocolError: a field differs (it is named), or the sender is not among `senders`;
        AuthenticationError: the signature does not verify.
        """
        header = self.header
        header.check({"suite": SUITE, **expect})
        if senders is not None and header.sender not in senders:
            raise ProtocolError(
                f"{header.stage} message: the sender {header.sender.hex()[:16]} is not a member"
            )
        verify(header.sender, self.signature, _signed(header, self.payload))


def _signed(header: Header, payload: bytes) -> bytes:
    payload_hash = hashlib.sha256(payload).digest()
    digest = hashlib.sha512(dumps([header.to_fields(), payload_hash])).digest()
    return dumps([PREFIX + header.stage, digest])


def _brief(value: int | str | bytes) -> str:
    """Return a public header value in a few characters."""
    return (value.hex()[:16] or "empty") if isinstance(value, bytes) else str(value)
