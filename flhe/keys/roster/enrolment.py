"""Enrolment: a site's request to be listed in a roster; nothing in it is secret.

    CBOR {v, kind, member: [name, public], replaces, signature, replaced}

`signature` is by the requesting key, so a site can enrol only its own key. If a site changes its
key, `replaces` is the old one and `replaced` its signature: the new owner of a name has held its
key. No signature can prove that a *first* request comes from the site that it names: read the key's
words to that site over the phone.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.identity import Identity, verify_statement
from flhe.keys.roster.roster import Member
from flhe.wire.canonical import dumps
from flhe.wire.fields import Signature, size
from flhe.wire.record import Form, Record

MAX_FILE = 1024
"""Maximum file size, bytes; the longest name makes some 400."""


@dataclass(frozen=True, slots=True)
class Enrolment(Record):
    """A request to be listed; signatures are verified when it is made.

    `signature` is by the key of `member`. If the site had another key, `replaces` is that key, 32
    bytes, and `replaced` its signature.

    Raises ProtocolError: one of `replaces` and `replaced` without the other, or a key that replaces
    itself; AuthenticationError: a signature that does not verify.
    """

    FORM = Form(
        "enrolment",
        MAX_FILE,
        "flhe-site",
        1,
        origin="no file of `flhe site init`",
    )

    member: Member
    signature: Signature = field(repr=False)
    replaces: Annotated[bytes, size(0, 32)] = b""
    replaced: Annotated[bytes, size(0, 64)] = field(default=b"", repr=False)

    def _validate(self) -> None:
        if bool(self.replaces) != bool(self.replaced):
            raise ProtocolError("enrolment: the replaced key must sign the replacement")
        if self.replaces == self.member.public:
            raise ProtocolError("enrolment: a key cannot replace itself")
        body = _body(self.member, self.replaces)
        try:
            verify_statement(self.member.public, self.signature, "enrol", body)
            if self.replaces:
                verify_statement(self.replaces, self.replaced, "replace", body)
        except AuthenticationError:
            raise AuthenticationError(
                "enrolment: a signature does not verify, so the file was changed: ask the site for it "
                "again"
            ) from None

    @classmethod
    def make(cls, name: str, identity: Identity, old: Identity | None = None) -> Enrolment:
        """Ask for `identity` to be listed under `name`, in place of `old` if given.

        Raises ConfigError for a name that no member may have.
        """
        member = Member(name, identity.public)
        replaces = b"" if old is None else old.public
        body = _body(member, replaces)
        replaced = b"" if old is None else old.state("replace", body)
        return cls(member, identity.state("enrol", body), replaces, replaced)


def _body(member: Member, replaces: bytes) -> bytes:
    return dumps([member.name, member.public, replaces])
