"""Sizes of ESHE's ring, modulus and slots, for one preset, cohort and precision.

A coefficient holds `per` slots of `width` bits, p = 2^(per width), and the modulus has room for
noise above it:

    q / 2  >  p (8 sigma sqrt(N) + 1) + p

So log q grows with `per`, slot by slot, and its last bits hold the noise. With one 64-bit limb and
two slots a value costs 32 bits; with more limbs and nine slots, as few as 21. The preset bounds log
q; within the bound, the sizes with the fewest bits a value are taken.

p is a power of two and q is odd. The paper makes both powers of two: p e would then vanish modulo
p, and a ciphertext would reveal the key (`flhe_lab.papers.esafl`).

Source: ESAFL, Sec. 5.2 and 8.1.2, with the corrections of docs/protocol.md.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.coefficients import Coefficients, opens, slot_width
from flhe.coding.limbs import PIECE, LimbPacking
from flhe.errors import ConfigError
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, PrimeRing, Q, lifted, ntt_primes
from flhe.math.sampling import SIGMA
from flhe.schemes.presets import RingPreset

MAX_LIMB = 63
"""Bits of a prime: products are reduced with 64-bit words."""

SPARE = 3
"""Words of scratch space beyond the elements: AES comes in blocks of two."""

SPREAD = 8
"""Bits by which a prime exceeds the dimension, so that there are enough primes."""


@dataclass(frozen=True, slots=True)
class Rlwe:
    """Sizes of one ring, checked: dimension, bits of a residue on the wire, moduli and slots."""

    n: int
    limb_bits: int
    slots: Coefficients

    @property
    def rings(self) -> tuple[PrimeRing, ...]:
        """One ring for each limb."""
        return tuple(PrimeRing(self.n, q) for q in self.slots.moduli)

    @property
    def limbs(self) -> LimbPacking:
        """Layout of residues on the wire."""
        return LimbPacking(self.limb_bits, self.slots.moduli)

    def count(self, length: int) -> int:
        """Return the coefficients of a ciphertext of `length` values, without empty ones at the end."""
        return self.slots.count(length)

    @property
    def step(self) -> int:
        """Coefficients processed at a time: whole polynomials, whole pieces of the wire."""
        return max(PIECE, self.n)

    @property
    def value_bits(self) -> float:
        """Bits that one value takes on the wire."""
        return self.limb_bits * len(self.slots.moduli) / self.slots.per


@dataclass(frozen=True, slots=True)
class Products:
    """a s for one key, piece by piece; `a` is expanded again each time.

    `a` is expanded from `keys`, 32 bytes for each limb; `hats` are transforms of s, uint64 (n,).
    """

    sizes: Rlwe
    keys: tuple[bytes, ...] = field(repr=False)
    hats: tuple[Elements, ...] = field(repr=False)
    local: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @classmethod
    def of(cls, sizes: Rlwe, keys: tuple[bytes, ...], key: NDArray[Any]) -> Products:
        """Return the products for `key`, signed coefficients of shape (n,)."""
        hats = tuple(ring.forward(lifted(key, ring.q)) for ring in sizes.rings)
        return cls(sizes, keys, hats)

    def into(self, at: int, out: Elements) -> None:
        """Write coefficients from `at`, a multiple of `step`, of all limbs: uint64 (limbs, count)."""
        n, count = self.sizes.n, out.shape[1]
        first, blocks = at // n, -(-count // n)
        if not hasattr(self.local, "scratch"):
            self.local.scratch = np.empty(self.sizes.step + SPARE, np.uint64)
        for limb, ring in enumerate(self.sizes.rings):
            a_hat = FieldElements(self.keys[limb], ring.q).blocks(
                first, blocks, n, self.local.scratch
            )
            if count == blocks * n:
                ring.products(self.hats[limb], a_hat, out[limb].reshape(blocks, n))
            else:
                out[limb] = ring.products(self.hats[limb], a_hat).reshape(-1)[:count]


@functools.lru_cache(maxsize=256)
def rlwe_for(preset: RingPreset, cohort: int, bits: int) -> Rlwe:
    """Return the sizes for a sum of `cohort` vectors of `bits`-bit values in the rings of `preset`.

    Raises ConfigError: not even one slot fits.
    """
    bound = (1 << (bits - 1)) - 1
    width = slot_width(bound, cohort)
    noise = math.log2(2 * (8 * SIGMA * math.sqrt(cohort) + 2))
    one_limb, sizes = preset.log_q == 64, []
    for per in range(1, preset.log_q // width + 1):
        need = per * width + noise
        limbs = math.ceil(need / MAX_LIMB)
        # Primes lie a little below a power of two: if that is too low, take one more bit.
        for bits_of_one in (math.ceil(need / limbs), math.ceil(need / limbs) + 1):
            if one_limb:
                sizes.append((64 / per, per, 1, 64))
            elif preset.dimension.bit_length() + SPREAD <= bits_of_one <= MAX_LIMB:
                sizes.append((limbs * bits_of_one / per, per, limbs, bits_of_one))
    for _, per, limbs, limb_bits in sorted(sizes):
        moduli = (Q,) if one_limb else ntt_primes(preset.dimension, limb_bits, limbs)
        q = math.prod(moduli)
        if q.bit_length() <= preset.log_q and opens(q, per * width, cohort):
            return Rlwe(preset.dimension, limb_bits, Coefficients(bound, cohort, per, moduli))
    raise ConfigError(
        f"ring {preset.name!r}: a sum of {cohort} values of {bits} bits does not fit log q = "
        f"{preset.log_q}; use fewer bits or another ring"
    )


def most_bits(preset: RingPreset, cohort: int) -> int:
    """Return the bits of one value that cost no more on the wire than 16 do."""
    usual = rlwe_for(preset, cohort, 16).value_bits
    return next(bits for bits in range(32, 15, -1) if _value_bits(preset, cohort, bits) <= usual)


def _value_bits(preset: RingPreset, cohort: int, bits: int) -> float:
    try:
        return rlwe_for(preset, cohort, bits).value_bits
    except ConfigError:
        return math.inf
