"""What a member remembers between the steps of `epoch.py`, and the epoch it ends with.

All of them hold secrets: `to_bytes` is for a file that only the owner reads
(`flhe/node/store.py`), and repr shows `<32 bytes>`. The identity's seed is not in the bytes;
`from_bytes` is given the identity and checks that it is the one the state belongs to. An agreed state
is erased once the next one is stored.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated

from flhe.errors import ProtocolError
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.wire.derive import hkdf
from flhe.wire.fields import SECRET, U32, U64, Given, Hash, size
from flhe.wire.record import Form, Record
from flhe.wire.secret import Secret

VERSION = 4
MAX_STATE = 1 << 20
"""Longest encoded state, bytes; 1024 members take a quarter of it."""

_Members = tuple[Hash, ...]
_PairKeys = tuple[Annotated[bytes, size(0, 32), SECRET], ...]
_Secret = Annotated[Hash, SECRET]
_Own = Annotated[Identity, Given(lambda identity: identity.public)]


def _form(kind: str) -> Form:
    return Form(f"stored {kind}", MAX_STATE, kind, VERSION)


class _State(Record):
    """What states of a group have in common: members, and a key with each."""

    __slots__ = ()

    def _validate(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        if "members" not in values:
            return
        what, members, keys = self.FORM.what, values["members"], values["pair_keys"]
        if list(members) != sorted(set(members) & set(values["roster"].publics)):
            raise ProtocolError(f"{what}: members must be in the roster, each once, sorted")
        if "identity" in values and values["identity"].public not in members:
            raise ProtocolError(f"{what}: this identity is not a member")
        if "rank" in values and not 0 <= values["rank"] < len(members):
            raise ProtocolError(f"{what}: rank is not that of a member")
        mine = values["rank"] if "rank" in values else members.index(values["identity"].public)
        if [len(key) for key in keys] != [32 * (i != mine) for i in range(len(members))]:
            raise ProtocolError(
                f"{what}: one pair key of 32 bytes is needed for every other member"
            )


@dataclass(frozen=True, slots=True)
class Advertised(_State):
    """After ADVERTISE: the ephemeral secret, and the message as it was sent."""

    FORM = _form("advertised")

    identity: _Own
    run_id: U64
    number: U32
    contract: Hash
    roster: Roster | None
    secret: _Secret
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(_State):
    """After SHARE: members are agreed. `contribution` is r_i, `sent` the hash of the own SHAREs."""

    FORM = _form("shared")

    identity: _Own
    run_id: U64
    number: U32
    contract: Hash
    roster: Roster
    members: _Members
    t1: Hash
    pair_keys: _PairKeys
    contribution: _Secret
    sent: Hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed(_State):
    """After CONFIRM: the key is known, but nobody knows yet whether all have the same.

    `scheme_public` and `scheme_secret` are the scheme's own key pair, once there is one; see
    `flhe.keys.agreement.key_pair`.
    """

    FORM = _form("confirmed")

    identity: _Own
    run_id: U64
    number: U32
    contract: Hash
    roster: Roster
    members: _Members
    t2: Hash
    pair_keys: _PairKeys
    group_key: _Secret
    message: bytes
    scheme_public: bytes = b""
    scheme_secret: Annotated[bytes, SECRET] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch(_State):
    """A group that shares a key; equal on all members but for `rank` and `pair_keys`.

    Attributes
    ----------
    id : bytes
        H(T2)[:16]: names the epoch in claims and caches. Never a number that the server chose.
    number : int
        The server's count, for messages only.
    run_id : int
        The run it was agreed in.
    contract : bytes
        Hash of what all have signed that the run does, 32 bytes.
    roster : Roster
        The pinned roster, or the one built on first use.
    members : tuple of bytes
        Identity keys of the members who take part, in roster order.
    rank : int
        The own position in `members`.
    group_key : bytes
        K_G, 32 bytes, secret.
    pair_keys : tuple of bytes
        k_ij with each member, 32 bytes, secret; empty at the own rank.
    scheme_public, scheme_secret : bytes
        The scheme's own key pair, encoded, where it has one; empty otherwise.
    """

    FORM = _form("epoch")

    id: Annotated[bytes, size(16)]
    number: U32
    run_id: U64
    contract: Hash
    roster: Roster
    members: _Members
    rank: int
    group_key: _Secret
    pair_keys: _PairKeys = field(repr=False)
    scheme_public: bytes = b""
    scheme_secret: Annotated[bytes, SECRET] = b""

    @property
    def size(self) -> int:
        """How many members take part."""
        return len(self.members)

    @property
    def model_key(self) -> Secret:
        """Key that models are sealed under, and nothing else, 32 bytes; see `agreement.model_key`."""
        return hkdf(self.group_key, "models", self.run_id, self.roster.hash, self.id)
