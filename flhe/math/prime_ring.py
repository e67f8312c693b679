"""The rings Z_q[x] / (x**n + 1) over primes q < 2**63 that are 1 modulo 2 n, and where those are found.

The same operations as `flhe.math.ring` has over the Goldilocks field; several of these rings are the
limbs of a larger modulus. Elements are numpy uint64, canonical: below q. Arguments are taken to be
canonical; shapes and types are looked at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from flhe.errors import ConfigError
from flhe.math.ring_arrays import Polynomials, Tables, quotient, root

MAX_DIMENSION = 1 << 15

MAX_BITS = 63
"""Of a modulus: twice a residue fits a word."""

_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""No composite below 3 * 10**23 passes Miller-Rabin to all of these (Sorenson and Webster, 2017)."""


def is_prime(number: int) -> bool:
    """Whether a number below 2**64 is prime: Miller-Rabin to bases that leave no doubt."""
    if number < 2:
        return False
    if number in _BASES or any(number % base == 0 for base in _BASES):
        return number in _BASES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    for base in _BASES:
        x = pow(base, (number - 1) >> twos, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


@functools.cache
def ntt_primes(n: int, bits: int, count: int) -> tuple[int, ...]:
    """The `count` largest primes below 2**bits that are 1 modulo 2 n, largest first.

    `n` is a power of two, 2 to 32768, `bits` at most 63.

    Raises ConfigError: parameters out of range; fewer such primes.
    """
    if not _dimension(n) or not 1 <= bits <= MAX_BITS or count < 1:
        raise ConfigError(
            f"ntt_primes({n}, {bits}, {count}): takes a power of two from 2 to {MAX_DIMENSION}, 1 to "
            f"{MAX_BITS} bits and a positive count"
        )
    found: list[int] = []
    step = 2 * n
    for candidate in range(((1 << bits) - 2) // step * step + 1, step, -step):
        if is_prime(candidate):
            found.append(candidate)
            if len(found) == count:
                return tuple(found)
    raise ConfigError(
        f"ntt_primes({n}, {bits}, {count}): only {len(found)} primes below 2**{bits} are 1 modulo "
        f"{step}; take more bits"
    )


def _dimension(n: int) -> bool:
    return 2 <= n <= MAX_DIMENSION and not n & (n - 1)


@functools.cache
def _tables(n: int, q: int) -> Tables:
    from flhe.math import prime_kernels

    base, w = root(q, 2 * n), np.empty(2 * n, np.uint64)
    prime_kernels.powers(np.uint64(base), quotient(base, q), np.uint64(q), w)
    return Tables.of(w, np.uint64(q))


@dataclass(frozen=True, slots=True)
class PrimeRing(Polynomials):
    """Z_q[x] / (x**n + 1).

    Parameters
    ----------
    n : int
        Dimension, a power of two, 2 to 32768.
    q : int
        A prime below 2**63 that is 1 modulo 2 n.
    """

    n: int
    q: int
    _held: Tables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _dimension(self.n):
            raise ConfigError(
                f"PrimeRing({self.n}, {self.q}): n must be a power of two, 2 to {MAX_DIMENSION}"
            )
        fits = 2 < self.q < 1 << MAX_BITS and self.q % (2 * self.n) == 1
        if not fits or not is_prime(self.q):
            raise ConfigError(
                f"PrimeRing({self.n}, {self.q}): q must be a prime below 2**{MAX_BITS} that is 1 "
                f"modulo {2 * self.n}; see ntt_primes"
            )
        object.__setattr__(self, "_held", _tables(self.n, self.q))
