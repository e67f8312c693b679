"""What a member remembers between the steps of `epoch.py`, and the epoch it ends with.

All of them hold secrets: `to_bytes` is for a file that only the owner reads (`store.py`), and repr
shows `<32 bytes>`. The identity's seed is not in the bytes; `from_bytes` takes the identity and
checks that it is the one the state belongs to. An agreed state is erased once the next one is
stored.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from flhe.errors import ProtocolError
from flhe.keys.identity import Identity, Secret
from flhe.keys.roster.roster import Roster
from flhe.wire.canonical import dumps, loads, record
from flhe.wire.derive import hkdf

VERSION = 2
MAX_STATE = 1 << 20
"""Longest encoded state, bytes; 1024 members take a quarter of it."""

_WIRE: dict[str, type] = {  # field -> its type in CBOR
    "identity": bytes,
    "run_id": int,
    "number": int,
    "roster": bytes,
    "members": list,
    "secret": bytes,
    "message": bytes,
    "t1": bytes,
    "t2": bytes,
    "pair_keys": list,
    "contribution": bytes,
    "sent": bytes,
    "id": bytes,
    "rank": int,
    "group_key": bytes,
    "scheme_public": bytes,
    "scheme_secret": bytes,
    "scheme_terms": bytes,
}
_SIZES = {"secret": 32, "t1": 32, "t2": 32, "contribution": 32, "sent": 32, "id": 16}
_SIZES["group_key"] = 32
_SECRET = ("secret", "contribution", "group_key", "scheme_secret")


class _State:
    """Encoding and checks that all states share."""

    __slots__ = ()
    _OPTIONAL_ROSTER: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Hide the secrets and check what can be checked. Raises ProtocolError."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        what = type(self).__name__
        for name, size in _SIZES.items():
            if name in values and len(values[name]) != size:
                raise ProtocolError(f"{what}: {name} must be {size} bytes")
        for name in _SECRET:
            if name in values:
                object.__setattr__(self, name, Secret(values[name]))
        if "members" in values:
            self._check_group(what, values)

    def _check_group(self, what: str, values: dict[str, Any]) -> None:
        members, keys = tuple(values["members"]), tuple(Secret(k) for k in values["pair_keys"])
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
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "pair_keys", keys)

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR. Secret: store it 0600, erase it when it is used."""
        body: dict[str, Any] = {"v": VERSION, "state": type(self).__name__}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(value, Identity):
                value = value.public
            elif isinstance(value, Roster):
                value = value.to_bytes()
            body[f.name] = b"" if value is None else value
        return dumps(body)

    @classmethod
    def _decode(cls, data: bytes, identity: Identity | None) -> Self:
        what = f"stored {cls.__name__}"
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        kinds = {"v": int, "state": str, **{name: _WIRE[name] for name in names}}
        stored = loads(data, MAX_STATE, what)
        added = [name for name in names if name.startswith("scheme_")]
        if (
            isinstance(stored, dict)
            and type(stored.get("v")) is int
            and stored["v"] == 1  # before schemes had keys of their own
            and added
            and not stored.keys() & added  # a damaged version must not cost the keys that are there
        ):
            stored = {**stored, "v": VERSION, **dict.fromkeys(added, b"")}
        body = record(stored, what, kinds)
        if (body.pop("v"), body.pop("state")) != (VERSION, cls.__name__):
            raise ProtocolError(f"{what}: another kind of state, or another version")
        for name in ("members", "pair_keys"):
            if not all(type(item) is bytes for item in body.get(name, [])):
                raise ProtocolError(f"{what}: {name} must be byte strings")
        if identity is not None:
            if body["identity"] != identity.public:
                raise ProtocolError(f"{what}: it belongs to another identity")
            body["identity"] = identity
        absent = cls._OPTIONAL_ROSTER and not body["roster"]
        body["roster"] = None if absent else Roster.from_bytes(body["roster"])
        return cls(**body)


class _Step(_State):
    """A state before the epoch; it signs, so it needs the identity."""

    __slots__ = ()

    @classmethod
    def from_bytes(cls, data: bytes, identity: Identity) -> Self:
        """Decode what `to_bytes` wrote. Raises ProtocolError for anything else."""
        return cls._decode(data, identity)


@dataclass(frozen=True, slots=True)
class Advertised(_Step):
    """After ADVERTISE: the ephemeral secret, and the message as it was sent."""

    _OPTIONAL_ROSTER: ClassVar[bool] = True
    identity: Identity
    run_id: int
    number: int
    roster: Roster | None
    secret: bytes
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(_Step):
    """After SHARE: members are agreed. `contribution` is r_i, `sent` the hash of the own SHAREs."""

    identity: Identity
    run_id: int
    number: int
    roster: Roster
    members: tuple[bytes, ...]
    t1: bytes
    pair_keys: tuple[bytes, ...]
    contribution: bytes
    sent: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed(_Step):
    """After CONFIRM: the key is known, but nobody knows yet whether all have the same.

    `scheme_public` and `scheme_secret` are the scheme's own key pair, once there is one, and
    `scheme_terms` the hash of the terms that it was made for; see `flhe.keys.agreement.key_pair`.
    """

    identity: Identity
    run_id: int
    number: int
    roster: Roster
    members: tuple[bytes, ...]
    t2: bytes
    pair_keys: tuple[bytes, ...]
    group_key: bytes
    message: bytes
    scheme_public: bytes = b""
    scheme_secret: bytes = b""
    scheme_terms: bytes = b""


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

    id: bytes
    number: int
    run_id: int
    roster: Roster
    members: tuple[bytes, ...]
    rank: int
    group_key: bytes
    pair_keys: tuple[bytes, ...] = field(repr=False)
    scheme_public: bytes = b""
    scheme_secret: bytes = b""

    @property
    def size(self) -> int:
        """How many members take part."""
        return len(self.members)

    @property
    def model_key(self) -> Secret:
        """Key that models are sealed under, and nothing else, 32 bytes; see `agreement.model_key`."""
        return hkdf(self.group_key, "models", self.run_id, self.roster.hash, self.id)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` wrote. Raises ProtocolError for anything else."""
        return cls._decode(data, None)
