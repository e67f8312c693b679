"""BfvAdder: values as integers in the slots of BFV, encrypted by TenSEAL under a shared key.

    (c0, c1) = (q m / t + e - c1 s, c1)        TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = q m / t + e - a s    what travels: a is derived, so it need not
    sum of c + (sum of a) s                    opened by TenSEAL: the sum of the m, modulo t

A block has twice as many slots as in CKKS, and sums are integers without rounding.
`flhe.schemes.seal_adder` cuts, sends and opens vectors. Members share s: any one of them can read
single updates if it colludes with the server.

A slot is an integer modulo t that carries `per` values, V = sum over k of v_k 2^(width k). Sums of
N of them open to the sum exactly, because

    t      >  4 N max|V|             no sum wraps, and half of all residues are no sum: they show a
                                     wrong key
    q / t  >  4 N 22                 no coefficient is rounded to another one

A coefficient of a fresh ciphertext is q m / t, rounded, plus an error: centred binomial, 21 at
most, so 22 with the rounding. Decryption rounds t / q times the sum, and is right while the sum of
errors is below q / (2 t). The condition leaves a factor of two.

Source: Fan and Vercauteren (ePrint 2012/144), Sec. 4; error of a coefficient: SEAL 4.1,
`sample_poly_cbd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flhe.math.ring import ntt_primes
from flhe.schemes.seal_adder import SealAdder
from flhe.schemes.seal_format import SealFormat
from flhe.schemes.seal_sizes import LARGEST, SealSizes

ROOM = 4
"""Factor by which a sum's largest value, and its error, must fit."""

MIN_PLAIN = 20
"""Minimum length of the plain modulus, bits."""


@dataclass(frozen=True, slots=True)
class BfvSizes(SealSizes):
    """Sizes of one ring, as for `SealSizes`; a block has `n` slots."""

    WIDEST = 50

    @property
    def largest(self) -> int:
        """Number that the plain modulus must exceed."""
        return ROOM * self.cohort * self.digits.largest

    @property
    def t(self) -> int:
        """The plain modulus: the largest fitting prime of its length."""
        return ntt_primes(self.n, max(self.largest.bit_length() + 1, MIN_PLAIN), 1)[0]

    @property
    def seal(self) -> SealFormat:
        """SEAL's encodings for this ring, and the plain modulus."""
        return SealFormat(self.n, self.q, plain=self.t)

    def parameters(self) -> dict[str, Any]:
        """Return the other public parameters: the plain modulus."""
        return {"plain_modulus": self.t.to_bytes(8, "big")}

    @property
    def fits(self) -> bool:
        """True if sums of `cohort` ciphertexts open exactly; see the module."""
        return self.t > self.largest and self.q > ROOM * self.cohort * LARGEST * self.t


@dataclass(frozen=True, slots=True)
class BfvAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "bfv-a"
    SIZES = BfvSizes
