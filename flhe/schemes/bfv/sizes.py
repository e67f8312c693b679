"""How large BFV's moduli and slots are, for one ring, cohort and precision.

A slot is an integer modulo t that carries `per` values, V = sum over k of v_k 2^(width k). Sums of N of
them open to the sum exactly, because

    t      >  4 N max|V|             no sum wraps, and half of all residues are no sum: they tell a
                                     wrong key
    q / t  >  4 N 22                 no coefficient is rounded to another one

A coefficient of a fresh ciphertext is q m / t, rounded, and an error: centred binomial, 21 at most, so
22 with the rounding. Where m wraps modulo t, what is lost is a multiple of q. Decryption rounds t / q
times the sum, and is right while the sum of errors is below q / (2 t); twice that is allowed for.

Of the moduli that hold a value in the fewest bits, the shortest is taken.

Source: Fan and Vercauteren (ePrint 2012/144), Sec. 4; error of a coefficient: SEAL 4.1,
`sample_poly_cbd`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flhe.coding.digits import Digits
from flhe.math.prime_ring import ntt_primes
from flhe.schemes.presets import SealPreset
from flhe.schemes.seal_format import SealFormat
from flhe.schemes.seal_sizes import LARGEST, MIN_BITS, SealSizes, shortest

ROOM = 4
"""How many times a sum's largest value, and its error, must fit."""

MIN_PLAIN, MAX_PLAIN = 20, 50
"""Shortest and longest plain modulus that is tried, bits."""


@dataclass(frozen=True, slots=True)
class BfvSizes(SealSizes):
    """Sizes of one ring.

    Parameters
    ----------
    n : int
        Dimension, and slots of a block.
    bits, plain_bits : int
        Of the modulus, and of that of slots.
    digits : Digits
        How values lie in a slot.
    """

    n: int
    bits: int
    plain_bits: int
    digits: Digits

    @property
    def t(self) -> int:
        """The plain modulus: the largest fitting prime of its length."""
        return ntt_primes(self.n, self.plain_bits, 1)[0]

    @property
    def seal(self) -> SealFormat:
        """SEAL's encodings for this ring, and the plain modulus."""
        return SealFormat(self.n, self.q, plain=self.t)

    def fits(self, cohort: int) -> bool:
        """Whether sums of `cohort` ciphertexts open exactly; see the module."""
        largest = ROOM * cohort * self.digits.largest
        return self.t > largest and self.q > ROOM * cohort * LARGEST * self.t


@functools.lru_cache(maxsize=256)
def sizes_for(preset: SealPreset, cohort: int, bits: int) -> BfvSizes:
    """What a sum of `cohort` vectors of `bits`-bit values takes in the ring of `preset`.

    Raises ConfigError: not even one value fits in a slot.
    """
    bound, n = (1 << (bits - 1)) - 1, preset.dimension
    width = (2 * bound * cohort).bit_length()
    found: list[BfvSizes] = []
    for per in range(1, MAX_PLAIN // width + 1):
        digits = Digits(width, per, bound)
        plain = max((ROOM * cohort * digits.largest).bit_length() + 1, MIN_PLAIN)
        lengths = range(max(MIN_BITS, plain + 2), preset.log_q + 1)
        sizes = (BfvSizes(n, length, plain, digits) for length in lengths)
        if (fitting := next((one for one in sizes if one.fits(cohort)), None)) is not None:
            found.append(fitting)
    return shortest(found, preset, cohort, bits)
