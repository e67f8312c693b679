"""Draft: an update before encryption, on the client's own disk until its round is over.

    magic | be32(length of head) | head | residual | values | coords, little-endian
    head = CBOR {v, round, history, extras, length, count, sparse, base, contract}

A round of several stages encrypts long after training, perhaps in another process, and a repeated
request encrypts the same update again. Under sparsification the draft also holds the tentative
residual of error feedback (FLASHE, Algorithm 1). If the round's sum is opened with this client in
it, that becomes the client's residual; otherwise the whole update returns to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.sparsify import merged
from flhe.errors import StoreError
from flhe.training.model import Model, arrays_in, little
from flhe.wire.fields import U32, Hash, bits, size, within
from flhe.wire.record import Form, Record, frame, unframe

MAGIC = b"flhe-draft/1\n"
VERSION = 3
MAX_HEAD = 32 << 20


@dataclass(frozen=True, slots=True)
class _Head(Record):
    FORM = Form(
        "kept update",
        MAX_HEAD,
        version=VERSION,
        damaged=StoreError("a kept update is damaged, or of another version of flhe: remove it"),
    )

    round: U32
    history: Hash
    extras: tuple[Annotated[int, within(-(1 << 63), (1 << 63) - 1)], ...] = field(repr=False)
    length: Annotated[int, bits(48)]
    count: Annotated[int, bits(48)]
    sparse: bool
    base: Annotated[bytes, size(0, 32)]
    contract: Hash

    def _validate(self) -> None:
        if self.length and not self.sparse:
            raise StoreError("a kept update is damaged: only sparse ones leave a residual")


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """One client's update before clipping, quantization and encryption.

    Parameters
    ----------
    round : int
        Round that it was trained for.
    history : bytes
        History of its starting model, 32 bytes.
    values : NDArray[float32]
        Values to send, shape (count,).
    extras : NDArray[int64]
        Exact numbers beside them; encoding fills in `check`.
    coords : NDArray[uint32] or None
        Coordinates of the values; None means all.
    residual : NDArray[float32] or None
        Values kept for later rounds, shape (length,); None without sparsification.
    base : bytes
        SHA-256 of its starting model, 32 bytes. Histories may agree where models differ: a bad disk,
        other arithmetic. It never leaves the node; others see keyed digests only.
    contract : bytes
        Hash of its contract, 32 bytes; see `flhe.training.contract`.
    """

    round: int
    history: bytes
    values: NDArray[np.float32] = field(repr=False)
    extras: NDArray[np.int64] = field(repr=False)
    coords: NDArray[np.uint32] | None = field(default=None, repr=False)
    residual: NDArray[np.float32] | None = field(default=None, repr=False)
    base: bytes = b""
    contract: bytes = bytes(32)

    def is_of(self, round_: int, model: Model, contract: bytes) -> bool:
        """Return whether it was trained for that round, model and contract."""
        return (
            (self.round, self.history) == (round_, model.history)
            and self.base == model.fingerprint()
            and self.contract == contract
        )

    def plain(self) -> Plain:
        """The update as codecs take it."""
        return Plain(self.values, self.extras, self.coords)

    def given_back(self) -> Draft:
        """Return the draft with no values to send: the whole update is in the residual."""
        if self.coords is None or self.residual is None:
            return self
        residual = merged(self.values, self.coords, self.residual)
        nothing = np.empty(0, np.float32), np.empty(0, np.uint32)
        return replace(self, values=nothing[0], coords=nothing[1], residual=residual)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the encoding in pieces; arrays are not copied."""
        residual = np.empty(0, np.float32) if self.residual is None else self.residual
        coords = np.empty(0, np.uint32) if self.coords is None else self.coords
        head = _Head(
            self.round,
            self.history,
            tuple(int(extra) for extra in self.extras),
            residual.size,
            self.values.size,
            self.coords is not None,
            self.base,
            self.contract,
        )
        yield memoryview(frame(head, MAGIC))
        yield from map(little, (residual, self.values, coords))

    @classmethod
    def from_bytes(cls, data: bytes) -> Draft:
        """Decode the output of `chunks`; arrays are views into `data`.

        Raises StoreError: `chunks` did not write this.
        """
        head, start = unframe(_Head, data, MAGIC)
        length, count = head.length, head.count
        sizes = [("float32", length), ("float32", count), ("uint32", count * head.sparse)]
        if (found := arrays_in(data, start, len(data), sizes)) is None:
            raise StoreError("a kept update was cut short: remove it")
        residual, values, coords = found
        if np.any(coords[:-1] >= coords[1:]) or int(coords.max(initial=0)) >= max(length, 1):
            raise StoreError("a kept update is damaged: remove it")
        return cls(
            head.round,
            head.history,
            values,
            np.array(head.extras, np.int64),
            coords if head.sparse else None,
            residual if head.sparse else None,
            head.base,
            head.contract,
        )
