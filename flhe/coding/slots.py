"""Slots: many signed integers in one large one, which add independently.

    B = sum over k of v_k 2^(L k),   v_k signed                             modulo n
    L = bits of N bound, one for the sign, one to spare

A slot's sum is less than a quarter of 2^L, so it is read back as a balanced digit, in [-2^(L-1),
2^(L-1)). That digit differs from B's digit by the borrow of the lower slots. No slot can run into
the next one. A digit beyond the senders' maximum is an overflow, and has a sign.

In two's complement with two sign bits, as printed, a borrow or carry of a lower slot reaches the
upper ones as soon as three parties add (see `flhe_lab.papers.batchcrypt`). A vector is cut into
batches as a whole. The paper cuts layer by layer, which leaves the last batch of each layer part
empty.

Source: BatchCrypt, Sec. 4.2 (quantization to signed integers, batching); digits: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.math.bigint import Big, from_rows, gmpy, to_rows


@dataclass(frozen=True, slots=True)
class Slots:
    """Layout of one vector's values, within `bound`, in large integers, `cohort` of which are added.

    `capacity` is |n| - 1: bits of the integers that a modulus n carries without wrapping. The loops
    handle slots of 56 bits; 32-bit values of 1024 senders take 43.
    """

    bound: int
    cohort: int
    capacity: int

    @property
    def width(self) -> int:
        """L: bits of one slot."""
        return (self.cohort * self.bound).bit_length() + 2

    @property
    def per(self) -> int:
        """Slots of one integer."""
        return self.capacity // self.width

    @property
    def dtype(self) -> type[np.int32] | type[np.int64]:
        """Type of a slot's sum."""
        return np.int32 if self.width <= 32 else np.int64

    def batches(self, length: int) -> int:
        """Return the number of integers that a vector takes."""
        return -(-length // self.per)

    def pack(self, values: NDArray[Any]) -> list[Big]:
        """Return an mpz for each of a vector's batches, in (-2^(capacity - 2), 2^(capacity - 2)).

        `values` are signed integers, shape (length,), each within the bound, which callers check.
        """
        from flhe.math import kernels

        offset, halves, count = self._offset(), self._halves(), self.batches(values.size)
        held = np.zeros((count, self.per), np.int64)
        held.reshape(-1)[: values.size] = values
        rows = np.empty((count, self._bytes), np.uint8)
        kernels.pack_rows(held, halves, self.width, rows)
        return [number - offset for number in from_rows(rows)]

    def digits(self, numbers: Sequence[Big], length: int, count: int) -> NDArray[Any]:
        """Return digits of the sums of `count` vectors' batches, int32 or int64 (length,).

        Numbers are mpz, and signed. `length` is that of the vectors.

        Raises ProtocolError: another number of batches than such vectors have, or a count beyond
        the cohort; an overflow, which such vectors cannot reach; a slot beyond the last value that
        is not empty.
        """
        from flhe.math import kernels

        batches = self.batches(length)
        if len(numbers) != batches:
            raise ProtocolError(f"{len(numbers)} batches, {length} values take {batches}")
        if not 1 <= count <= self.cohort:
            raise ProtocolError(f"a sum of {count} vectors, slots have room for 1 to {self.cohort}")
        offset, top = self._offset(), gmpy().mpz(1) << (self.width * self.per)
        shifted = [number + offset for number in numbers]
        high = sum(number >= top for number in shifted)
        low = sum(number < 0 for number in shifted)
        held, halves = np.empty((batches, self.per), np.int64), self._halves()
        rows = to_rows((s % top for s in shifted), self._bytes, batches)
        kernels.unpack_rows(rows, halves, self.width, held)
        flat, limit = held.reshape(-1), count * self.bound
        above = high + np.count_nonzero(flat > limit)
        below = low + np.count_nonzero(flat < -limit)
        if above or below:
            found = ((above, "positive"), (below, "negative"))
            kinds = " and ".join(f"{n} {kind}" for n, kind in found if n)
            raise ProtocolError(
                f"overflow, {kinds}: {count} vectors cannot have added up to this; it was "
                "altered, or is not what they encrypted"
            )
        if strays := np.count_nonzero(flat[length:]):
            raise ProtocolError(
                f"{strays} slots beyond the last value are not empty: the sum was altered"
            )
        return flat[:length].astype(self.dtype)

    @property
    def _bytes(self) -> int:
        return (self.width * self.per + 7) // 8

    def _halves(self) -> NDArray[np.uint64]:
        """Return half a slot's range for each slot, which converts between fields and digits."""
        return np.full(self.per, 1 << (self.width - 1), np.uint64)

    def _offset(self) -> Big:
        """Return the same in one number."""
        ones = ((gmpy().mpz(1) << (self.width * self.per)) - 1) // ((1 << self.width) - 1)
        return ones << (self.width - 1)
