"""BfvAdder: values as integers in the slots of BFV, encrypted by TenSEAL under a shared key.

    (c0, c1) = (q m / t + e - c1 s, c1)        TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = q m / t + e - a s    what travels: a is derived, so it need not
    sum of c + (sum of a) s                    opened by TenSEAL: the sum of the m, modulo t

Beside CKKS a block has twice as many slots, and sums are integers by themselves. How vectors are cut,
sent and opened is in `flhe.schemes.seal_adder`. Members share s: with the server, any one of them reads
single updates.

Source: Fan and Vercauteren (ePrint 2012/144); sizes: `flhe.schemes.bfv.sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe.schemes.bfv.sizes import BfvSizes
from flhe.schemes.seal_adder import SealAdder, SealOpener, SealSealer


@dataclass(frozen=True, slots=True)
class BfvAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "bfv-a"
    SIZES, SEALER, OPENER = BfvSizes, SealSealer, SealOpener
