"""Numbers as residues modulo several primes: the constants that `limb_kernels` works with.

Out of residues r_i modulo ascending q_i comes the number in mixed radix (Garner, 1959): digits

    y_i = (...((r_i - y_0) / q_0 - y_1) / q_1 ... - y_(i-1)) / q_(i-1)      modulo q_i
    x = y_0 + q_0 (y_1 + q_1 (y_2 + ...))

with products of a residue and a constant only. Each constant comes with its quotient, as
`prime_kernels.mul` takes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.math.ring import Elements, quotient


@dataclass(frozen=True, slots=True)
class Limbs:
    """Constants for numbers p e + m, p = 2**(per width), m of `per` slots of `width` bits.

    Parameters
    ----------
    lift : NDArray
        uint64 (limbs, words, 2): 2**(bits below a word of slots). A word holds as many slots as 64 bits
        have room for.
    noisy : NDArray
        uint64 (limbs, 3): p, its quotient, and p SHIFT.
    order : NDArray
        int64 (limbs,): which limb is read first, second, ..., so that moduli ascend.
    garner : NDArray
        uint64 (limbs, limbs, 2): [i, k] is the inverse of the k-th of the ascending moduli modulo the
        i-th, k < i.
    """

    moduli: Elements
    lift: Elements
    noisy: Elements
    order: NDArray[np.int64]
    garner: Elements


@functools.cache
def limbs(width: int, per: int, moduli: tuple[int, ...]) -> Limbs:
    """The constants; moduli are coprime, odd and below 2**63."""
    from flhe.math.limb_kernels import SHIFT

    starts = [width * k for k in range(0, per, 64 // width)]
    p, order = 1 << width * per, sorted(range(len(moduli)), key=lambda limb: moduli[limb])
    garner = np.zeros((len(moduli), len(moduli), 2), np.uint64)
    for i, limb in enumerate(order):
        for k, lower in enumerate(order[:i]):
            garner[i, k] = _pair(pow(moduli[lower], -1, moduli[limb]), moduli[limb])
    return Limbs(
        np.array(moduli, np.uint64),
        np.array([[_pair(1 << at, q) for at in starts] for q in moduli], np.uint64),
        np.array([[*_pair(p, q), SHIFT * p % q] for q in moduli], np.uint64),
        np.array(order, np.int64),
        garner,
    )


def _pair(w: int, q: int) -> tuple[int, int]:
    """A constant modulo q, and its quotient."""
    return w % q, int(quotient(w % q, q))
