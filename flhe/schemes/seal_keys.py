"""Keys of SEAL: one ternary polynomial that all members share, and its digest for the server.

Encryption is under the secret key, so there is no public key. A public digest identifies the
members' key: it cannot decrypt, and members with different keys derive different slots.

Coefficients are uniform in {-1, 0, 1}, as SEAL draws them and the standard assumes.

Source: Microsoft SEAL 4.1 (`KeyGenerator`); Homomorphic Encryption Standard (2018), Table 1.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.math.prg import drawn
from flhe.schemes.presets import SEAL
from flhe.wire.derive import hash_of
from flhe.wire.fields import As, Hash
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

Ternary = NDArray[np.int8]

VERSION = 1
MAX_BYTES = 4096
"""Maximum length of an encoding; a key of the largest ring takes 1.7 KB."""

TRIT = 3
PER_BYTE = 5
"""Coefficients in one byte: 3^5 = 243."""
_PLACES = np.array([3**k for k in range(PER_BYTE)], np.int64)


def draw(n: int, random: Random) -> Ternary:
    """Draw a fresh polynomial, int8 (n,); ConfigError as for `drawn`."""
    out = np.empty(0, np.int8)
    while out.size < n:
        data = np.frombuffer(drawn(random, n), np.uint8)
        # 255 is a multiple of 3: without the last byte value, all three are equally likely.
        trits = (data[data < 255] % TRIT).astype(np.int8) - np.int8(1)
        out = np.concatenate([out, trits])
    return out[:n].copy()


def pack(s: Ternary) -> bytes:
    """Pack five coefficients a byte, the first lowest; the bytes are as secret as the polynomial."""
    trits = np.zeros(-(-s.size // PER_BYTE) * PER_BYTE, np.int64)
    trits[: s.size] = s.astype(np.int64) + 1
    return (trits.reshape(-1, PER_BYTE) @ _PLACES).astype(np.uint8).tobytes()


def unpack(data: bytes) -> Ternary:
    """Invert `pack`, for a power of two of coefficients; ValueError for anything else."""
    packed = np.frombuffer(data, np.uint8).astype(np.int64)
    trits = (packed[:, None] // _PLACES % TRIT).reshape(-1)
    n = 1 << (max(trits.size, 1).bit_length() - 1)
    return (trits[:n] - 1).astype(np.int8)  # callers check that it packs to the same bytes


@dataclass(frozen=True, slots=True)
class SealPublic(Record):
    """The server's record: the ring's preset, and the digest of the members' key in it.

    `key_id` is a digest of the secret key; keys have thousands of bits, so the digest reveals none.
    """

    FORM = Form("seal-public", MAX_BYTES, "seal-public", VERSION)

    ring: str
    key_id: Hash

    def check(self, ring: str) -> None:
        """Refuse a key of another ring; ProtocolError."""
        if self.ring != ring:
            raise ProtocolError(
                f"seal-public: the public part is of ring {self.ring!r}, not {ring!r}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class SealSecret(Record):
    """The members' key: they encrypt and decrypt with it.

    `coefficients` are int8 (dimension,), each -1, 0 or 1; an encoding holds five of them a byte.
    """

    FORM = Form("seal-secret", MAX_BYTES, "seal-secret", VERSION)

    ring: str
    coefficients: Annotated[Ternary, As(pack, unpack, "the coefficients of one key")] = field(
        repr=False
    )

    def _validate(self) -> None:
        known, s = SEAL.get(self.ring), self.coefficients
        shaped = known is not None and s.dtype == np.int8 and s.shape == (known.dimension,)
        if not shaped or np.abs(s.astype(np.int16)).max() > 1:
            raise ProtocolError(
                "seal-secret: not the coefficients of one key of a ring, -1, 0 or 1"
            )

    @classmethod
    def generate(cls, ring: str, random: Random = secrets.token_bytes) -> SealSecret:
        """Draw a key; ConfigError for a random source that gives another number of bytes."""
        return cls(ring, draw(SEAL[ring].dimension, random))

    @property
    def public(self) -> SealPublic:
        """The server's record of this key."""
        return SealPublic(self.ring, hash_of("seal-key", self.to_bytes()))

    def check(self, ring: str) -> None:
        """Refuse a key of another ring, or one that no honest member drew; ProtocolError.

        Each value has a third of the coefficients: a share that is ten standard deviations off was
        not drawn at random.
        """
        s = self.coefficients
        if self.ring != ring:
            raise ProtocolError(f"seal-secret: the key is of ring {self.ring!r}, not {ring!r}")
        shares = np.bincount(s.astype(np.int64) + 1, minlength=TRIT)
        if np.abs(shares - s.size / TRIT).max() > 10 * (s.size * 2 / 9) ** 0.5:
            raise ProtocolError("seal-secret: the key pair is unusable, its key is not random")
