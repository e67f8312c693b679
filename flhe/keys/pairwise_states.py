"""What a member of a pairwise masking remembers between its steps.

The states hold secrets: `to_bytes` is for a file that only the owner reads, and repr shows `<32
bytes>`. Identity, epoch and plan are not in the bytes; `from_bytes` takes them and checks that they are
the ones the state belongs to.

Secrets go as early as they can: once a vector is masked, neither the seed nor the key is needed by its
owner; once the shares are given away, nothing secret is left.

Source: Bonawitz et al., CCS 2017, Fig. 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from flhe.errors import ProtocolError
from flhe.keys.canonical import dumps, loads, record
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Identity, Secret
from flhe.keys.pairwise_plan import Plan

VERSION = 1
MAX_STATE = 1 << 20
"""Longest encoded state, bytes; 1024 members take a tenth of it."""

SEED = 32
"""Bytes of a seed and of an X25519 secret: four field elements."""


class _State:
    """Encoding that all states share."""

    __slots__ = ()
    identity: Identity
    epoch: Epoch
    plan: Plan
    _SIZES: ClassVar[dict[str, tuple[int, ...]]] = {
        "secret": (SEED,),
        "seed": (SEED,),
        "publics": (0, 32),
        "shares": (0, 2 * SEED),
    }

    def __post_init__(self) -> None:
        """Hide the secrets and check their sizes. Raises ProtocolError."""
        what = type(self).__name__
        self.plan.check(self.epoch)
        if self.identity.public != self.epoch.members[self.epoch.rank]:
            raise ProtocolError(f"{what}: this identity is not that of the epoch's member")
        around = self.plan.graph.holders
        for name, sizes in self._SIZES.items():
            value = getattr(self, name, None)
            if isinstance(value, tuple):
                if len(value) != around or not all(len(item) in sizes for item in value):
                    raise ProtocolError(f"{what}: {name} must be {around} strings of {sizes} bytes")
                object.__setattr__(self, name, tuple(Secret(item) for item in value))
            elif value is not None:
                if len(value) not in sizes:
                    raise ProtocolError(f"{what}: {name} must be {sizes[0]} bytes")
                object.__setattr__(self, name, Secret(value))

    @property
    def rank(self) -> int:
        """The own rank."""
        return self.epoch.rank

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR. Secret: store it 0600, erase it when it is used."""
        return dumps({"v": VERSION, "state": type(self).__name__, **self._bound(), **self._kept()})

    def _bound(self) -> dict[str, Any]:
        return {"identity": self.identity.public, "plan": self.plan.hash}

    def _kept(self) -> dict[str, Any]:
        names = [f.name for f in fields(self) if f.name not in ("identity", "epoch", "plan")]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_bytes(cls, data: bytes, identity: Identity, epoch: Epoch, plan: Plan) -> Self:
        """Decode what `to_bytes` wrote. Raises ProtocolError for anything else."""
        what = f"stored {cls.__name__}"
        names = [f.name for f in fields(cls) if f.name not in ("identity", "epoch", "plan")]  # type: ignore[arg-type]
        lists = {"publics": bytes, "shares": bytes, "senders": int}
        kinds: dict[str, type] = {"v": int, "state": str, "identity": bytes, "plan": bytes}
        kinds |= {name: list if name in lists else bytes for name in names}
        body = record(loads(data, MAX_STATE, what), what, kinds)
        if (body.pop("v"), body.pop("state")) != (VERSION, cls.__name__):
            raise ProtocolError(f"{what}: another kind of state, or another version")
        if (body.pop("identity"), body.pop("plan")) != (identity.public, plan.hash):
            raise ProtocolError(f"{what}: it belongs to another identity or another sum")
        for name in lists.keys() & body.keys():
            if not all(type(item) is lists[name] for item in body[name]):
                raise ProtocolError(f"{what}: {name} must all be {lists[name].__name__}")
            body[name] = tuple(body[name])
        whole: dict[str, Any] = {"identity": identity, "epoch": epoch, "plan": plan, **body}
        return cls(**whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised(_State):
    """After "mask-key": the X25519 secret s_u, the seed b_u, and the message as it was sent."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    secret: bytes
    seed: bytes
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(_State):
    """After "mask-share": neighbours' keys and the own share, by place in `graph.around(rank)`."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    secret: bytes
    seed: bytes
    publics: tuple[bytes, ...] = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(_State):
    """After masking: shares of neighbours' secrets, by place in `graph.around(rank)`.

    `message` is the "mask-with" that goes with the masked vector.
    """

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(_State):
    """After "mask-set": the one set that this member signs."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)
    senders: tuple[int, ...]
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(_State):
    """After "mask-open": the answer as it was sent; nothing secret is left."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)
    senders: tuple[int, ...]
    message: bytes = field(repr=False)
