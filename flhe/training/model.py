"""Model: a client's copy of the global model, between rounds and inside sealed checkpoints.

    magic | be32(length of head) | head | data of arrays, moments, memory, mask, little-endian
    head = CBOR {v, round, steps, layout, history, chain: [[round, before, digest, senders]...],
                 moments, memory: [[name, length]...], mask: bytes}

It depends on opened sums only, so it is the same at all members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import MAX_LAYOUT_BYTES, Arrays, Layout, layout_of
from flhe.coding.support import HEADER, Support
from flhe.errors import ProtocolError
from flhe.math.buffers import let_go
from flhe.training.chain import MAX_BYTES, MAX_LINKS, Chain, Link, extended
from flhe.wire import canonical
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, As, Hash, at_most
from flhe.wire.record import Form, Record, frame, unframe

Memory = dict[str, NDArray[np.float64]]

MAGIC = b"flhe-model/1\n"
VERSION = 5
MAX_MOMENTS = 8
MAX_MEMORY = 8
"""Maximum number of vectors in a codec's memory; each has at most one number for each array."""


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
        Last round whose sum is in it; 0 for the initial model. Failed rounds are
        skipped, so it may rise by more than one.
    history : bytes
        h_0 = H(initial model), then that of each link, 32 bytes. Public: the server computes the same
        ones, and finds the member whose history differs.
    masters : dict[str, NDArray]
        The arrays, in their master types (see `flhe.coding.flatten`): float32 for the narrower floats.
    moments : dict[str, NDArray[float32]]
        Memory of the optimizer, by name, shape (layout.floats,) each; empty before the first step, and
        for optimizers without any.
    memory : dict[str, NDArray[float64]]
        Codecs' shared state from opened sums (see `flhe.coding.base`),
        by name; empty before the first.
    steps : int
        Number of updates' sums in it, 0 to `round`, for an optimizer's bias correction.
    mask : Support, optional
        Encrypted values of an update, once a map has selected them (see `flhe.coding.select`).
    chain : tuple of Link
        Its sums, oldest first, as far back as they are kept.
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
        """Return a federation's first model, which the server may know.

        Raises ConfigError: an array of a type that cannot be averaged, by name.
        """
        layout = layout_of(arrays)
        masters = layout.masters(arrays)
        hasher = hashlib.sha256(canonical.dumps(["flhe/v1/history", layout.to_fields()]))
        for raw in _raw(masters[entry.name] for entry in layout.entries):
            hasher.update(raw)
        return cls(layout, 0, hasher.digest(), masters)

    @classmethod
    def secret_initial(cls, arrays: Arrays, nonce: bytes) -> Model:
        """Return a federation's first model, unknown to the server.

        Its history is public, so it depends only on the arrays' layout and on `nonce`, 32 random
        bytes. Errors as for `initial`.
        """
        layout = layout_of(arrays)
        history = hash_of("secret-history", layout.to_fields(), nonce)
        return cls(layout, 0, history, layout.masters(arrays))

    def linked(self, link: Link) -> Model:
        """Return the model with the sum of its round in its chain and history."""
        return replace(self, history=link.history, chain=extended(self.chain, link))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays in the app's own types."""
        return self.layout.arrays(self.masters)

    def fingerprint(self) -> bytes:
        """Return SHA-256 of the encoding, 32 bytes; it never leaves the node, to prevent guessing."""
        hasher = hashlib.sha256()
        for chunk in self.chunks():
            hasher.update(chunk)
        return hasher.digest()

    def chunks(self) -> Iterator[memoryview]:
        """Yield the encoding in pieces; array data is not copied."""
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
        masters = (self.masters[entry.name] for entry in self.layout.entries)
        yield from _raw((*masters, *self.moments.values(), *self.memory.values()))
        if self.mask is not None:
            yield memoryview(self.mask.data)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Model:
        """Decode the output of `chunks`; arrays are views into `data`.

        Raises ProtocolError: `chunks` did not write this.
        """
        head, start = unframe(_Head, data, MAGIC)
        layout, mask = head.layout, None
        sizes = [(entry.master, entry.size) for entry in layout.entries]
        sizes += [("float32", layout.floats) for _ in head.moments]
        sizes += [("float64", size) for _, size in head.memory]
        end = len(data) - head.mask
        if (found := arrays_in(data, start, end, sizes)) is None:
            raise ProtocolError("model: its length differs from that in its head")
        masters = {entry.name: next(found).reshape(entry.shape) for entry in layout.entries}
        moments = {name: next(found) for name in head.moments}
        memory = {name: next(found) for name, _ in head.memory}
        if head.mask:
            mask = Support.from_bytes(bytes(data[end:]), layout.floats)
        chain = tuple(Link(*link) for link in head.chain)
        return cls(
            layout, head.round, head.history, masters, moments, memory, head.steps, mask, chain
        )


def arrays_in(
    data: bytes | bytearray | memoryview, start: int, end: int, sizes: Sequence[tuple[str, int]]
) -> Iterator[NDArray[Any]] | None:
    """Return arrays of these types and lengths, little-endian, as views into `data`.

    None unless they fill it exactly from `start` to `end`.
    """
    kinds = [(np.dtype(name), count) for name, count in sizes]
    ends = list(accumulate((kind.itemsize * count for kind, count in kinds), initial=start))
    if ends[-1] != end:
        return None
    return (
        np.frombuffer(data, kind.newbyteorder("<"), count, at).astype(kind, copy=False)
        for (kind, count), at in zip(kinds, ends, strict=False)
    )


def _raw(arrays: Iterable[NDArray[Any]]) -> Iterator[memoryview]:
    for array in arrays:
        yield little(array)
        let_go(array)


def little(array: NDArray[Any]) -> memoryview:
    """Return an array's data, little-endian; not copied if it is so already."""
    array = np.ascontiguousarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).data
