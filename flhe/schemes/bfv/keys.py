"""Keys of BFV: one ternary polynomial that all members share, and what a server has in its place.

Encryption is under the secret key, so there is no public key. What is public is a digest that says
which key the members use: nobody can decrypt with it, and members with different keys derive different
slots.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.schemes import ternary
from flhe.schemes.bfv.presets import RINGS
from flhe.wire import canonical
from flhe.wire.arrays import array
from flhe.wire.derive import PREFIX
from flhe.wire.fields import Hash
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

VERSION = 1
MAX_BYTES = 1 << 14
"""Longest encoding that is read; a key of the larger ring takes 8 KiB."""


@dataclass(frozen=True, slots=True)
class BfvPublic(Record):
    """What the server has: the ring, and which key the members use in it.

    Parameters
    ----------
    ring : str
        Its name.
    key_id : bytes
        Digest of the secret key, 32 bytes; keys have thousands of bits, so it gives none away.
    """

    FORM = Form("bfv-public", MAX_BYTES, "bfv-public", VERSION)

    ring: str
    key_id: Hash

    def check(self, ring: str) -> None:
        """Refuse a key of another ring; ProtocolError."""
        if self.ring != ring:
            raise ProtocolError(f"bfv: the public part is of ring {self.ring!r}, not {ring!r}")


@dataclass(frozen=True, slots=True, eq=False)
class BfvSecret(Record):
    """What members have: they encrypt and decrypt with it.

    Parameters
    ----------
    ring : str
        Its name.
    coefficients : NDArray[int8]
        Shape (dimension,), each -1, 0 or 1; secret.
    """

    FORM = Form("bfv-secret", MAX_BYTES, "bfv-secret", VERSION)

    ring: str
    coefficients: Annotated[NDArray[np.int8], array(np.int8)] = field(repr=False)

    def _validate(self) -> None:
        known, s = RINGS.get(self.ring), self.coefficients
        if known is None or s.shape != (known.dimension,) or np.abs(s.astype(np.int16)).max() > 1:
            raise ProtocolError("bfv-secret: not the coefficients of one key of a ring")

    def __repr__(self) -> str:
        return f"BfvSecret(<{self.coefficients.size} coefficients>)"

    @classmethod
    def generate(cls, ring: str, random: Random = secrets.token_bytes) -> BfvSecret:
        """Draw a key; ConfigError for a random source that gives another number of bytes."""
        return cls(ring, ternary.draw(RINGS[ring].dimension, random))

    @property
    def public(self) -> BfvPublic:
        """What the server gets."""
        said = canonical.dumps([PREFIX + "bfv-key", self.to_bytes()])
        return BfvPublic(self.ring, hashlib.sha256(said).digest())

    def check(self, ring: str) -> None:
        """Refuse a key of another ring, or one that no honest member drew; ProtocolError."""
        if self.ring != ring:
            raise ProtocolError(f"bfv: the key is of ring {self.ring!r}, not {ring!r}")
        ternary.check_drawn(self.coefficients, "bfv")


def same_ring(secret: BfvSecret, ring: str) -> None:
    """Refuse to work with a key of another ring; ConfigError."""
    if secret.ring != ring:
        raise ConfigError(f"bfv: a key of ring {secret.ring!r}, not of {ring!r}")
