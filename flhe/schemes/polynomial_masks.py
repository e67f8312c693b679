"""PolynomialMasks: the polynomials `a` of lattice ciphertexts, derived and not sent.

    a_j = P_j - P_(j+1)                      of the sender of rank j, each P uniform below q

Of P_0 to P_N the differences are N uniform and independent polynomials, and in a sum over consecutive
ranks all but two of the P cancel. So a reader expands two streams for each run of senders, however many
they are: FLASHE's double masking (Eq. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import FieldElements
from flhe.math.ring import PrimeRing
from flhe.schemes.flashe.streams import telescoped
from flhe.schemes.seal_format import Words
from flhe.schemes.sealed import Slot
from flhe.wire.derive import hkdf


def lifted(key: NDArray[Any], q: int) -> Words:
    """Small signed coefficients modulo q."""
    wide = key.astype(np.int64)
    # NumPy takes a bare q of 64 bits for a C long, which it does not fit.
    residues: Words = wide.view(np.uint64) + np.where(wide < 0, np.uint64(q), np.uint64(0))
    return residues


@dataclass(frozen=True, slots=True)
class PolynomialMasks:
    """The sum of some senders' masks in one slot, of streams that are added, and taken away."""

    ring: PrimeRing
    plus: tuple[FieldElements, ...] = field(repr=False)
    minus: tuple[FieldElements, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        ring: PrimeRing,
        label: str,
        group_key: bytes,
        slot: Slot,
        senders: Sequence[int],
    ) -> PolynomialMasks:
        """Those of the senders of these ranks; `label` says which scheme's."""

        def stream(j: int) -> FieldElements:
            # A key for one slot, P and ring: no word of its streams is used for another mask.
            key = hkdf(group_key, label, *slot.context(), j, ring.n, ring.q)
            return FieldElements(key, ring.q)

        plus, minus = telescoped(senders, "double")
        return cls(ring, tuple(map(stream, plus)), tuple(map(stream, minus)))

    def blocks(self, first: int, count: int) -> Words:
        """Blocks from `first` on: uint64 (count, n), below q."""
        ring, n = self.ring, self.ring.n
        out, space = np.zeros((count, n), np.uint64), np.empty(count * n + 4, np.uint64)
        for stream in self.plus:
            ring.add(out, stream.blocks(first, count, n, space), out)
        for stream in self.minus:
            ring.subtract(out, stream.blocks(first, count, n, space), out)
        return out
