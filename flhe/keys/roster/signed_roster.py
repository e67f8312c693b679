"""The roster file: a roster, and its members' signatures.

    CBOR {v, kind, roster: bytes, signatures: [[public key, signature], ...]}

A node pins the hash of the roster inside, which signatures do not change. A node accepts the file
only once every member has signed. So no site is in a federation whose members, bounds and schemes
it never agreed to.

Source: docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from pathlib import Path

from flhe.errors import AuthenticationError, ConfigError, config_errors
from flhe.keys.identity import Identity, verify_statement
from flhe.keys.roster.roster import MAX_BYTES, MAX_MEMBERS, Member, Roster
from flhe.wire.fields import Hash, Signature
from flhe.wire.record import Form, Record

MAX_FILE = MAX_BYTES + 128 * MAX_MEMBERS
"""Maximum file size, bytes: a roster, and a signature of some 100 bytes for each member."""
MANY = 10
"""Number of names that an error lists; it counts the rest."""


@dataclass(frozen=True, slots=True)
class SignedRoster(Record):
    """A roster and verified signatures on it, by the members' public keys.

    Raises ProtocolError: a signature by another key than a member's; AuthenticationError naming the
    member whose signature does not verify.
    """

    FORM = Form("roster file", MAX_FILE, "flhe-roster", 2, origin="no file of `flhe roster new`")

    roster: Roster
    signatures: dict[Hash, Signature] = field(default_factory=dict, repr=False, hash=False)

    def _validate(self) -> None:
        body = self.roster.to_bytes()
        for public, signature in self.signatures.items():
            name = self.roster.name(public)
            try:
                verify_statement(public, signature, "roster", body)
            except AuthenticationError:
                raise AuthenticationError(
                    f"roster file: the signature of {name} is not on this roster: have {name} sign it "
                    "again (flhe roster sign)"
                ) from None

    @property
    def missing(self) -> tuple[Member, ...]:
        """Members that have not signed, in order of rank."""
        return tuple(m for m in self.roster.members if m.public not in self.signatures)

    def signed(self, identity: Identity) -> SignedRoster:
        """Return it with this member's signature. Raises ProtocolError for a non-member."""
        self.roster.rank(identity.public)
        made = identity.state("roster", self.roster.to_bytes())
        return replace(self, signatures={**self.signatures, identity.public: made})

    def merged(self, other: SignedRoster) -> SignedRoster:
        """Return it with the other copy's signatures too. Raises ConfigError for another roster."""
        if other.roster != self.roster:
            raise ConfigError(
                f"these are two rosters, with the hashes {self.roster.hash.hex()} and "
                f"{other.roster.hash.hex()}: signatures on one say nothing about the other"
            )
        return replace(self, signatures={**other.signatures, **self.signatures})

    def check_complete(self) -> None:
        """Raise ConfigError, naming the missing members, unless every member has signed."""
        if missing := [member.name for member in self.missing]:
            names = ", ".join(sorted(missing)[:MANY]) + (
                f" and {len(missing) - MANY} more" if len(missing) > MANY else ""
            )
            raise ConfigError(
                f"the roster is not signed by {names}: each site signs the file with "
                "`flhe roster sign`, and `flhe roster merge` unites copies that were signed apart"
            )


def load_pinned(path: str | Path, pinned: str) -> Roster:
    """Read the roster in the file `path` if it has the pinned hash and all its members have signed.

    Raises ConfigError: the file cannot be read, is damaged, holds another roster, or has a
    signature missing; or the hash is invalid.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the roster file: {error.strerror}") from None
    with config_errors("the roster file cannot be used"):
        signed = SignedRoster.from_bytes(data)
    check_pinned(signed.roster, pinned)
    signed.check_complete()
    return signed.roster


def check_pinned(roster: Roster, pinned: str) -> None:
    """Raise ConfigError unless the roster has the pinned hash, given as 64 hexadecimal digits."""
    try:
        want = bytes.fromhex(pinned)
    except ValueError:
        want = b""
    if len(want) != hashlib.sha256().digest_size:
        raise ConfigError("the pinned roster hash must be 32 bytes, written as 64 hex digits")
    if not hmac.compare_digest(roster.hash, want):
        raise ConfigError(
            f"the roster file has hash {roster.hash.hex()}, this node pins {want.hex()}: "
            "get the agreed file, or pin the new hash after checking it with the other sites"
        )
