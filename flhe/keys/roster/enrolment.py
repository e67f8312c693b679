"""Enrolment: what a site hands to whoever collects a roster; nothing of it is secret.

    CBOR {v, kind, name, public, replaces, signature, replaced}

`signature` is by the key that asks, so nobody enrols a key that is not theirs. Where a site
changes its key, `replaces` is the old one and `replaced` its signature: who takes over a name has
held its key. Whether a *first* request comes from the site that it names no signature can tell:
read the key's words to that site over the phone.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.identity import Identity, check_public
from flhe.keys.roster import statements
from flhe.keys.roster.roster import Member
from flhe.wire.canonical import dumps, loads, record

VERSION = 1
KIND = "flhe-site"
MAX_FILE = 1024
"""Longest file, bytes; the longest name makes some 400."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A request to be listed; signatures are verified when it is made.

    Parameters
    ----------
    member : Member
        Name and public key.
    signature : bytes
        By that key, 64 bytes.
    replaces : bytes
        The public key that the site had before, 32 bytes; none for a new site.
    replaced : bytes
        That key's signature, 64 bytes; none for a new site.

    Raises
    ------
    ProtocolError
        One of `replaces` and `replaced` without the other, or a key that replaces itself.
    AuthenticationError
        A signature that does not verify.
    """

    member: Member
    signature: bytes = field(repr=False)
    replaces: bytes = b""
    replaced: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if bool(self.replaces) != bool(self.replaced):
            raise ProtocolError("enrolment: a key that is replaced signs that")
        if self.replaces == self.member.public:
            raise ProtocolError("enrolment: a key cannot replace itself")
        body = _body(self.member, self.replaces)
        try:
            statements.check(self.member.public, self.signature, "enrol", body)
            if self.replaces:
                check_public(self.replaces)
                statements.check(self.replaces, self.replaced, "replace", body)
        except AuthenticationError:
            raise AuthenticationError(
                "enrolment: a signature does not verify, so the file was changed: ask the site for it "
                "again"
            ) from None

    @classmethod
    def make(cls, name: str, identity: Identity, old: Identity | None = None) -> Enrolment:
        """Ask for `identity` to be listed under `name`, in the place of `old` where that is given.

        Raises ConfigError for a name that no member may have.
        """
        member = Member(name, identity.public)
        replaces = b"" if old is None else old.public
        body = _body(member, replaces)
        return cls(
            member,
            statements.sign(identity, "enrol", body),
            replaces,
            b"" if old is None else statements.sign(old, "replace", body),
        )

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR."""
        return dumps(
            {
                "v": VERSION,
                "kind": KIND,
                "name": self.member.name,
                "public": self.member.public,
                "replaces": self.replaces,
                "signature": self.signature,
                "replaced": self.replaced,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Enrolment:
        """Decode what `to_bytes` wrote.

        Raises ProtocolError for anything else, ConfigError for a name or a key that no member may
        have, AuthenticationError for a signature that does not verify.
        """
        kinds = {
            "v": int,
            "kind": str,
            "name": str,
            "public": bytes,
            "replaces": bytes,
            "signature": bytes,
            "replaced": bytes,
        }
        stored = loads(data, MAX_FILE, "enrolment")
        if type(stored) is not dict or stored.get("kind") != KIND:
            raise ProtocolError("enrolment: this is no file of `flhe keygen` or `flhe keys rotate`")
        body = record(stored, "enrolment", kinds)
        if body["v"] != VERSION:
            raise ProtocolError(f"enrolment: version {body['v']}, this flhe reads {VERSION}")
        member = Member(body["name"], body["public"])
        return cls(member, body["signature"], body["replaces"], body["replaced"])


def _body(member: Member, replaces: bytes) -> bytes:
    return dumps([member.name, member.public, replaces])
