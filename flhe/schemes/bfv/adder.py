"""BfvAdder: values as integers in the slots of BFV, encrypted by TenSEAL under a shared key.

    (c0, c1) = (q m / t + e - c1 s, c1)        TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = q m / t + e - a s    what travels: a is derived, so it need not
    sum of c + (sum of a) s                    opened by TenSEAL: the sum of the m, modulo t

Beside CKKS a block has twice as many slots, and sums are integers by themselves. How vectors are cut,
sent and opened is in `flhe.schemes.seal_adder`.

Members share s: together with the server one of them reads single updates, as under FLASHE.

Source: Fan and Vercauteren (ePrint 2012/144); sizes: `flhe.schemes.bfv.sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flhe.math.prime_ring import PrimeRing
from flhe.schemes.bfv.sizes import BfvSizes
from flhe.schemes.seal_adder import SealAdder, SealOpener, SealSealer
from flhe.schemes.seal_blocks import Remask, SealBlocks
from flhe.schemes.seal_format import Words
from flhe.schemes.seal_sizes import sizes_for


class Blocks(SealBlocks):
    """Integers within half the plain modulus, n to a block."""

    __slots__ = ()

    @staticmethod
    def remasking(ring: PrimeRing, key: Words) -> Remask:
        """Polynomials are coefficients here: the product goes by way of transforms."""

        def remask(c0: Words, c1: Words, a: Words, out: Words) -> None:
            moved = ring.products(key, ring.forward(ring.subtract(c1, a))[None])
            out[:] = ring.add(c0, moved[0])

        return remask


@dataclass(frozen=True, slots=True)
class BfvAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "bfv-a"
    BLOCKS, SEALER, OPENER = Blocks, SealSealer, SealOpener

    @property
    def sizes(self) -> BfvSizes:
        """Ring, moduli and slots."""
        sizes: BfvSizes = sizes_for(BfvSizes, self.scheme.preset, self.cohort, self.bits)
        return sizes

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: what the key is called among them."""
        return {**SealAdder.parameters(self), "plain_modulus": self.sizes.t.to_bytes(8, "big")}
