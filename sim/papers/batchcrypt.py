"""BatchCrypt's batches as its paper has them: two's complement, two sign bits; for comparison only.

A value of r bits, -(2^r - 1) to 2^r - 1, takes a slot of r + 4 bits,

    0 0 | s s | v_{r-1} ... v_0

that is two's complement of r + 2 bits, whose two sign bits are alike, below two zeros that keep it
from its neighbour. A batch is the long integer of its slots, and a sum of batches is the sum of these
integers. In the sum, 00 and 11 are the signs of positive and negative values, 01 is positive overflow
and 10 negative: a saturated value, 2^r - 1 or its negative, is used then. For two clients that is
right, if saturated sums are; for more it is not (docs/corrections.md, batchcrypt-overflow and
-carries).

What is built here where the text leaves it open:

- *Padding or sign bits first?* Padding lies between values (Sec. 6.3), sign bits within (Fig. 3).
- *Does r count a sign?* By the range of Sec. 4.2 it does not; the authors' program counts one ("16
  bits" are r = 15, in slots of 19).
- *What saturates?* The sum of a slot, when it is decoded (Sec. 4.1 (3)): values are clipped before.
- *Who reads the padding?* Nobody says. `reader="text"` drops it, which serves the paper best.
  `reader="program"` is the authors' program: it knows padding that holds no carry, or one beside any
  signs but those of positive overflow, and takes -(2^r - 1) for whatever else it finds.

Source: Zhang et al., "BatchCrypt", USENIX ATC 2020, Sec. 4.2, Fig. 3b, Sec. 6.3; program: the authors'
repository of that name. Ours: `flhe.coding.slots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Reader = Literal["text", "program"]

PADDING, SIGNS = 2, 2
"""Zeros between neighbours, and sign bits."""


@dataclass(frozen=True, slots=True)
class PaperBatch:
    """The paper's batches, for any number of clients."""

    bits: int = 16  # r: bits of one value without its sign, 1 to 32
    reader: Reader = "text"  # Who decodes, see above

    @property
    def largest(self) -> int:
        """2^r - 1: largest value, and what saturated sums are taken for."""
        return (1 << self.bits) - 1

    @property
    def slot_bits(self) -> int:
        """Bits of a slot: padding, signs, value."""
        return PADDING + SIGNS + self.bits

    def slots(self, key_bits: int) -> int:
        """Values that one plaintext of `key_bits` bits holds."""
        return (key_bits - 1) // self.slot_bits

    def encode(self, values: Integers) -> int:
        """The long integer of one batch, shape (slots,); the first value lies lowest."""
        complement = 1 << (self.bits + SIGNS)
        batch = 0
        for value in reversed(values.tolist()):
            batch = batch << self.slot_bits | value % complement
        return batch

    def decode(self, total: int, count: int) -> tuple[Integers, NDArray[np.bool_]]:
        """Sums of a batch, and which of them were taken for overflow, each of shape (count,)."""
        field = (1 << self.slot_bits) - 1
        found = np.array([total >> self.slot_bits * k & field for k in range(count)], np.int64)
        value, head = found & self.largest, found >> self.bits
        if self.reader == "text":
            head &= (1 << SIGNS) - 1
            positive, negative, above = head == 0b00, head == 0b11, head == 0b01
        else:
            positive = (head == 0b0000) | (head == 0b0100)
            negative = (head == 0b0011) | (head == 0b0111)
            above = head == 0b0001
        sums = np.where(above, self.largest, -self.largest)
        sums = np.where(positive, value, np.where(negative, value - self.largest - 1, sums))
        return sums, ~(positive | negative)
