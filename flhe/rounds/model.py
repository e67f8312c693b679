"""Model: a client's copy of the global model, between rounds and inside sealed checkpoints.

    magic | be32(length of head) | head | data of each array, little-endian, in order
    head = CBOR {v, round, layout, history}

The arrays are masters (see `flhe.coding.flatten`): float32 for the narrower floats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import MAX_LAYOUT_BYTES, Arrays, Layout, layout_of
from flhe.errors import ProtocolError
from flhe.keys import canonical

MAGIC = b"flhe-model/1\n"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Model:
    """The global model after `round` opened rounds.

    Parameters
    ----------
    layout : Layout
        Names, shapes and types.
    round : int
        Last round whose sum is in it; 0 for the initial model.
    history : bytes
        h_0 = H(initial model), h_r = H(h_(r-1) | digest of the sum of round r), 32 bytes. Public:
        the server computes the same chain, and names the member whose chain differs.
    masters : dict[str, NDArray]
        The arrays, in their master types.
    """

    layout: Layout
    round: int
    history: bytes
    masters: dict[str, NDArray[Any]] = field(repr=False)

    @classmethod
    def initial(cls, arrays: Arrays) -> Model:
        """The model that a federation starts from.

        Raises
        ------
        ConfigError
            An array of a type that does not average, by name.
        """
        layout = layout_of(arrays)
        masters = layout.masters(arrays)
        return cls(layout, 0, first_history(layout, masters), masters)

    def after(self, digest: bytes, masters: dict[str, NDArray[Any]]) -> Model:
        """The model one round on: `digest` is of the sum that made `masters` of these."""
        history = next_history(self.history, digest)
        return Model(self.layout, self.round + 1, history, masters)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays in their own types, as the app knows them."""
        return self.layout.arrays(self.masters)

    def chunks(self) -> Iterator[memoryview]:
        """The encoding, piece by piece; array data is not copied."""
        head = canonical.dumps(
            {
                "v": VERSION,
                "round": self.round,
                "layout": self.layout.to_fields(),
                "history": self.history,
            }
        )
        yield memoryview(MAGIC + len(head).to_bytes(4, "big") + head)
        yield from _raw(self.layout, self.masters)

    @classmethod
    def from_bytes(cls, data: bytes) -> Model:
        """Inverse of `chunks`; arrays are views into `data`.

        Raises
        ------
        ProtocolError
            Anything that `chunks` does not write.
        """
        start = len(MAGIC) + 4
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise ProtocolError("not a model of flhe, or one of another version")
        size = int.from_bytes(data[start - 4 : start], "big")
        if start + size > len(data):
            raise ProtocolError("model: cut short")
        match canonical.loads(data[start : start + size], MAX_LAYOUT_BYTES, "model head"):
            case {
                "v": int(version),
                "round": int(round_),
                "layout": layout_fields,
                "history": bytes(history),
                **rest,
            }:
                pass
            case _:
                raise ProtocolError("model: malformed head")
        if rest or type(version) is not int or type(round_) is not int:
            raise ProtocolError("model: malformed head")
        if version != VERSION or round_ < 0 or len(history) != 32:
            raise ProtocolError("model: malformed head, or of another version of flhe")
        layout = Layout.from_fields(layout_fields)
        at = start + size
        masters: dict[str, NDArray[Any]] = {}
        for entry in layout.entries:
            dtype = np.dtype(entry.master).newbyteorder("<")
            stop = at + entry.size * dtype.itemsize
            if stop > len(data):
                raise ProtocolError("model: cut short")
            flat = np.frombuffer(data, dtype, entry.size, at)
            masters[entry.name] = flat.reshape(entry.shape).astype(entry.master, copy=False)
            at = stop
        if at != len(data):
            raise ProtocolError("model: longer than its head says")
        return cls(layout, round_, history, masters)


def first_history(layout: Layout, masters: Arrays) -> bytes:
    """h_0: SHA-256 over the layout and the initial masters."""
    hasher = hashlib.sha256(canonical.dumps(["flhe/v1/history", layout.to_fields()]))
    for raw in _raw(layout, masters):
        hasher.update(raw)
    return hasher.digest()


def next_history(history: bytes, digest: bytes) -> bytes:
    """h_r out of h_(r-1) and the digest of the sum of round r."""
    return hashlib.sha256(canonical.dumps(["flhe/v1/history", history, digest])).digest()


def _raw(layout: Layout, masters: Arrays) -> Iterator[memoryview]:
    """Data of each array, little-endian, in order; not copied."""
    for entry in layout.entries:
        array = np.ascontiguousarray(masters[entry.name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data
