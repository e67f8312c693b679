"""A member's state between the steps of `epoch.py`, and the resulting epoch.

Each message may be handled by another process, so states are serialized. They hold secrets:
`to_bytes` is for a file that only the owner reads (`flhe/node/store.py`), and repr shows `<32
bytes>`. `identity` is the public key of the state's member; its seed is not in the bytes. An agreed
state is erased once the next one is stored.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from flhe.errors import ProtocolError
from flhe.keys.roster.roster import Roster
from flhe.wire.fields import SECRET, U32, U64, Hash, size
from flhe.wire.record import Form, Record

MAX_STATE = 1 << 20
"""Maximum length of an encoded state, bytes; 1024 members take a quarter of it."""

_Secret = Annotated[Hash, SECRET]


def _form(kind: str) -> Form:
    return Form(f"stored {kind}", MAX_STATE, kind, 5)


@dataclass(frozen=True, slots=True)
class Advertised(Record):
    """State after ADVERTISE: the ephemeral secret, and the message as it was sent."""

    FORM = _form("advertised")

    identity: Hash
    run_id: U64
    number: U32
    contract: Hash
    roster: Roster | None
    secret: _Secret
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group(Record):
    """Common part of a group's states: the terms, the members, and a key with each."""

    run_id: U64
    number: U32
    contract: Hash
    roster: Roster
    members: tuple[Hash, ...]
    rank: int
    pair_keys: tuple[Annotated[bytes, size(0, 32), SECRET], ...] = field(repr=False)

    def _validate(self) -> None:
        what, count = self.FORM.what, len(self.members)
        if list(self.members) != sorted(set(self.members) & set(self.roster.publics)):
            raise ProtocolError(f"{what}: members must be in the roster, each once, sorted")
        if not 0 <= self.rank < count:
            raise ProtocolError(f"{what}: rank is not that of a member")
        if [len(key) for key in self.pair_keys] != [32 * (i != self.rank) for i in range(count)]:
            raise ProtocolError(
                f"{what}: one pair key of 32 bytes is needed for every other member"
            )

    def common(self) -> dict[str, Any]:
        """Return the fields that the next state takes over."""
        return {each.name: getattr(self, each.name) for each in fields(_Group)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step(_Group):
    """A state on the way to an epoch."""

    identity: Hash

    def _validate(self) -> None:
        _Group._validate(self)
        if self.members[self.rank] != self.identity:
            raise ProtocolError(f"{self.FORM.what}: rank is another member's than this identity's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(_Step):
    """State after SHARE. `contribution` is r_i, `sent` the hash of the own SHAREs."""

    FORM = _form("shared")

    t1: Hash
    contribution: _Secret
    sent: Hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed(_Step):
    """State after CONFIRM: the key is known, but not yet whether all members have the same.

    `scheme_public` and `scheme_secret` are the scheme's own keys, if any yet (`broadcast.py`).
    """

    FORM = _form("confirmed")

    t2: Hash
    group_key: _Secret
    message: bytes
    scheme_public: bytes = b""
    scheme_secret: Annotated[bytes, SECRET] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch(_Group):
    """A group that shares a key; only `rank`, `pair_keys` and the own secret differ between members.

    `id`, H(T2)[:16], names the epoch in claims and caches. `number` is the server's count, for
    messages only. `contract` is the hash of the signed terms of the run. `roster` is the pinned one
    or the one built on first use. `members` are identity keys of the participants, in roster order,
    and `rank` is the own place among them. Secret are `group_key`, K_G, and `pair_keys`, k_ij with
    each member, empty at the own rank. `scheme_public` and `scheme_secret` are the scheme's own
    keys, encoded, if it has any.
    """

    FORM = _form("epoch")

    id: Annotated[bytes, size(16)]
    group_key: _Secret
    scheme_public: bytes = b""
    scheme_secret: Annotated[bytes, SECRET] = b""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)
