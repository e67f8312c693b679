"""Published: the one file that the coordinator sends to the sites; nothing in it is secret.

    CBOR {v, kind, name, serial, coordinator, address, authority, reviewers, roster: bytes, signature}

`signature` is by the coordinator's key, over all other fields. The key is not authority over sites:
a site joins once it has compared the words of the roster with the other sites. The key shows that a
later file comes from the same coordinator, and `serial` that it is not an earlier one.

The file proposes nothing beyond the roster's bounds: each site's own settings stay its own.

Source: docs/protocol.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from flhe.errors import ProtocolError, config_errors
from flhe.keys.identity import Identity, check_public, verify_statement
from flhe.keys.roster.roster import MAX_BYTES, Roster
from flhe.provision import public_files, rosters
from flhe.wire.canonical import dumps
from flhe.wire.fields import Hash, Signature, ascending, at_most, matching, within
from flhe.wire.record import Form, Record

MAX_AUTHORITY = 1 << 16
MAX_FILE = MAX_BYTES + MAX_AUTHORITY + (1 << 12)
NAME = r"[a-z0-9][a-z0-9-]{0,31}"
ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}"
SUFFIX = ".flhe"
_BEGIN = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Published(Record):
    """A federation, as its coordinator publishes it; its signature is verified when it is made.

    `authority` has the certificates (PEM) that verify the SuperLink's own, `reviewers` are Ed25519
    keys whose signature lets an app run.

    Raises ProtocolError: no reviewer, or an authority that is not certificates alone;
    AuthenticationError: a signature that does not verify.
    """

    FORM = Form(
        "federation file",
        MAX_FILE,
        "flhe-federation",
        1,
        origin="no file of `flhe federation publish`",
    )

    name: Annotated[str, matching(NAME, "1 to 32 of a-z, 0-9 and '-'")]
    serial: Annotated[int, within(1, (1 << 32) - 1)]
    coordinator: Hash
    address: Annotated[str, matching(ADDRESS, "HOST:PORT")]
    authority: Annotated[bytes, at_most(MAX_AUTHORITY, "bytes")]
    reviewers: Annotated[
        tuple[Hash, ...], ascending("keys of reviewers"), at_most(64, "keys of reviewers")
    ]
    roster: Roster
    signature: Signature = field(repr=False)

    def _validate(self) -> None:
        body = dumps([self.name, self.serial, *self._agreed()])
        verify_statement(self.coordinator, self.signature, "federation", body)
        if not self.reviewers:
            raise ProtocolError("federation file: no reviewer's key, so no app could run")
        for key in self.reviewers:
            check_public(key)
        if not self.authority.startswith(_BEGIN) or b"PRIVATE" in self.authority:
            raise ProtocolError("federation file: the authority must be certificates (PEM) alone")

    @property
    def terms(self) -> bytes:
        """Hash of what a site agrees to: all but the serial."""
        return hashlib.sha256(dumps([self.name, *self._agreed()])).digest()

    def _agreed(self) -> tuple[object, ...]:
        own = (self.coordinator, self.address, self.authority, self.reviewers)
        return *own, self.roster.to_bytes()

    @classmethod
    def read(cls, path: Path) -> Published:
        """Read a federation's file; ConfigError if it cannot be read or is invalid."""
        data = public_files.read(path, MAX_FILE, "the federation's file")
        with config_errors(f"{path}"):
            return cls.from_bytes(data)


def make(
    name: str,
    serial: int,
    address: str,
    authority: bytes,
    reviewers: tuple[bytes, ...],
    roster: Roster,
    coordinator: Identity,
) -> Published:
    """Return a federation's file, signed by the coordinator."""
    fields = (name, serial, coordinator.public, address, authority, tuple(sorted(set(reviewers))))
    signature = coordinator.state("federation", dumps([*fields, roster.to_bytes()]))
    return Published(*fields, roster, signature)


def difference(old: Published, new: Published) -> str:
    """Return the differences for a site between two files, one line each."""
    lines = [rosters.difference(old.roster, new.roster)]
    if old.address != new.address:
        lines.append(f"* the SuperLink's address is {new.address}; before {old.address}")
    if old.authority != new.authority:
        lines.append("* another authority signs the SuperLink's certificate")
    lines += [f"+ reviewer {key.hex()[:16]}" for key in new.reviewers if key not in old.reviewers]
    lines += [f"- reviewer {key.hex()[:16]}" for key in old.reviewers if key not in new.reviewers]
    return "\n".join(lines)
