"""Draft: what one client is about to encrypt, on its own disk until its round is over.

    magic | be32(length of head) | head | residual | values | coords, little-endian
    head = CBOR {v, round, history, extras, length, count, sparse, base, contract}

A round with more than one stage encrypts long after it trained, perhaps in another process, and a round
that is asked for again encrypts the same update again. Under sparsification the residual is what error
feedback keeps (FLASHE, Algorithm 1): the draft's is tentative. When the sum of the round is opened and
this client is in it, it becomes the client's; otherwise the whole update goes back into it.
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
    """One client's update, before anything of it is clipped, quantized or encrypted.

    Parameters
    ----------
    round : int
        Round that it was trained for.
    history : bytes
        History of the model that it starts from, 32 bytes.
    values : NDArray[float32]
        What is to be sent, shape (count,).
    extras : NDArray[int64]
        Exact numbers beside it; `check` is filled in when it is encoded.
    coords : NDArray[uint32] or None
        Which coordinates the values are of; None means all.
    residual : NDArray[float32] or None
        What is not sent and stays for later rounds, shape (length,); None without sparsification.
    base : bytes
        SHA-256 of the model that it starts from, 32 bytes. The history may be everybody's and the model
        not: a bad disk, another arithmetic. It stays here; what others see of a model is keyed.
    contract : bytes
        Hash of the contract that it was trained under, 32 bytes; see `flhe.training.contract`.
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
        """Whether it was trained for that round, from this very model, and under that contract."""
        return (
            (self.round, self.history) == (round_, model.history)
            and self.base == model.fingerprint()
            and self.contract == contract
        )

    def plain(self) -> Plain:
        """As codecs take it."""
        return Plain(self.values, self.extras, self.coords)

    def given_back(self) -> Draft:
        """The same with nothing to send: the whole update is in the residual."""
        if self.coords is None or self.residual is None:
            return self
        residual = merged(self.values, self.coords, self.residual)
        nothing = np.empty(0, np.float32), np.empty(0, np.uint32)
        return replace(self, values=nothing[0], coords=nothing[1], residual=residual)

    def chunks(self) -> Iterator[memoryview]:
        """The encoding, piece by piece; arrays are not copied."""
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
        """Inverse of `chunks`; arrays are views into `data`.

        Raises StoreError: anything that `chunks` does not write.
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
