"""How large the ring of threshold decryption is: slots below noise, and that below flooding noise.

    x = p (E + sum over t parties of E_j) + M,    |E| <= b,   |E_j| <= B,   B >= 2^40 b
    q / 2 > p (b + t B) + p

E is the noise of a sum of K <= N ciphertexts under a key that N parties made: with u, e', e'' fresh for
each ciphertext and s, e sums of N Gaussians,

    E = sum over K of (u e + e'' s + e'),    b = 8 sigma sqrt(N (5/4 2 N n sigma^2 + 1))

for given s and e each coefficient is a sum of Gaussians of variance sigma^2 (|e|^2 + |s|^2 + 1), and
|e|^2 + |s|^2 is near 2 N n sigma^2; a quarter more is 22 of its standard deviations for n = 4096 and
above. A coefficient is beyond b once in 2^56.

A partial decryption is then within b / (2 B) <= 2^-41 a coefficient of one that knows nothing of E, and
2^21 of them (`ALLOWANCE`) within 2^-20. Both parts of the noise together are read as one number of 63
bits, which bounds N and t: 7 of 16 at n = 16384, and 15 in `rns-8192`.

Source: Asharov et al., EUROCRYPT 2012 (flooding); packing: `flhe.coding.coefficients`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from flhe.coding.coefficients import Coefficients, slot_width
from flhe.errors import ConfigError
from flhe.math.ring import ntt_primes
from flhe.math.sampling import SIGMA
from flhe.schemes.esafl.rlwe import MAX_LIMB, SPREAD, Rlwe
from flhe.schemes.presets import RingPreset

SMUDGING = 40
"""Bits that smudging noise is larger than what it hides."""

DISTANCE = 20
"""Bits of the statistical distance between all that one key opens and what sums alone tell."""

ALLOWANCE = 1 << SMUDGING + 1 - DISTANCE
"""Coefficients that one key opens, at most."""

DEVIATIONS = 8
"""Standard deviations that count as the largest noise."""

SPARE = Fraction(5, 4)
"""How much longer than expected keys and their errors may be, squared."""

NOISE_BITS = 63
"""Most bits of noise that are told from a wrong sum: it is read, shifted by its bound, as one word."""


@dataclass(frozen=True, slots=True)
class Flooded(Coefficients):
    """Coefficients whose noise is that of ciphertexts and of partial decryptions."""

    smudging: int  # log2 of B
    parties: int  # t, those who decrypt
    hidden: int  # b, largest noise of a sum of ciphertexts

    def __post_init__(self) -> None:
        Coefficients.__post_init__(self)
        start = f"Flooded(smudging={self.smudging}, parties={self.parties}): "
        if 1 << self.smudging < self.hidden << SMUDGING:
            raise ConfigError(f"{start}smudging must be 2^{SMUDGING} times the noise that it hides")
        if self.most.bit_length() > NOISE_BITS:
            raise ConfigError(
                f"{start}noise of more than {NOISE_BITS} bits; take fewer parties or a lower threshold"
            )
        if self.q <= 2 * ((self.most << self.log_p) + (1 << self.log_p)):
            raise ConfigError(
                f"{start}{self.per} slots of {self.width} bits and {self.most.bit_length()} bits of "
                f"noise do not fit a modulus of {self.q.bit_length()} bits; take fewer slots"
            )

    @property
    def most(self) -> int:
        """Largest noise of an opened sum: b + t B."""
        return self.hidden + (self.parties << self.smudging)

    def noise_bound(self, count: int) -> int:
        """The same for every number of vectors: smudging is drawn for the largest."""
        return self.most


def ciphertext_noise(dimension: int, cohort: int) -> int:
    """b: largest noise of a sum of `cohort` ciphertexts under the key of as many parties."""
    sigma = Fraction(str(SIGMA))
    keys = SPARE * 2 * cohort * dimension * sigma**2
    return math.isqrt(math.ceil(DEVIATIONS**2 * sigma**2 * cohort * (keys + 1))) + 1


@functools.lru_cache(maxsize=256)
def sizes_for(preset: RingPreset, cohort: int, threshold: int, bits: int) -> Rlwe:
    """Sizes with the fewest bits a value that have room for all of it; `slots` is `Flooded`.

    Raises ConfigError: not even one slot fits; more parties than noise has room for.
    """
    bound = (1 << (bits - 1)) - 1
    hidden = ciphertext_noise(preset.dimension, cohort)
    smudging = (hidden << SMUDGING).bit_length()
    noise = math.log2(2 * (hidden + (threshold << smudging) + 1))
    width, found = slot_width(bound, cohort), []
    for per in range(1, 0 if preset.log_q == 64 else preset.log_q // width + 1):
        need = per * width + noise
        limbs = math.ceil(need / MAX_LIMB)
        # Primes lie a little below a power of two: where that is a little too low, one bit more.
        for limb_bits in (math.ceil(need / limbs), math.ceil(need / limbs) + 1):
            if preset.dimension.bit_length() + SPREAD <= limb_bits <= MAX_LIMB:
                found.append((limbs * limb_bits / per, per, limbs, limb_bits))
    for _, per, limbs, limb_bits in sorted(found):
        moduli = ntt_primes(preset.dimension, limb_bits, limbs)
        q, room = math.prod(moduli), hidden + (threshold << smudging) + 1
        if q.bit_length() <= preset.log_q and q > 2 * room << per * width:
            slots = Flooded(bound, cohort, per, moduli, smudging, threshold, hidden)
            return Rlwe(preset.dimension, limb_bits, slots)
    raise ConfigError(
        f"ring {preset.name!r}: a sum of {cohort} values of {bits} bits below noise of {noise:.0f} "
        f"bits does not fit log q = {preset.log_q}; use fewer bits, fewer parties or another ring"
    )
