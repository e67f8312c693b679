"""SEAL's and TenSEAL's encodings, as far as the schemes read and write them.

TenSEAL gives no access to the words of a polynomial. Its messages are protobuf
(tenseal/proto/*.proto) around SEAL's objects. This module writes without compression: random
residues do not shrink. There is one modulus, so no relinearization keys, which TenSEAL's own
constructor requires.

SEAL stores a polynomial as its transform: values at the powers psi^(2 rev(i) + 1) of the least
primitive 2 n-th root of unity psi, rev(i) reversing the bits of i. `to_seal_order` maps them to a
transform of `flhe.math.ring`.

Source: Microsoft SEAL 4.1 to 4.3 (serialization.h, ciphertext.cpp, util/ntt.h); TenSEAL 0.3.18.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.ring import Elements, PrimeRing

HEADER = struct.Struct("<HBBBBHQ")
"""Magic, header length, major and minor version, mode of compression, reserved, total length."""

MAGIC, MAJOR = 0xA15E, 4

PLAIN, ZSTD = 0, 2
"""Modes of compression."""

BFV, CKKS = 1, 2
"""SEAL's numbers for its schemes."""

SYMMETRIC = 1
"""TenSEAL's number for encryption under the secret key."""

NO_SCALE = -1.0
"""Scale that TenSEAL writes for a context without one."""

AUTO_FLAGS = 7
"""Relinearize, rescale, switch moduli: TenSEAL's default, none of it is used here."""


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """Return a number of 0 or more as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


@dataclass(frozen=True, slots=True)
class SealFormat:
    """Encodings for one ring of dimension n, q a prime of at most 60 bits.

    Parameters
    ----------
    minor : int
        SEAL's minor version, because SEAL loads only its own; 0 if nothing is written.
    plain : int
        BFV's plain modulus; 0 for CKKS, which has none.
    """

    n: int
    q: int
    minor: int = 0
    plain: int = 0

    @property
    def kind(self) -> int:
        """SEAL's number for the scheme."""
        return BFV if self.plain else CKKS

    @property
    def slots(self) -> int:
        """Values in a ciphertext of one block: reals, or integers modulo the plain modulus."""
        return self.n if self.plain else self.n // 2

    @property
    def id(self) -> bytes:
        """SEAL's hash of the parameters, 32 bytes, which all its objects contain."""
        words = struct.pack("<4Q", self.kind, self.n, self.q, self.plain)
        return hashlib.blake2b(words, digest_size=32).digest()

    def parameters(self) -> bytes:
        """Return EncryptionParameters: scheme, dimension, moduli, and the plain modulus."""
        moduli = (self.wrap(struct.pack("<Q", modulus)) for modulus in (self.q, self.plain))
        return self.wrap(struct.pack("<BQQ", self.kind, self.n, 1) + b"".join(moduli))

    def context(self, key: Elements) -> bytes:
        """Return a TenSEALContext for encryption under the secret key; the bytes are secret too.

        `key` is its transform in SEAL's order, uint64 (n,).
        """
        public = b"\x10" + varint(AUTO_FLAGS) + b"\x19" + struct.pack("<d", NO_SCALE)
        # A SecretKey is saved as a Plaintext: coefficients, scale, words.
        members = self.id + struct.pack("<Qd", self.n, 1.0) + self.array(key.tobytes())
        secret = _field(1, self.wrap(members))
        fields = (self.parameters(), public, secret)
        parts = b"".join(_field(number, data) for number, data in enumerate(fields, 1))
        return parts + b"\x20" + varint(SYMMETRIC)

    def wrap(self, members: bytes) -> bytes:
        """Return one of SEAL's objects: its header, and its members."""
        size = HEADER.size + len(members)
        return HEADER.pack(MAGIC, HEADER.size, MAJOR, self.minor, PLAIN, 0, size) + members

    def array(self, words: bytes) -> bytes:
        """Return a DynArray of words."""
        return self.wrap(struct.pack("<Q", len(words) // 8) + words)

    def vector(self, c0: Elements, c1: Elements, scale: float) -> bytes:
        """Return a CKKSVector or BFVVector of one ciphertext, of which all slots are used.

        Polynomials are transforms in CKKS, and coefficients in BFV, whose scale is 1.
        """
        head, tail = _ends(self, scale)
        return b"".join([head, c0.data, c1.data, tail])

    def polynomials(self, vector: bytes, decompress: Any) -> tuple[Elements, Elements]:
        """Return both polynomials of a fresh one-ciphertext vector that TenSEAL has written.

        TenSEAL made it in this process, so few checks are needed. `decompress` is zstandard's.

        Raises ConfigError: a version of TenSEAL that writes another format.
        """
        end = len(vector) - (0 if self.plain else 9)  # CKKS's scale comes last
        start = 1 + 1 + len(varint(self.slots)) + 1
        while vector[start] > 127:
            start += 1
        start += 1
        magic, _, major, _, mode, _, size = HEADER.unpack_from(vector, start)
        members: Any = memoryview(vector)[start + HEADER.size : end]
        if magic == MAGIC and mode == ZSTD:
            members = decompress.decompress(members, max_output_size=17 * self.n)
        words = len(members) - 16 * self.n
        known = magic == MAGIC and major == MAJOR and size == end - start and words == 97
        if not known or bytes(members[:32]) != self.id:
            raise ConfigError(
                "TenSEAL writes ciphertexts in a format that this flhe does not know: install "
                "tenseal 0.3.18, with which this flhe is tested"
            )
        both = np.frombuffer(members, "<u8", 2 * self.n, words)
        return both[: self.n], both[self.n :]


@functools.lru_cache(maxsize=16)
def _ends(seal: SealFormat, scale: float) -> tuple[bytes, bytes]:
    """Return the bytes before and after the words of a ciphertext, which are thus copied only once."""
    words = bytes(16 * seal.n)
    transformed = seal.kind == CKKS
    members = struct.pack("<BQQQdQ", transformed, 2, seal.n, 1, scale, 1)
    blob = seal.wrap(seal.id + members + seal.array(words))
    head = _field(1, varint(seal.slots)) + _field(2, blob)
    return head[: -len(words)], b"\x19" + struct.pack("<d", scale) if transformed else b""


@functools.cache
def to_seal_order(ring: PrimeRing) -> NDArray[np.int64]:
    """Return the places in a transform of `ring` of the values of SEAL's transform: (n,)."""
    x = np.zeros(ring.n, np.uint64)
    x[1] = 1
    # The transform of x is the points themselves: all primitive 2 n-th roots of unity.
    points = ring.forward(x).tolist()
    where, psi = {point: place for place, point in enumerate(points)}, min(points)
    bits = ring.n.bit_length() - 1
    reversed_ = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(ring.n))
    return np.array([where[pow(psi, 2 * r + 1, ring.q)] for r in reversed_], np.int64)
