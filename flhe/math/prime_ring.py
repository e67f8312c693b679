"""The rings Z_q[x] / (x**n + 1) over primes q that are 1 modulo 2 n, and where those are found.

Several of these rings are the limbs of a larger modulus. Elements are numpy uint64, canonical: below q.
Arguments are taken to be canonical; shapes and types are looked at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.ring import Elements, Modulus, Q, Tables, elementwise, quotient, quotients, root

MAX_DIMENSION, MAX_GOLDILOCKS = 1 << 15, 1 << 13
"""Of rings over any prime, and over the Goldilocks prime."""

MAX_BITS = 63
"""Of a modulus but the Goldilocks prime: twice a residue fits a word."""

_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""No composite below 3 * 10**23 passes Miller-Rabin to all of these (Sorenson and Webster, 2017)."""


def is_prime(number: int) -> bool:
    """Whether a number below 2**64 is prime: Miller-Rabin to bases that leave no doubt."""
    if number < 2 or any(number % base == 0 for base in _BASES):
        return number in _BASES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    return all(
        pow(base, odd, number) == 1
        or any(pow(base, odd << k, number) == number - 1 for k in range(twos))
        for base in _BASES
    )


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
    """Roots of a ring, once it is known to be one; ConfigError otherwise."""
    from flhe.math import prime_kernels

    most = MAX_GOLDILOCKS if q == Q else MAX_DIMENSION
    if not _dimension(n) or n > most:
        raise ConfigError(f"PrimeRing({n}, {q}): n must be a power of two, 2 to {most}")
    fits = (2 < q < 1 << MAX_BITS or q == Q) and q % (2 * n) == 1
    if not fits or not is_prime(q):
        raise ConfigError(
            f"PrimeRing({n}, {q}): q must be the Goldilocks prime, or a prime below 2**{MAX_BITS} that "
            f"is 1 modulo {2 * n}; see ntt_primes"
        )
    base, w = root(q, 2 * n), np.empty(2 * n, np.uint64)
    prime_kernels.powers(np.uint64(base), quotient(base, q), _modulus(q), w)
    return Tables.of(w, _modulus(q))


def _modulus(q: int) -> Modulus:
    return None if q == Q else np.uint64(q)


@dataclass(frozen=True, slots=True)
class PrimeRing:
    """Z_q[x] / (x**n + 1).

    A transform holds a polynomial's values at the odd powers of a root of order 2 n (`root`), in the
    order in which the factors of x**n + 1 split (bit-reversed). Transforms of random polynomials are
    random: who needs a uniform one can draw its transform.

    Sums and differences are of arrays of one shape, element by element; ConfigError for others.

    Parameters
    ----------
    n : int
        Dimension, a power of two, 2 to 32768; over the Goldilocks prime to 8192.
    q : int
        The Goldilocks prime, or a prime below 2**63 that is 1 modulo 2 n.
    """

    n: int
    q: int = Q
    _held: Tables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_held", _tables(self.n, self.q))

    @property
    def _modulus(self) -> Modulus:
        return _modulus(self.q)

    def add(self, x: Elements, y: Elements, out: Elements | None = None) -> Elements:
        """Sums, as a new array or in `out`, which must lie in one piece."""
        return elementwise("add", x, y, self._modulus, out)

    def subtract(self, x: Elements, y: Elements, out: Elements | None = None) -> Elements:
        """Differences x - y, as a new array or in `out`, which must lie in one piece."""
        return elementwise("subtract", x, y, self._modulus, out)

    def forward(self, x: Elements) -> Elements:
        """Transforms of polynomials, uint64 (..., n), as a new array."""
        self._check(x)
        return self._held.forward(x, self._modulus)

    def products(
        self,
        s_hat: Elements,
        a_hat: Elements,
        out: NDArray[Any] | None = None,
        *,
        rounded: bool = False,
    ) -> NDArray[Any]:
        """The polynomials a_j s, uint64 (blocks, n), in `out` where it is given.

        `s_hat` is the transform of s, uint64 (n,), `a_hat` those of a_1, a_2, ..., uint64 (blocks, n).
        `rounded`, over the Goldilocks field only: to uint32, which is SASH's G(s), ring form.
        """
        from flhe.math import prime_kernels, ring_kernels

        if rounded and self.q != Q:
            raise ConfigError(f"only the Goldilocks field's are rounded, not those modulo {self.q}")
        self._check(s_hat)
        self._check(a_hat)
        dtype = np.dtype(np.uint32 if rounded else np.uint64)
        if out is None:
            out = np.empty(a_hat.shape, dtype)
        if (s_hat.ndim, a_hat.ndim) != (1, 2) or (out.shape, out.dtype) != (a_hat.shape, dtype):
            raise ConfigError(
                f"a ring of dimension {self.n}: {out.dtype} {out.shape} for {a_hat.shape} and "
                f"{s_hat.shape}, takes uint64 (n,) and (blocks, n), and {dtype} (blocks, n) for the "
                "products"
            )
        tables, q, s = self._held, self._modulus, np.empty(self.n, np.uint64)
        scale = pow(self.n, -1, self.q)
        prime_kernels.scaled(
            np.ascontiguousarray(s_hat), np.uint64(scale), quotient(scale, self.q), q, s
        )
        roots, parts, rounding = tables.inverse_roots, tables.inverse_parts, rounded or None
        ring_kernels.products(s, quotients(s, q), a_hat, roots, parts, q, rounding, out)
        return out

    def _check(self, x: Elements) -> None:
        if x.shape[-1:] != (self.n,) or x.dtype != np.uint64:
            raise ConfigError(
                f"a ring of dimension {self.n}: got {x.dtype} {x.shape}, takes uint64 (..., {self.n})"
            )
