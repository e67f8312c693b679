"""Keys of CKKS: one ternary polynomial that all members share, and what a server has in its place.

Encryption is under the secret key, so there is no public key. What is public is TenSEAL's context for
the ring, with no key in it, and a digest that says which key the members use: parameters that nobody
can decrypt with. The server checks the context byte for byte.

Source: FedML-HE, Algorithm 1 (key and crypto context), App. B.
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
from flhe.schemes.fedml_he.presets import CKKS, ckks_preset
from flhe.schemes.fedml_he.sizes import CkksSizes
from flhe.schemes.seal_format import MAX_CONTEXT, Words, to_seal_order
from flhe.wire import canonical
from flhe.wire.derive import PREFIX
from flhe.wire.fields import Hash, Rule
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

VERSION = 1
MAX_BYTES = MAX_CONTEXT + 4096
"""Longest encoding that is read."""


_Context = Annotated[
    bytes, Rule(f"1 to {MAX_CONTEXT} bytes", lambda context: 0 < len(context) <= MAX_CONTEXT)
]


@dataclass(frozen=True, slots=True)
class CkksPublic(Record):
    """What the server has: the ring, and which key the members use in it.

    Parameters
    ----------
    ring : str
        Preset.
    key_id : bytes
        Digest of the secret key, 32 bytes; keys have thousands of bits, so it gives none away.
    context : bytes
        TenSEAL's context, without any key.
    """

    FORM = Form("ckks-public", MAX_BYTES, "ckks-public", VERSION)

    ring: str
    key_id: Hash
    context: _Context = field(repr=False)

    def check(self, ring: str, sizes: CkksSizes) -> None:
        """Refuse another ring than agreed, and a context that holds a key, or anything unexpected.

        Raises
        ------
        ProtocolError
            What is wrong with it.
        """
        if self.ring != ring:
            raise ProtocolError(
                f"fedml-he: the public context is of ring {self.ring!r}, not {ring!r}"
            )
        try:
            sizes.seal.check_context(self.context)
        except ProtocolError as error:
            raise ProtocolError(f"fedml-he: public context: {error}") from None


@dataclass(frozen=True, slots=True)
class _Packed(Record):
    """A secret key as it is written, five coefficients a byte."""

    FORM = Form("ckks-secret", MAX_BYTES, "ckks-secret", VERSION)

    ring: str
    s: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class CkksSecret:
    """What members have: they encrypt and decrypt with it.

    Parameters
    ----------
    ring : str
        Preset.
    coefficients : NDArray[int8]
        Shape (dimension,), each -1, 0 or 1; secret.
    """

    ring: str
    coefficients: NDArray[np.int8] = field(repr=False)

    def __post_init__(self) -> None:
        s, n = self.coefficients, ckks_preset(self.ring).dimension
        if s.dtype != np.int8 or s.shape != (n,) or np.abs(s).max() > 1:
            raise ConfigError(f"CkksSecret: {n} coefficients of -1, 0 or 1 as int8 are needed")

    def __repr__(self) -> str:
        return f"CkksSecret(<{self.coefficients.size} coefficients>)"

    @classmethod
    def generate(cls, ring: str, random: Random = secrets.token_bytes) -> CkksSecret:
        """Draw a key.

        Raises
        ------
        ConfigError
            An unknown ring; a random source that gives another number of bytes than asked for.
        """
        return cls(ring, ternary.draw(ckks_preset(ring).dimension, random))

    @property
    def key_id(self) -> bytes:
        """SHA-256 that stands for the key, 32 bytes."""
        return hashlib.sha256(canonical.dumps([PREFIX + "ckks-key", self.to_bytes()])).digest()

    def public(self, sizes: CkksSizes) -> CkksPublic:
        """What the server gets."""
        return CkksPublic(self.ring, self.key_id, sizes.seal.context())

    def transform(self, sizes: CkksSizes) -> Words:
        """The key as SEAL holds it: uint64 (n,), secret."""
        ring = sizes.ring
        lifted = ternary.lift(self.coefficients, ring.q)
        return ring.forward(lifted)[to_seal_order(ring)]

    def to_bytes(self) -> bytes:
        """Canonical CBOR, five coefficients a byte; the bytes are secret."""
        return _Packed(self.ring, ternary.pack(self.coefficients)).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> CkksSecret:
        """Inverse of `to_bytes`; ProtocolError for anything else."""
        stored = _Packed.from_bytes(data)
        if stored.ring not in CKKS:
            raise ProtocolError("ckks-secret: a ring that this flhe does not have")
        n = ckks_preset(stored.ring).dimension
        return cls(stored.ring, ternary.unpack(stored.s, n, "ckks-secret"))

    def check(self, ring: str) -> None:
        """Refuse a key of another ring, or one that no honest member drew; ProtocolError."""
        if self.ring != ring:
            raise ProtocolError(f"fedml-he: the key is of ring {self.ring!r}, not {ring!r}")
        ternary.check_drawn(self.coefficients, "fedml-he")
