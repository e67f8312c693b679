"""BatchCrypt, from messages to messages: powers modulo n^2, decryption by lambda, tags by their sum.

`tests.schemes.test_paillier_vectors` makes messages and keys of 2048 bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.math.test_permutation_vectors import NEAR, context, hkdf
from tests.schemes.test_paillier_vectors import (
    GROUP_KEY,
    KEY_BYTES,
    Pair,
    Q,
    exponents,
    layout,
    messages,
    slot_bits,
    slots,
    word,
)
from tests.second.wire import Clear, Wire, header


@functools.cache
def pair() -> Pair:
    """The key of the vectors."""
    return Pair(20)


@dataclass(frozen=True)
class PaillierBook:
    """BatchCrypt under the vectors' key.

    Parameters
    ----------
    cohort, bits
        As for `Paillier`.
    runs : tuple of int
        Lengths of what begins with a ciphertext of its own.
    tapes : dict of int to bytes
        Rank -> what its random source gives, from the first byte on.
    slot : dict
        The round.
    """

    cohort: int
    bits: int
    runs: tuple[int, ...] = ()
    tapes: dict[int, bytes] = field(default_factory=dict)
    slot: Any = None

    def case(self, length: int) -> dict[str, Any]:
        """As the vectors tell of it."""
        return {
            "cohort": self.cohort,
            "bits": self.bits,
            "runs": list(self.runs),
            "plain": [[0] * length],
            "slot": self.slot or NEAR,
        }

    def header(self, wire: Wire) -> bytes:
        return header("batchcrypt", "", self.slot or NEAR, wire)

    def seal(self, rank: int, clear: Clear) -> Wire:
        made = messages(self.case(len(clear.lanes)), clear.lanes, rank)
        drawn = exponents(self.tapes[rank][: 128 * len(made)], len(made))
        numbers = [pair().encrypt(m, a) for m, a in zip(made, drawn, strict=True)]
        return self._wire((rank,), len(clear.lanes), numbers)

    def add(self, parts: Sequence[Wire]) -> Wire:
        senders = sorted(s for part in parts for s in part.senders)
        columns = zip(*map(self._numbers, parts), strict=True)
        products = [math.prod(column) % pair().square for column in columns]
        return self._wire(tuple(senders), parts[0].length, products)

    def open(self, wire: Wire) -> list[int]:
        case, out = self.case(wire.length), []
        width, per = slot_bits(case), slots(case)
        coefficients, masks = (
            hkdf(GROUP_KEY, label, *context(self.slot or NEAR)) for label in ("tag", "tag-mask")
        )
        for j, (c, (start, stop)) in enumerate(zip(self._numbers(wire), layout(case), strict=True)):
            if not 0 < c < pair().square or math.gcd(c, pair().n) > 1:
                raise ValueError("no ciphertext")
            rest, values = pair().decrypt(c), []
            for _ in range(per):
                values.append((rest + 2 ** (width - 1)) % 2**width - 2 ** (width - 1))
                rest = (rest - values[-1]) >> width
            words = (word(coefficients, 0, j * (per + per % 2) + k) for k in range(per))
            due = sum(v * r for v, r in zip(values, words, strict=True))
            due += sum(word(masks, rank, j) for rank in wire.senders)
            if (rest - due) % Q or not 0 <= rest < len(wire.senders) * Q:
                raise ValueError("not that of what its senders encrypted")
            if any(values[stop - start :]):
                raise ValueError("slots after the last value are not empty")
            out += values[: stop - start]
        if any(abs(v) > len(wire.senders) * (2 ** (self.bits - 1) - 1) for v in out):
            raise ValueError("a sum that its senders do not reach")
        return out

    def _numbers(self, wire: Wire) -> list[int]:
        size = 2 * KEY_BYTES
        count = len(wire.data) // size
        return [int.from_bytes(wire.data[size * i :][:size], "little") for i in range(count)]

    def _wire(self, senders: tuple[int, ...], length: int, numbers: list[int]) -> Wire:
        data = b"".join(x.to_bytes(2 * KEY_BYTES, "little") for x in numbers)
        return Wire(senders, length, data)
