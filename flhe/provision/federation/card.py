"""Card: the one file that a site sends to the coordinator; nothing in it is secret.

    CBOR {v, kind, enrolment: bytes, node_key, signature}

`signature` is by the site's identity, over all other fields. `node_key` authenticates the site's
SuperNode to the SuperLink.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from flhe.errors import ProtocolError
from flhe.keys.identity import Identity, verify_statement
from flhe.keys.roster.enrolment import Enrolment
from flhe.provision import public_files
from flhe.provision.node_key import POINT, pem
from flhe.wire.canonical import dumps
from flhe.wire.fields import Signature, size
from flhe.wire.record import Form, Record

MAX_FILE = 2048
"""Maximum file size, bytes; the longest name makes some 700."""


@dataclass(frozen=True, slots=True)
class Card(Record):
    """A site's card; its signature is verified when it is made.

    Raises ProtocolError: a point that is not on the curve; AuthenticationError: a signature that
    does not verify.
    """

    FORM = Form("card", MAX_FILE, "flhe-card", 1, origin="no file of `flhe site init`")

    enrolment: Enrolment
    node_key: Annotated[bytes, size(POINT)]
    signature: Signature = field(repr=False)

    def _validate(self) -> None:
        body = _body(self.enrolment, self.node_key)
        verify_statement(self.enrolment.member.public, self.signature, "card", body)
        try:
            pem(self.node_key)
        except ValueError:
            raise ProtocolError("card: the SuperNode's key is not a point of P-384") from None

    @property
    def name(self) -> str:
        """The site's name."""
        return self.enrolment.member.name

    @property
    def public(self) -> bytes:
        """The public key of the site's identity."""
        return self.enrolment.member.public

    @classmethod
    def make(cls, enrolment: Enrolment, node_key: bytes, identity: Identity) -> Card:
        """Make the card of the site that has `identity`."""
        return cls(enrolment, node_key, identity.state("card", _body(enrolment, node_key)))

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card; ConfigError if the file cannot be read, and the errors of `from_bytes`."""
        return cls.from_bytes(public_files.read(path, MAX_FILE, "the card"))


def _body(enrolment: Enrolment, node_key: bytes) -> bytes:
    return dumps([enrolment.to_bytes(), node_key])
