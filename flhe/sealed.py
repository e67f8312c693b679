"""Sealed: a ciphertext that says what it is a sum of.

A `Slot` names one round of one federation; with a sender's rank it names the one use of a mask. A
`Sealed` carries its slot and its senders, because every reader needs them: FLASHE to unmask, SASH to
release keys, weights to divide.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError, ReuseError
from flhe.keys import canonical

VERSION = 1
MAX_HEADER = 64 * 1024
"""Largest accepted header, in bytes: 1024 senders take under 4 KiB."""

MAX_LENGTH = 1 << 40
"""Largest accepted number of lanes in one ciphertext."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The one round, of one epoch, of one run that a mask belongs to.

    Parameters
    ----------
    run_id : int
        Flower's run id, unsigned 64 bits.
    roster_hash : bytes
        SHA-256 of the roster, 32 bytes.
    epoch : bytes
        Epoch id, 16 bytes, derived from the key agreement; never a number from the server.
    round, attempt : int
        Round from 1, attempt from 0, both below 2**32.
    layout_hash : bytes
        SHA-256 over names, shapes, dtypes, terms and scheme parameters, 32 bytes.
    history : bytes
        SHA-256 chain over the initial model and every sum opened since, 32 bytes. All of it is
        known to the server anyway; members who were shown different ones derive different masks, so
        their updates cannot be added up unnoticed.
    """

    run_id: int
    roster_hash: bytes
    epoch: bytes
    round: int
    attempt: int
    layout_hash: bytes
    history: bytes

    def __post_init__(self) -> None:
        hashes = (self.roster_hash, self.epoch, self.layout_hash, self.history)
        lengths = tuple(len(h) for h in hashes)
        if lengths != (32, 16, 32, 32):
            raise ProtocolError(f"Slot: hashes of {lengths} bytes, expected (32, 16, 32, 32)")
        if not (0 <= self.run_id < 1 << 64):
            raise ProtocolError("Slot: run_id does not fit 64 unsigned bits")
        if not (0 <= self.round < 1 << 32 and 0 <= self.attempt < 1 << 32):
            raise ProtocolError("Slot: round and attempt must be 0 to 2**32 - 1")

    def context(self) -> tuple[int | bytes, ...]:
        """Everything a key of this round is derived from."""
        return (
            self.run_id,
            self.roster_hash,
            self.epoch,
            self.round,
            self.attempt,
            self.layout_hash,
            self.history,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sealed:
    """One ciphertext, or the sum of several.

    Parameters
    ----------
    scheme : str
        Name of the scheme that made it.
    slot : Slot
        Round that it belongs to.
    senders : tuple[int, ...]
        Ranks of the clients whose vectors are summed in it, ascending, each once.
    length : int
        Number of values, extras included.
    data : NDArray[uint8]
        The ciphertext as it travels.
    """

    scheme: str
    slot: Slot
    senders: tuple[int, ...]
    length: int
    data: NDArray[np.uint8] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        if not self.senders or list(self.senders) != sorted(set(self.senders)):
            raise ReuseError(f"Sealed: senders {self.senders} must ascend, each once, at least one")
        if self.senders[0] < 0:
            raise ProtocolError(f"Sealed: sender {self.senders[0]} is not a rank")
        if not 0 <= self.length < MAX_LENGTH:
            raise ProtocolError(f"Sealed: length {self.length} is out of range")

    def header(self) -> bytes:
        """Everything but the ciphertext, as canonical CBOR."""
        return canonical.dumps(
            [VERSION, self.scheme, list(self.slot.context()), list(self.senders), self.length]
        )

    def digest(self) -> bytes:
        """SHA-256 over header and ciphertext, 32 bytes."""
        hasher = hashlib.sha256(self.header())
        hasher.update(self.data.data)
        return hasher.digest()

    @classmethod
    def from_parts(cls, header: bytes, data: NDArray[np.uint8]) -> Sealed:
        """Rebuild from `header()` and the ciphertext; nothing is copied.

        Raises
        ------
        ProtocolError
            When the header is not exactly what `header()` writes.
        """
        fields = canonical.loads(header, MAX_HEADER, "sealed header")
        match fields:
            case [version, str(scheme), list(context), list(senders), length]:
                pass
            case _:
                raise ProtocolError("sealed header: not [version, scheme, slot, senders, length]")
        # `type(...) is int`, because True is an int too and would be a second encoding of 1.
        if type(version) is not int or version != VERSION:
            raise ProtocolError(f"sealed header: another version, this flhe reads {VERSION}")
        if [type(c) for c in context] != [int, bytes, bytes, int, int, bytes, bytes]:
            raise ProtocolError("sealed header: malformed slot")
        if type(length) is not int or not all(type(s) is int for s in senders):
            raise ProtocolError("sealed header: a sender or the length is not an integer")
        slot = Slot(*context)
        return cls(scheme, slot, tuple(senders), length, data)


def merged_senders(total: Sealed, part: Sealed, cohort: int) -> tuple[int, ...]:
    """Senders of `total + part`, after checking that the two may be added.

    Raises
    ------
    ProtocolError
        Another scheme, round, parameter set, length or a sender outside the cohort.
    ReuseError
        A sender that is already in the total.
    """
    for name in ("scheme", "slot", "length"):
        if getattr(total, name) != getattr(part, name):
            raise ProtocolError(f"add: the part's {name} is not the total's; sums are of one round")
    check_senders(part.senders, cohort)
    if repeated := set(total.senders) & set(part.senders):
        raise ReuseError(f"add: sender {min(repeated)} is already in the sum")
    return tuple(sorted(total.senders + part.senders))


def check_senders(senders: Iterable[int], cohort: int) -> None:
    """Refuse a rank that no member of the cohort has."""
    for sender in senders:
        if not 0 <= sender < cohort:
            raise ProtocolError(f"sender {sender} is not in the cohort of {cohort}")
