"""Sealed: a ciphertext that names the slot and the senders of its sum.

A `Slot` names one round of one federation; with a sender's rank it names the one use of a mask. A
`Sealed` carries its slot and its senders, because every reader needs them. A sparse one carries its
senders' supports too. Its values are those of the supports' union, in order, and then the extras.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support, covered
from flhe.errors import ProtocolError, ReuseError
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, U64, Hash, bits, matching, size
from flhe.wire.record import Form, Record

VERSION = 3
UPDATE = "update"
MAX_HEADER = 64 * 1024
"""Maximum size of a header, bytes: 1024 senders take under 4 KiB, with their supports under 52."""

MAX_SMALL = 64 << 20
"""Maximum size of a ciphertext in one piece, bytes."""

MAX_LENGTH = 1 << 40
"""Maximum number of lanes in one ciphertext."""


@dataclass(frozen=True, slots=True)
class Slot(Record):
    """The one sum, of one round, epoch and run, that a mask belongs to.

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
        SHA-256 chain over the initial model and every sum opened since, 32 bytes. Members that the
        server gave different ones derive different masks: their updates cannot be added unnoticed.
    purpose : str
        Purpose of the sum: sums of one attempt have separate masks.
    """

    FORM = Form("slot", row=True)

    run_id: U64
    roster_hash: Hash
    epoch: Annotated[bytes, size(16)]
    round: U32
    attempt: U32
    layout_hash: Hash
    history: Hash
    purpose: Annotated[str, matching("[a-z-]{1,16}", "1 to 16 of a-z -")] = UPDATE

    def context(self) -> tuple[int | bytes | str, ...]:
        """Return the inputs of this sum's keys, in order; an update's purpose is left out."""
        return _context_of(self)

    def digest(self) -> bytes:
        """Return the SHA-256 of all fields, 32 bytes; it names the slot in signed messages."""
        return _digest_of(self)


@functools.lru_cache(maxsize=16)
def _context_of(slot: Slot) -> tuple[int | bytes | str, ...]:
    values: tuple[int | bytes | str, ...] = tuple(slot.to_fields())
    return values[:-1] if slot.purpose == UPDATE else values


@functools.lru_cache(maxsize=16)
def _digest_of(slot: Slot) -> bytes:
    return hash_of("slot", *slot.context())


@dataclass(frozen=True, slots=True)
class _Support(Record):
    """Description of a support in a header; the support follows the ciphertext."""

    FORM = Form("support", row=True)

    length: Annotated[int, bits(31)]
    nbytes: Annotated[int, bits(31)]
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Header(Record):
    FORM = Form("sealed header", MAX_HEADER, version=VERSION, row=True)

    scheme: str
    mode: str
    slot: Slot
    senders: tuple[int, ...]
    length: int
    supports: tuple[_Support, ...]


@dataclass(frozen=True, slots=True)
class _Small(Record):
    FORM = Form("sealed", MAX_SMALL, row=True)

    header: bytes
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Sealed:
    """One ciphertext, or the sum of several.

    Parameters
    ----------
    scheme : str
        Name of the scheme that made it.
    senders : tuple[int, ...]
        Ranks of the clients whose vectors are summed in it, ascending, each once.
    length : int
        Number of values, extras included.
    data : NDArray[uint8]
        The ciphertext as it travels.
    mode : str
        Mode of a scheme that has several: FLASHE's masking.
    supports : tuple[Support, ...]
        Coordinates of each sender, in the order of `senders`; empty if all sent all of them.
    """

    scheme: str
    slot: Slot
    senders: tuple[int, ...]
    length: int
    data: NDArray[np.uint8] = dataclasses.field(repr=False)
    mode: str = ""
    supports: tuple[Support, ...] = dataclasses.field(default=(), repr=False)
    _coords: list[NDArray[np.uint32]] = dataclasses.field(
        default_factory=list, init=False, repr=False
    )
    _digest: list[bytes] = dataclasses.field(default_factory=list, init=False, repr=False)

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

    @property
    def coords(self) -> NDArray[np.uint32]:
        """Coordinates in at least one support, ascending, (union,); found once. It has supports."""
        if not self._coords:
            self._coords.append(covered(self.supports))
        return self._coords[0]

    def header(self) -> bytes:
        """Return all but the ciphertext, as canonical CBOR."""
        supports = tuple(_Support(s.length, len(s.data), s.digest()) for s in self.supports)
        head = _Header(self.scheme, self.mode, self.slot, self.senders, self.length, supports)
        return head.to_bytes()

    def body(self) -> list[memoryview]:
        """Return the ciphertext, then the supports, as `header()` lists them, without copies."""
        return [self.data.data, *(memoryview(support.data) for support in self.supports)]

    def digest(self) -> bytes:
        """Return the SHA-256 of header and ciphertext, 32 bytes; the header binds the supports.

        Computed once, since it takes as long as encrypting: `data` must not change afterwards.
        Addition, which changes it, returns another object.
        """
        if not self._digest:
            hasher = hashlib.sha256(self.header())
            hasher.update(self.data.data)
            self._digest.append(hasher.digest())
        return self._digest[0]

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

        Raises ProtocolError: the header is not exactly the output of `header()`, or does not match
        the supports.

        Parameters
        ----------
        supports : sequence of Support, optional
            Supports that were received before; `body` is then the ciphertext alone.
        floats : int, optional
            Length of the vectors of the supports; 0 for none. Readers of received data must give
            it: a few
            bytes may stand for many coordinates.
        """
        head = _Header.from_bytes(header)
        if supports is None:
            body, supports = _split(body, head.supports, floats)
        sealed = cls(
            head.scheme, head.slot, head.senders, head.length, body, head.mode, tuple(supports)
        )
        if sealed.header() != header:
            raise ProtocolError("sealed header: the supports do not match it")
        return sealed


