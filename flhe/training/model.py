"""Model: a client's copy of the global model, between rounds and inside sealed checkpoints.

    magic | be32(length of head) | head | data of arrays, moments, memory, mask, little-endian
    head = CBOR {v, round, steps, layout, history, chain: [[round, before, digest, senders]...],
                 moments, memory: [[name, length]...], mask: bytes}

The arrays are masters (see `flhe.coding.flatten`): float32 for the narrower floats. Moments are what an
optimizer remembers (see `flhe.training.optimizer`), a vector over the float lane each, and steps how
often it has stepped; memory is what codecs remember (see `flhe.coding.base`: their shared state), a few
numbers. The mask says which values are encrypted, where a map has chosen them (`flhe.coding.select`),
and the chain which sums are in the model, and whose updates are in them (`flhe.training.chain`).
All are a function of what everybody opened, so they are the same everywhere and travel with the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import MAX_LAYOUT_BYTES, Arrays, Layout, layout_of
from flhe.coding.support import HEADER, Support
from flhe.errors import ConfigError, ProtocolError
from flhe.training.chain import MAX_BYTES, MAX_LINKS, Chain, Link, extended
from flhe.wire import canonical
from flhe.wire.fields import U32, As, Hash, at_most
from flhe.wire.frame import frame, unframe
from flhe.wire.record import Form, Record

Memory = dict[str, NDArray[np.float64]]

MAGIC = b"flhe-model/1\n"
VERSION = 5
MAX_MOMENTS = 8
MAX_MEMORY = 8
"""Most vectors of a codec's memory; each has a number for each array at most."""


_Names = Annotated[tuple[str, ...], at_most(MAX_MOMENTS, "names")]
_Sizes = Annotated[tuple[tuple[str, U32], ...], at_most(MAX_MEMORY, "vectors")]
_Links = Annotated[tuple[tuple[U32, Hash, Hash, bytes], ...], at_most(MAX_LINKS, "links")]


@dataclass(frozen=True, slots=True)
class _Head(Record):
    FORM = Form("model head", MAX_LAYOUT_BYTES + 2 * MAX_BYTES, version=VERSION)

    round: U32
    steps: U32
    layout: Annotated[Layout, As(Layout.to_fields, Layout.from_fields, "a layout")]
    history: Hash
    chain: _Links
    moments: _Names
    memory: _Sizes
    mask: U32

    def _validate(self) -> None:
        names = self.moments, [name for name, _ in self.memory]
        most = max(len(self.layout.entries), 1)
        if (
            self.steps > self.round
            or any(len(set(each)) != len(each) for each in names)
            or any(size > most for _, size in self.memory)
        ):
            raise ProtocolError("model: malformed head")
        if self.mask and not HEADER <= self.mask <= HEADER + (self.layout.floats + 7) // 8:
            raise ProtocolError("model: malformed mask")


