"""What a member of a pairwise masking remembers between its steps.

The states hold secrets, and repr shows `<32 bytes>`. Secrets go as early as they can: once a vector is
masked, neither the seed nor the key is needed by its owner; once the shares are given away, nothing
secret is left.

Source: Bonawitz et al., CCS 2017, Fig. 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flhe.errors import ProtocolError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.wire.secret import Secret
from flhe_lab.variants.secagg.plan import Plan

SEED = 32
"""Bytes of a seed and of an X25519 secret: four field elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What all states share; ProtocolError where they are not of one member and sum."""

    identity: Identity
    epoch: Epoch = field(repr=False)
    plan: Plan = field(repr=False)

    def __post_init__(self) -> None:
        self.plan.check(self.epoch)
        if self.identity.public != self.epoch.members[self.epoch.rank]:
            raise ProtocolError("this identity is not that of the epoch's member")
        for name in ("secret", "seed"):
            if hasattr(self, name):
                object.__setattr__(self, name, Secret(getattr(self, name)))

    @property
    def rank(self) -> int:
        """The own rank."""
        return self.epoch.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised(State):
    """After "mask-key": the X25519 secret s_u, the seed b_u, and the message as it was sent."""

    secret: bytes
    seed: bytes
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(State):
    """After "mask-share": neighbours' keys and the own share, by place in `graph.around(rank)`."""

    secret: bytes
    seed: bytes
    publics: tuple[bytes, ...] = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(State):
    """After masking: shares of neighbours' secrets, by place in `graph.around(rank)`.

    `message` is the "mask-with" that goes with the masked vector.
    """

    shares: tuple[bytes, ...] = field(repr=False)
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(State):
    """After "mask-set": the one set that this member signs."""

    shares: tuple[bytes, ...] = field(repr=False)
    senders: tuple[int, ...]
