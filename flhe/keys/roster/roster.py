"""The sites that may take part, and the bounds they agreed on.

Each node's own configuration pins a roster's hash. Ranks come from the roster, never from the
server. A site that leaves is removed and its key listed as revoked, which makes another roster with
another hash. The removal takes effect on a node once it pins that hash, and the key can never be
added again.

    members needed for an epoch     max(min_survivors, c + 3, min-members of the parameters)
    senders needed for an opening   max(min_survivors, c + 2)

With c members colluding, c + 2 senders leave two honest ones, whose updates only their sum reveals.
One member may then drop out of an epoch and a round still opens.

Source: docs/protocol.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from flhe.errors import ConfigError, ProtocolError, QuorumError, config_errors
from flhe.keys.identity import check_public
from flhe.keys.roster.limits import NONE, Limits
from flhe.schemes import PLAIN
from flhe.wire.fields import Hash, matching, within
from flhe.wire.record import Form, Kept, Record

MAX_MEMBERS = 1024
MAX_BYTES = 1 << 18
"""Maximum length of an encoded roster; 1024 members and as many revoked keys take about half."""

ANY = "*"
"""In `schemes`: every scheme. It must be written, an empty list never means all."""


@dataclass(frozen=True, slots=True)
class Member(Record):
    """A site: `name` (1 to 64 of A-Z a-z 0-9 . _ -) and `public`, its Ed25519 key, 32 bytes."""

    FORM = Form("member", row=True, error=ConfigError)

    name: Annotated[
        str,
        matching("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1 to 64 letters, digits, '.', '_' or '-'"),
    ]
    public: Hash

    def _validate(self) -> None:
        with config_errors(f"member {self.name}"):
            check_public(self.public)


@dataclass(frozen=True, slots=True)
class Roster(Kept):
    """The members, 3 to 1024, and their bounds; sorted here, so the order of writing is irrelevant.

    Keys are unique, and so are names, ignoring case. `collusion` is c, the number of members that
    may pool their knowledge with the server. `min_survivors` is the minimum of senders in a sum, 2
    at least. `schemes` names the allowed schemes; ("*",) allows every one. `revoked` are the public
    keys of removed sites, 32 bytes each, at most 1024, none of them a member's. `limits` bind every
    node, whatever its own config says.
    """

    FORM = Form("roster", version=4, most=MAX_BYTES, error=ConfigError)

    members: tuple[Member, ...]
    collusion: Annotated[int, within(0, MAX_MEMBERS)]
    min_survivors: Annotated[int, within(2, MAX_MEMBERS)]
    schemes: tuple[
        Annotated[str, matching(r"[a-z0-9][a-z0-9._-]{0,63}|\*", "made of a-z 0-9 . _ -")], ...
    ]
    revoked: tuple[Hash, ...] = ()
    limits: Limits = NONE

    def _validate(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda m: m.public)))
        object.__setattr__(self, "schemes", tuple(sorted(self.schemes)))
        object.__setattr__(self, "revoked", tuple(sorted(self.revoked)))
        if len({m.public for m in self.members}) != len(self.members):
            raise ConfigError("Roster: two members have one public key, each site needs its own")
        if len({m.name.casefold() for m in self.members}) != len(self.members):
            raise ConfigError(
                "Roster: two members have one name, or names that differ in capitals only: rename one"
            )
        agreed = self.limits.said.get("min-members")
        if not self.min_members <= len(self.members) <= MAX_MEMBERS:
            raise ConfigError(
                f"Roster: {len(self.members)} members, collusion {self.collusion} and "
                f"min_survivors {self.min_survivors} need {self.min_members} to {MAX_MEMBERS} members"
                + (f" (min-members={agreed})" if agreed else "")
            )
        if not self.schemes or len(set(self.schemes)) != len(self.schemes):
            raise ConfigError(f"Roster: name each allowed scheme once, or allow all by {ANY!r}")
        if len(set(self.revoked)) != len(self.revoked):
            raise ConfigError("Roster: a key is revoked twice, list it once")
        if len(self.revoked) > MAX_MEMBERS:
            raise ConfigError(
                f"Roster: {len(self.revoked)} revoked keys, at most {MAX_MEMBERS} fit: start a new "
                "federation, in which every site has a new key"
            )
        for member in self.members:
            if member.public in self.revoked:
                raise ConfigError(
                    f"Roster: the key of {member.name} was revoked, the site needs a new identity"
                )

    @staticmethod
    def default_collusion(size: int) -> int:
        """Return the collusion bound for `size` members: (size - 1) // 3."""
        return (size - 1) // 3

    @classmethod
    def first_use(cls, publics: Iterable[bytes]) -> Roster:
        """Build the roster of all keys that were announced, for `trust="first-use"`.

        It ensures that all members see one list, not that the list is of hospitals: a server that
        makes up members is not detected. Raises QuorumError for fewer keys than the bounds need.
        """
        keys = sorted(publics)
        bound = cls.default_collusion(len(keys))
        need = bound + 3
        if len(keys) < need:
            raise QuorumError(
                f"{len(keys)} members announced a key, {need} are needed: "
                "start more nodes, or wait for those that are late"
            )
        members = tuple(Member(key.hex()[:16], key) for key in keys)
        return cls(members, bound, 2, (ANY,))

    @property
    def min_members(self) -> int:
        """Minimum members of an epoch: max(min_survivors, c + 3), or the parameters' value."""
        return max(
            self.min_survivors, self.collusion + 3, int(self.limits.said.get("min-members", 0))
        )

    @property
    def min_opening(self) -> int:
        """Minimum senders in a sum that a reader opens: max(min_survivors, c + 2)."""
        return max(self.min_survivors, self.collusion + 2)

    @property
    def publics(self) -> tuple[bytes, ...]:
        """The members' public keys, in order of rank."""
        return tuple(member.public for member in self.members)

    @property
    def hash(self) -> bytes:
        """SHA-256 of `to_bytes()`, 32 bytes, which a node pins."""
        return hashlib.sha256(self.to_bytes()).digest()

    def rank(self, public: bytes) -> int:
        """Return the position of `public`.

        Raises ProtocolError if it is not in the roster; the error says if it was revoked.
        """
        for rank, member in enumerate(self.members):
            if member.public == public:
                return rank
        self.check_not_revoked(public)
        raise ProtocolError(
            f"the key {public.hex()[:16]} is not in the roster: add the site and pin the new hash"
        )

    def check_not_revoked(self, public: bytes) -> None:
        """Raise ProtocolError if `public` is the key of a site that was removed."""
        if public in self.revoked:
            raise ProtocolError(
                f"the key {public.hex()[:16]} was revoked: its site was removed from this roster, and "
                "takes part again only with a new identity in a roster that all have pinned"
            )

    def name(self, public: bytes) -> str:
        """Return the name of the member with that key. Raises ProtocolError like `rank`."""
        return self.members[self.rank(public)].name

    def allows(self, scheme: str) -> bool:
        """Return whether the scheme named `scheme` may run. "Any" means any that encrypts."""
        return scheme in self.schemes or (ANY in self.schemes and scheme != PLAIN)
