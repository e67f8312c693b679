"""Keys beside the group key: adders of schemes that have keys, and JointKey."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.schemes.base import Adder, Secrets
from flhe.wire.fields import array
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

VERSION = 1
MAX_BYTES = 1 << 20
"""Maximum length of an encoding, bytes: 160 KiB at the largest dimension."""


class KeyPairAdder(Adder):
    """Adder whose members share a key pair, made by one member for all: records of two kinds.

    SECRET has `generate(*size, random)`, `check(*size)`, which refuses a key that no honest member
    makes, and `public`, a PUBLIC. `public` is the epoch's public key, None before there is one.
    """

    __slots__ = ()

    SECRET: ClassVar[Any]
    PUBLIC: ClassVar[Any]
    SIZE: ClassVar[tuple[str, ...]]
    """The scheme's parameters that keys depend on."""
    public: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.public, bytes):  # encoded, as it travels
            object.__setattr__(self, "public", self.PUBLIC.from_bytes(self.public))
        if self.public is not None:
            self.public.check(*self._size)

    @property
    def _size(self) -> list[Any]:
        return [getattr(self.scheme, name) for name in self.SIZE]

    def new_pair(self, random: Random) -> tuple[bytes, bytes]:
        """Make a fresh pair: public part, secret part, encoded."""
        secret = self.SECRET.generate(*self._size, random=random)
        return secret.public.to_bytes(), secret.to_bytes()

    def check_pair(self, public: bytes, secret: bytes) -> None:
        """Refuse a pair that is invalid, or whose parts do not match; ProtocolError."""
        key = self.SECRET.from_bytes(secret)
        key.check(*self._size)
        if key.public != self.PUBLIC.from_bytes(public):
            raise ProtocolError(f"{self.name}: the secret key does not belong to the public one")

    def pair_of(self, secrets: Secrets) -> Any:
        """Return a member's key; ConfigError if it does not match the adder's public key."""
        key = self.SECRET.from_bytes(secrets.needed())
        if self.public is not None and self.public != key.public:
            raise ConfigError(
                f"{self.name}: the secret key does not belong to the adder's public key"
            )
        return key


@dataclass(frozen=True, slots=True, eq=False)
class JointKey(Record):
    """A member's own key s_i, and the sum s of all members', both (dimension,) and secret."""

    FORM = Form("joint key", MAX_BYTES, "eshe-key", VERSION, row=True)

    own: Annotated[NDArray[np.int8], array(np.int8)] = field(repr=False)
    total: Annotated[NDArray[np.int32], array(np.int32)] = field(repr=False)

    def _validate(self) -> None:
        if self.own.shape != self.total.shape:
            raise ProtocolError("joint key: own key and sum are of different dimensions")

    def check(self, adder: Any) -> None:
        """Refuse keys that no honest member makes; ProtocolError."""
        if self.own.shape != (adder.dimension,):
            raise ProtocolError(f"{adder.name}: a key of another dimension than {adder.dimension}")
        adder.check_own(self.own)
        adder.check_total(self.total)
