"""What parties of `flhe.schemes.threshold_opening` answer, and what they remember of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.keys import canonical
from flhe.sealed import MAX_HEADER, MAX_SMALL, Sealed

VERSION = 1


@dataclass(frozen=True, slots=True)
class Answered:
    """What a party has answered; it only grows, and must outlive the process.

    Parameters
    ----------
    names : frozenset of bytes
        Hashes of slots, and of c1 of ciphertexts, 32 bytes each.
    """

    names: frozenset[bytes] = frozenset()

    def to_bytes(self) -> bytes:
        """Encode; nothing in it is secret."""
        return canonical.dumps([VERSION, "threshold-answered", sorted(self.names)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Answered:
        """Inverse of `to_bytes`; ProtocolError for anything else."""
        match canonical.loads(data, MAX_SMALL, "answered"):
            case [int(version), "threshold-answered", list(names)] if (
                type(version) is int
                and version == VERSION
                and all(type(name) is bytes and len(name) == 32 for name in names)
                and names == sorted(set(names))
            ):
                return cls(frozenset(names))
        raise ProtocolError("answered: malformed, or of another version of flhe")


Claim = Callable[[Answered], None]
"""Makes a state durable, or raises: nothing is computed before it returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """One party's answer. Whoever has all t of them has the sum: seal them for those who may.

    Parameters
    ----------
    rank : int
        Whose it is.
    chosen : tuple of int
        T, ascending.
    opening : bytes
        Names ciphertext, slot and T, 32 bytes.
    data : NDArray[uint8]
        d_j, as c0 travels.
    """

    rank: int
    chosen: tuple[int, ...]
    opening: bytes
    data: NDArray[np.uint8] = field(repr=False)

    def header(self) -> bytes:
        """Everything but `data`, as canonical CBOR."""
        return canonical.dumps([VERSION, self.rank, list(self.chosen), self.opening])

    @classmethod
    def from_parts(cls, header: bytes, data: NDArray[np.uint8]) -> Partial:
        """Rebuild from `header()` and `data`, which is not copied; ProtocolError for anything else."""
        match canonical.loads(header, MAX_HEADER, "partial decryption"):
            case [version, rank, list(chosen), bytes(opening)] if (
                all(type(number) is int for number in (version, rank, *chosen))
                and version == VERSION
            ):
                return cls(rank, tuple(chosen), opening, data)
        raise ProtocolError("partial decryption: malformed, or of another version of flhe")

    def to_bytes(self) -> bytes:
        """A small one in one piece: canonical CBOR of header and data."""
        return canonical.dumps([self.header(), self.data.tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Partial:
        """Inverse of `to_bytes`; ProtocolError for anything else."""
        match canonical.loads(data, MAX_SMALL, "partial decryption"):
            case [bytes(header), bytes(body)]:
                return cls.from_parts(header, np.frombuffer(body, np.uint8))
        raise ProtocolError("partial decryption: malformed, not [header, data]")


def opening_name(total: Sealed, chosen: Sequence[int]) -> bytes:
    """SHA-256 that names one opening: ciphertext, slot, senders and T."""
    data = canonical.dumps(["flhe/v1/threshold-opening", total.digest(), list(chosen)])
    return hashlib.sha256(data).digest()
