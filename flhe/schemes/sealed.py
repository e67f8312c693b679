"""Sealed: a ciphertext that says what it is a sum of.

A `Slot` names one round of one federation; with a sender's rank it names the one use of a mask. A
`Sealed` carries its slot and its senders, because every reader needs them: FLASHE to unmask, SASH to
release keys, weights to divide. A sparse one carries its senders' supports too: which coordinates each
of them sent. Its values are those of the supports' union, in order, and then the extras.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.wire import canonical

VERSION = 2
MAX_HEADER = 64 * 1024
"""Largest accepted header, in bytes: 1024 senders take under 4 KiB, with their supports under 52."""

MAX_SMALL = 64 << 20
"""Largest accepted ciphertext in one piece, in bytes."""

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

    def digest(self) -> bytes:
        """SHA-256 of all of it, 32 bytes: names the slot in signed messages."""
        return _digest_of(self)

    @classmethod
    def from_fields(cls, fields: object) -> Slot:
        """Inverse of `context`, as decoded; ProtocolError for anything else."""
        # `type(...) is int`, because True is an int too and would be a second encoding of 1.
        if type(fields) is not list or [type(f) for f in fields] != [
            int,
            bytes,
            bytes,
            int,
            int,
            bytes,
            bytes,
        ]:
            raise ProtocolError("malformed slot")
        return cls(*fields)


@functools.lru_cache(maxsize=16)
def _digest_of(slot: Slot) -> bytes:
    return hashlib.sha256(canonical.dumps(["flhe/v1/slot", *slot.context()])).digest()


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
    mode : str
        Which of its ways the scheme used, where it has several: FLASHE's masking.
    supports : tuple[Support, ...]
        Coordinates of each sender, in the order of `senders`; empty where all sent all of them.
    """

    scheme: str
    slot: Slot
    senders: tuple[int, ...]
    length: int
    data: NDArray[np.uint8] = dataclasses.field(repr=False)
    mode: str = ""
    supports: tuple[Support, ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.senders or list(self.senders) != sorted(set(self.senders)):
            raise ReuseError(f"Sealed: senders {self.senders} must ascend, each once, at least one")
        if self.senders[0] < 0:
            raise ProtocolError(f"Sealed: sender {self.senders[0]} is not a rank")
        if not 0 <= self.length < MAX_LENGTH:
            raise ProtocolError(f"Sealed: length {self.length} is out of range")
        if self.supports and len(self.supports) != len(self.senders):
            raise ProtocolError("Sealed: there must be one support for each sender")
        if len({support.length for support in self.supports}) > 1:
            raise ProtocolError("Sealed: the supports are of vectors of different lengths")

    def header(self) -> bytes:
        """Everything but the ciphertext, as canonical CBOR."""
        return canonical.dumps(
            [
                VERSION,
                self.scheme,
                self.mode,
                list(self.slot.context()),
                list(self.senders),
                self.length,
                [[s.length, len(s.data), s.digest()] for s in self.supports],
            ]
        )

    def body(self) -> list[memoryview]:
        """What `header()` speaks of: the ciphertext, then the supports; nothing is copied."""
        return [self.data.data, *(memoryview(support.data) for support in self.supports)]

    def digest(self) -> bytes:
        """SHA-256 over header and ciphertext, 32 bytes; the header binds the supports."""
        hasher = hashlib.sha256(self.header())
        hasher.update(self.data.data)
        return hasher.digest()

    @classmethod
    def from_parts(
        cls,
        header: bytes,
        body: NDArray[np.uint8],
        supports: Sequence[Support] | None = None,
        *,
        floats: int | None = None,
    ) -> Sealed:
        """Rebuild from `header()` and `body()` in one piece; the ciphertext is not copied.

        Parameters
        ----------
        header, body
            As they were written.
        supports : sequence of Support, optional
            Those that came before; `body` is the ciphertext alone then.
        floats : int, optional
            Length of the vectors that supports may be of; 0 for none. Whoever reads what others wrote
            must say it: a few bytes may stand for many coordinates.

        Raises
        ------
        ProtocolError
            When the header is not exactly what `header()` writes, or the supports are not its.
        """
        fields = canonical.loads(header, MAX_HEADER, "sealed header")
        match fields:
            case [
                version,
                str(scheme),
                str(mode),
                list(context),
                list(senders),
                length,
                list(told),
            ]:
                pass
            case _:
                raise ProtocolError("sealed header: malformed, or of another version of flhe")
        # `type(...) is int`, because True is an int too and would be a second encoding of 1.
        if type(version) is not int or version != VERSION:
            raise ProtocolError(f"sealed header: another version, this flhe reads {VERSION}")
        if type(length) is not int or not all(type(s) is int for s in senders):
            raise ProtocolError("sealed header: a sender or the length is not an integer")
        slot = Slot.from_fields(context)
        if supports is None:
            if len(told) not in (0, len(senders)):
                raise ProtocolError("sealed header: there must be one support for each sender")
            body, supports = _split(body, told, floats)
        sealed = cls(scheme, slot, tuple(senders), length, body, mode, tuple(supports))
        if sealed.header() != header:
            raise ProtocolError("sealed header: these are not the supports that it speaks of")
        return sealed


def to_bytes(sealed: Sealed) -> bytes:
    """A small ciphertext in one piece: canonical CBOR of header and body."""
    return canonical.dumps([sealed.header(), b"".join(sealed.body())])


def from_bytes(data: bytes) -> Sealed:
    """Inverse of `to_bytes` for a dense ciphertext; ProtocolError for anything else."""
    match canonical.loads(data, MAX_SMALL, "sealed"):
        case [bytes(header), bytes(body)]:
            return Sealed.from_parts(header, np.frombuffer(body, np.uint8), floats=0)
    raise ProtocolError("sealed: not [header, body]")


def _split(
    body: NDArray[np.uint8], told: list[object], floats: int | None
) -> tuple[NDArray[np.uint8], list[Support]]:
    """Ciphertext and supports out of a body, by what its header tells of each support."""
    if told and floats == 0:
        raise ProtocolError("sealed: a sparse ciphertext where a dense one was expected")
    sizes = []
    for item in told:
        match item:
            case [int(length), int(nbytes), bytes(digest)] if (
                (type(length), type(nbytes)) == (int, int)
                and nbytes >= 0
                and 0 <= length < 1 << 31
                and length == (floats or length)
            ):
                sizes.append((length, nbytes, digest))
            case _:
                raise ProtocolError("sealed header: malformed support")
    at = body.size - sum(nbytes for _, nbytes, _ in sizes)
    if at < 0:
        raise ProtocolError("sealed: cut short, its supports are missing")
    data, supports = body[:at] if sizes else body, []
    for length, nbytes, digest in sizes:
        support = Support.from_bytes(body[at : at + nbytes].tobytes(), length)
        if support.digest() != digest:
            raise ProtocolError("sealed: a support is not the one that the header speaks of")
        supports.append(support)
        at += nbytes
    return data, supports


def merged_senders(total: Sealed, part: Sealed, cohort: int) -> tuple[int, ...]:
    """Senders of `total + part`, after checking that the two may be added.

    Raises
    ------
    ProtocolError
        Another scheme, round, parameter set, length or a sender outside the cohort.
    ReuseError
        A sender that is already in the total.
    """
    if [s.length for s in total.supports[:1]] != [s.length for s in part.supports[:1]]:
        raise ProtocolError("add: one of the two is sparse, or of a vector of another length")
    for name in ("scheme", "mode", "slot", "length"):
        if getattr(total, name) != getattr(part, name):
            if name == "length" and total.supports and part.supports:
                continue  # of coordinates that somebody sent, which differ
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