@dataclass(frozen=True, slots=True)
class Model:
    """The global model after `round` opened rounds.

    Parameters
    ----------
    layout : Layout
        Names, shapes and types.
    round : int
        Last round whose sum is in it; 0 for the initial model. Rounds that came to nothing are left
        out, so it may rise by more than one.
    history : bytes
        h_0 = H(initial model), then that of each link, 32 bytes. Public: the server computes the same
        ones, and names the member whose history differs.
    masters : dict[str, NDArray]
        The arrays, in their master types.
    moments : dict[str, NDArray[float32]]
        Memory of the optimizer, by name, shape (layout.floats,) each; empty before the first step, and
        for optimizers without any.
    memory : dict[str, NDArray[float64]]
        What codecs remember of the sums that were opened, by name; empty before the first.
    steps : int
        Sums of updates that are in it, 0 to `round`: what an optimizer's bias correction counts.
    mask : Support, optional
        Which values of an update are encrypted, once a map has chosen them.
    chain : tuple of Link
        The sums that are in it, oldest first, as far back as they are kept.
    """

    layout: Layout
    round: int
    history: bytes
    masters: dict[str, NDArray[Any]] = field(repr=False)
    moments: dict[str, NDArray[np.float32]] = field(repr=False, default_factory=dict)
    memory: Memory = field(repr=False, default_factory=dict)
    steps: int = 0
    mask: Support | None = field(repr=False, default=None)
    chain: Chain = field(repr=False, default=())

    @classmethod
    def initial(cls, arrays: Arrays) -> Model:
        """The model that a federation starts from, as the server may know it.

        Raises ConfigError: an array of a type that does not average, by name.
        """
        layout = layout_of(arrays)
        masters = layout.masters(arrays)
        return cls(layout, 0, first_history(layout, masters), masters)

    @classmethod
    def secret_initial(cls, arrays: Arrays, nonce: bytes) -> Model:
        """The model that a federation starts from, unknown to the server.

        Its history is public, so it says nothing of the arrays: a hash of their layout and of 32 random
        bytes. Errors as for `initial`.
        """
        if len(nonce) != 32:
            raise ConfigError("secret_initial: the nonce must be 32 random bytes")
        layout = layout_of(arrays)
        fields = ["flhe/v1/secret-history", layout.to_fields(), nonce]
        history = hashlib.sha256(canonical.dumps(fields)).digest()
        return cls(layout, 0, history, layout.masters(arrays))

    def after(
        self,
        round_: int,
        masters: dict[str, NDArray[Any]],
        moments: dict[str, NDArray[np.float32]],
        memory: Memory | None = None,
    ) -> Model:
        """The model once the sum of `round_` has made `masters` of these; `linked` goes with it."""
        after = replace(self, round=round_, masters=masters, moments=moments, memory=memory or {})
        return replace(after, steps=self.steps + 1)

    def linked(self, link: Link) -> Model:
        """The same model with the sum of its round in its chain and history."""
        return replace(self, history=link.history, chain=extended(self.chain, link))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays in their own types, as the app knows them."""
        return self.layout.arrays(self.masters)

    def fingerprint(self) -> bytes:
        """SHA-256 of the encoding, 32 bytes: it never leaves the node, or guesses could be tested."""
        hasher = hashlib.sha256()
        for chunk in self.chunks():
            hasher.update(chunk)
        return hasher.digest()

    def chunks(self) -> Iterator[memoryview]:
        """The encoding, piece by piece; array data is not copied."""
        head = _Head(
            self.round,
            self.steps,
            self.layout,
            self.history,
            self.chain,
            tuple(self.moments),
            tuple((name, kept.size) for name, kept in self.memory.items()),
            0 if self.mask is None else len(self.mask.data),
        )
        yield memoryview(frame(head, MAGIC))
        yield from _raw(self.layout, self.masters)
        kept: list[NDArray[Any]] = [*self.moments.values(), *self.memory.values()]
        yield from map(_little, kept)
        if self.mask is not None:
            yield memoryview(self.mask.data)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Model:
        """Inverse of `chunks`; arrays are views into `data`.

        Raises ProtocolError: anything that `chunks` does not write.
        """
        head, start = unframe(_Head, data, MAGIC)
        layout, sizes = head.layout, dict(head.memory)
        masters, at = _masters(layout, data, start)
        left = 4 * layout.floats * len(head.moments) + 8 * sum(sizes.values()) + head.mask
        if at + left != len(data):
            raise ProtocolError("model: shorter or longer than its head says")
        moments = {}
        for name in head.moments:
            lane = np.frombuffer(data, np.dtype("<f4"), layout.floats, at)
            moments[name] = lane.astype(np.float32, copy=False)
            at += 4 * layout.floats
        memory = {}
        for name, length in sizes.items():
            kept = np.frombuffer(data, np.dtype("<f8"), length, at)
            memory[name] = kept.astype(np.float64, copy=False)
            at += 8 * length
        mask = Support.from_bytes(bytes(data[at:]), layout.floats) if head.mask else None
        chain = tuple(Link(*link) for link in head.chain)
        return cls(
            layout, head.round, head.history, masters, moments, memory, head.steps, mask, chain
        )


def _masters(
    layout: Layout, data: bytes | bytearray, at: int
) -> tuple[dict[str, NDArray[Any]], int]:
    """The arrays that lie in `data` from `at` on, and where they end."""
    masters: dict[str, NDArray[Any]] = {}
    for entry in layout.entries:
        dtype = np.dtype(entry.master).newbyteorder("<")
        stop = at + entry.size * dtype.itemsize
        if stop > len(data):
            raise ProtocolError("model: cut short")
        flat = np.frombuffer(data, dtype, entry.size, at)
        masters[entry.name] = flat.reshape(entry.shape).astype(entry.master, copy=False)
        at = stop
    return masters, at


def first_history(layout: Layout, masters: Arrays) -> bytes:
    """h_0: SHA-256 over the layout and the initial masters."""
    hasher = hashlib.sha256(canonical.dumps(["flhe/v1/history", layout.to_fields()]))
    for raw in _raw(layout, masters):
        hasher.update(raw)
    return hasher.digest()


def _raw(layout: Layout, masters: Arrays) -> Iterator[memoryview]:
    """Data of each array, little-endian, in order; not copied."""
    for entry in layout.entries:
        yield _little(masters[entry.name])


def _little(array: NDArray[Any]) -> memoryview:
    array = np.ascontiguousarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).data