def to_bytes(sealed: Sealed) -> bytes:
    """Return a small ciphertext in one piece: canonical CBOR of header and body."""
    return _Small(sealed.header(), b"".join(sealed.body())).to_bytes()


def from_bytes(data: bytes) -> Sealed:
    """Invert `to_bytes` for a dense ciphertext; ProtocolError for anything else."""
    small = _Small.from_bytes(data)
    return Sealed.from_parts(small.header, np.frombuffer(small.body, np.uint8), floats=0)


def _split(
    body: NDArray[np.uint8], told: Sequence[_Support], floats: int | None
) -> tuple[NDArray[np.uint8], list[Support]]:
    """Split a body into ciphertext and supports, by the header's description of each support."""
    if told and floats == 0:
        raise ProtocolError("sealed: a sparse ciphertext where a dense one was expected")
    if floats and any(item.length != floats for item in told):
        raise ProtocolError("sealed header: a support of a vector of another length")
    at = body.size - sum(item.nbytes for item in told)
    if at < 0:
        raise ProtocolError("sealed: cut short, its supports are missing")
    data, supports = body[:at] if told else body, []
    for item in told:
        support = Support.from_bytes(body[at : at + item.nbytes].tobytes(), item.length)
        if support.digest() != item.digest:
            raise ProtocolError("sealed: a support is not the one in the header")
        supports.append(support)
        at += item.nbytes
    return data, supports


def merged_senders(total: Sealed, part: Sealed, cohort: int) -> tuple[int, ...]:
    """Return the senders of `total + part`, after checking that the two may be added.

    Raises ProtocolError: another scheme, round, parameter set, length or a sender outside the
    cohort; ReuseError: a sender that is already in the total.
    """
    if [s.length for s in total.supports[:1]] != [s.length for s in part.supports[:1]]:
        raise ProtocolError("add: one of the two is sparse, or of a vector of another length")
    for name in ("scheme", "mode", "slot", "length"):
        if getattr(total, name) != getattr(part, name):
            if name == "length" and total.supports and part.supports:
                continue  # lengths of unions of coordinates, which differ
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
