"""What parties of a threshold decryption answer, and what they remember of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.schemes.sealed import Sealed
from flhe.wire import canonical

VERSION = 1


@dataclass(frozen=True, slots=True)
class Answered:
    """What a party has answered; it only grows, and must outlive the process."""

    names: frozenset[bytes] = frozenset()
    """Hashes of slots, and of c1 of ciphertexts, 32 bytes each."""


Claim = Callable[[Answered], None]
"""Makes a state durable, or raises: nothing is computed before it returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """One party's answer. Whoever has all t of them has the sum: seal them for those who may."""

    rank: int  # Whose it is
    chosen: tuple[int, ...]  # T, ascending
    opening: bytes  # Names ciphertext, slot and T, 32 bytes
    data: NDArray[np.uint8] = field(repr=False)  # d_j, as c0 travels

    def header(self) -> bytes:
        """Everything but `data`, as canonical CBOR."""
        return canonical.dumps([VERSION, self.rank, list(self.chosen), self.opening])


def opening_name(total: Sealed, chosen: Sequence[int]) -> bytes:
    """SHA-256 that names one opening: ciphertext, slot, senders and T."""
    data = canonical.dumps(["flhe/v1/threshold-opening", total.digest(), list(chosen)])
    return hashlib.sha256(data).digest()
