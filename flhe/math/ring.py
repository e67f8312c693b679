"""The Goldilocks field Z_Q, Q = 2**64 - 2**32 + 1; rings Z_q[x] / (x**n + 1) over other primes too.

Q - 1 is a multiple of 2**32, so every transform of up to 2**32 points exists, and 2**64 = 2**32 - 1
modulo Q, which makes products cheap (`field_kernels`). Other primes q are 1 modulo 2 n; several of
their rings are the limbs of a larger modulus.

Elements are numpy uint64, canonical: below q. Functions assume canonical arguments: they check
shapes and types, and only `check` checks values.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, RangeError
from flhe.math.buffers import fixed

Q = (1 << 64) - (1 << 32) + 1
"""The Goldilocks prime."""

_E = np.uint64((1 << 64) - Q)
"""2**64 modulo Q."""

MAX_POINTS = 1 << 16

MAX_DIMENSION, MAX_GOLDILOCKS = 1 << 15, 1 << 13
"""Maximum dimension of rings over any prime, and over the Goldilocks prime."""

MAX_BITS = 63
"""Maximum bits of a modulus other than the Goldilocks prime: twice a residue fits a word."""

_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""No composite below 3 * 10**23 passes Miller-Rabin to all of these (Sorenson and Webster, 2017)."""

Elements = NDArray[np.uint64]

Modulus = np.uint64 | None
"""Modulus for kernels: None for the Goldilocks field."""

_WORD = 1 << 64


def _modulus(q: int) -> Modulus:
    return None if q == Q else np.uint64(q)


def root(q: int, order: int) -> int:
    """Return a primitive root of unity modulo a prime; `order` is a power of two dividing q - 1.

    It is g**((q - 1) / order) for the least g of 2, 3, ... that gives one: all members find the
    same.
    """
    if order == 1:
        return 1
    powers = (pow(g, (q - 1) // order, q) for g in itertools.count(2))
    return next(w for w in powers if pow(w, order // 2, q) == q - 1)


def quotient(w: int, q: int) -> np.uint64:
    """Return floor(w 2**64 / q), with which `prime_kernels.mul` multiplies by w."""
    return np.uint64(w * _WORD // q)


def quotients(w: Elements, modulus: Modulus) -> Elements:
    """Return `quotient` of each; without a modulus they are not read, and `w` itself is returned."""
    from flhe.math import prime_kernels

    if modulus is None:
        return w
    q, out = int(modulus), np.empty(w.shape, np.uint64)
    unit, inverse = _WORD % q, np.uint64(pow(q, -1, _WORD))
    prime_kernels.quotients(w, modulus, np.uint64(unit), quotient(unit, q), inverse, out)
    return out


@dataclass(frozen=True, slots=True)
class Tables:
    """Roots of a transform modulo x**n - c, as `ring_kernels` reads them, and their quotients.

    They are ordered stage by stage, inverses last stage first. `order`, (n,), gives the places of
    the values at w**0 or w**1, w**2 or w**3, ..., w a root of order 2 n.
    """

    roots: Elements
    parts: Elements
    inverse_roots: Elements
    inverse_parts: Elements
    order: NDArray[np.int64]

    @classmethod
    def of(cls, w: Elements, modulus: Modulus, *, cyclic: bool = False) -> Tables:
        """Return tables for x**n + 1, or x**n - 1 if `cyclic`; w: powers of a root of order 2 n.

        A factor x**(2 t) - w**(2 e) splits into x**t - w**e and x**t + w**e, whose constant is
        w**(e + n). So stages are lists of exponents, halved from one to the next.
        """
        from flhe.math.ring_kernels import TILE

        n = w.size // 2
        exponents = np.array([0 if cyclic else n], np.int64)
        stages, back = [], []
        while exponents.size < n:
            halves = exponents // 2
            repeated = np.resize(halves, max(halves.size, min(TILE, n // 2)))
            stages.append(w[repeated])
            back.append(w[-repeated % (2 * n)])
            exponents = np.column_stack([halves, halves + n]).ravel()
        roots, inverses = np.concatenate(stages), np.concatenate(back[::-1])
        parts, inverse_parts = (quotients(table, modulus) for table in (roots, inverses))
        return cls(roots, parts, inverses, inverse_parts, np.argsort(exponents))

    def forward(self, x: Elements, modulus: Modulus) -> Elements:
        """Return transforms of polynomials, uint64 (..., n), as a new array."""
        from flhe.math import ring_kernels

        out, rows = np.empty(x.shape, np.uint64), fixed(_rows(x))
        space = np.empty((2, x.shape[-1]), np.uint64)
        ring_kernels.forward(rows, self.roots, self.parts, modulus, space, _rows(out))
        return out


@dataclass(frozen=True, slots=True)
class Steps:
    """Roots of products over the Goldilocks field, as `goldilocks_kernels` reads them.

    `roots`, (steps, 3, n / 4), are r**2, r and r**3 for the last three of four parts; `twist`, (n,),
    is 1 / n, w**-1 / n, w**-2 / n, ...
    """

    roots: Elements
    twist: Elements

    @classmethod
    def of(cls, w: Elements) -> Steps:
        """Return the roots for x**n + 1; w: powers of a root of order 2 n.

        Before a step, 2**done parts of a transform are combined. The topmost bits of a place say
        which of its values lies there: f. Then r is w**(-2 f n / (4 * 2**done)).
        """
        n = w.size // 2
        size, places, roots = n.bit_length() - 1, np.arange(n // 4), []
        for done in range(2 - size % 2, size, 2):
            exponents = (n >> (done + 1)) * (places >> (size - 2 - done))
            roots.append(w[-np.multiply.outer((2, 1, 3), exponents) % (2 * n)])
        stacked = np.array(roots, np.uint64).reshape(len(roots), 3, n // 4)
        return cls(stacked, scaled(w[-np.arange(n) % (2 * n)], pow(n, -1, Q), Q))


def scaled(x: Elements, factor: int, q: int) -> Elements:
    """Return products of any 64-bit numbers with one factor modulo q, as a new array."""
    from flhe.math import prime_kernels

    factor, out = factor % q, np.empty(x.shape, np.uint64)
    given = np.uint64(factor), quotient(factor, q), _modulus(q)
    prime_kernels.scaled(np.ascontiguousarray(x).reshape(-1), *given, out.reshape(-1))
    return out


def elementwise(
    name: str, x: Elements, y: Elements, modulus: Modulus, out: Elements | None = None
) -> Elements:
    """Return sums ("add") or differences ("subtract") of equal shapes; `out` is contiguous."""
    from flhe.math import prime_kernels

    _check_alike(x, y)
    out = np.empty(x.shape, np.uint64) if out is None else out
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ConfigError("elements of a ring: the output array must be contiguous")
    other = y.copy() if np.may_share_memory(out, y) else np.ascontiguousarray(y)
    if out is not x:
        out[...] = x
    getattr(prime_kernels, name)(out.reshape(-1), fixed(other.reshape(-1)), modulus)
    return out


def _check_alike(x: Elements, y: Elements) -> None:
    if x.shape != y.shape or not x.dtype == y.dtype == np.uint64:
        raise ConfigError(
            f"elements of a ring: got {x.dtype} {x.shape} and {y.dtype} {y.shape}, takes uint64 "
            "of one shape"
        )


def _rows(x: Elements) -> Elements:
    return np.ascontiguousarray(x, np.uint64).reshape(-1, x.shape[-1])


# --- the Goldilocks field ---


def check(elements: Elements) -> None:
    """Raise RangeError unless all are uint64 below Q."""
    if elements.dtype != np.uint64:
        raise RangeError(f"field elements are uint64, got {elements.dtype}")
    if elements.size and int(elements.max()) >= Q:
        raise RangeError("a field element is not below 2**64 - 2**32 + 1")


def add(a: Elements, b: Elements) -> Elements:
    """Return sums, element by element, of arrays of one shape, by NumPy: it loads no kernels."""
    _check_alike(a, b)
    total = a + b
    return total + np.where((total < a) | (total >= np.uint64(Q)), _E, np.uint64(0))


def subtract(a: Elements, b: Elements) -> Elements:
    """Return differences a - b, element by element, of arrays of one shape, by NumPy."""
    _check_alike(a, b)
    return (a - b) - np.where(a < b, _E, np.uint64(0))


def lifted(key: NDArray[np.signedinteger], q: int) -> Elements:
    """Return small signed coefficients modulo q."""
    wide = key.astype(np.int64)
    # NumPy takes a bare 64-bit q for a C long, which it does not fit.
    residues: Elements = wide.view(np.uint64) + np.where(wide < 0, np.uint64(q), np.uint64(0))
    return residues


def powers(base: int, count: int, q: int = Q) -> Elements:
    """Return 1, base, base**2, ... modulo a prime, shape (count,)."""
    from flhe.math import prime_kernels

    out = np.empty(count, np.uint64)
    prime_kernels.powers(np.uint64(base % q), quotient(base % q, q), _modulus(q), out)
    return out


@functools.cache
def _tables(n: int) -> Tables:
    return Tables.of(powers(root(Q, 2 * n), 2 * n), None, cyclic=True)


def evaluate(coefficients: Elements) -> Elements:
    """Return values of polynomials at 1, w, ..., w**(N - 1), w = root(Q, N), in that order.

    `coefficients` are uint64 (..., N), lowest first; N is a power of two up to 2**16.
    """
    n = coefficients.shape[-1]
    if n < 1 or n & (n - 1) or n > MAX_POINTS:
        raise ConfigError(f"evaluate: {n} points, must be a power of two up to {MAX_POINTS}")
    if n == 1:
        return coefficients.copy()
    tables = _tables(n)
    ordered: Elements = tables.forward(coefficients, None)[..., tables.order]
    return ordered


# --- rings ---


def is_prime(number: int) -> bool:
    """Return whether a number below 2**64 is prime: Miller-Rabin to bases that make it certain."""
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
    """Return the `count` largest primes below 2**bits that are 1 modulo 2 n, largest first.

    `n` is a power of two, 2 to 32768, `bits` at most 63.

    Raises ConfigError: fewer such primes.
    """
    step = 2 * n
    candidates = range(((1 << bits) - 2) // step * step + 1, step, -step)
    found = tuple(itertools.islice(filter(is_prime, candidates), count))
    if len(found) < count:
        raise ConfigError(
            f"ntt_primes({n}, {bits}, {count}): only {len(found)} primes below 2**{bits} are 1 modulo "
            f"{step}; take more bits"
        )
    return found


@functools.cache
def _ring_tables(n: int, q: int) -> Tables:
    """Return the roots of a ring after checking its parameters; ConfigError for invalid ones."""
    most = MAX_GOLDILOCKS if q == Q else MAX_DIMENSION
    if not 2 <= n <= most or n & (n - 1):
        raise ConfigError(f"PrimeRing({n}, {q}): n must be a power of two, 2 to {most}")
    fits = (2 < q < 1 << MAX_BITS or q == Q) and q % (2 * n) == 1
    if not fits or not is_prime(q):
        raise ConfigError(
            f"PrimeRing({n}, {q}): q must be the Goldilocks prime, or a prime below 2**{MAX_BITS} that "
            f"is 1 modulo {2 * n}; see ntt_primes"
        )
    return Tables.of(powers(root(q, 2 * n), 2 * n, q), _modulus(q))


@functools.cache
def _steps(n: int) -> Steps:
    return Steps.of(powers(root(Q, 2 * n), 2 * n))


@dataclass(frozen=True, slots=True)
class PrimeRing:
    """Z_q[x] / (x**n + 1).

    A transform holds a polynomial's values at the odd powers of a root of order 2 n (`root`), in
    the order in which the factors of x**n + 1 split (bit-reversed). Transforms of random
    polynomials are random: to get a uniform one, draw its transform.

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
        object.__setattr__(self, "_held", _ring_tables(self.n, self.q))

    def add(self, x: Elements, y: Elements, out: Elements | None = None) -> Elements:
        """Return sums, as a new array or in `out`, which must be contiguous."""
        return elementwise("add", x, y, _modulus(self.q), out)

    def subtract(self, x: Elements, y: Elements, out: Elements | None = None) -> Elements:
        """Return differences x - y, as a new array or in `out`, which must be contiguous."""
        return elementwise("subtract", x, y, _modulus(self.q), out)

    def forward(self, x: Elements) -> Elements:
        """Return transforms of polynomials, uint64 (..., n), as a new array."""
        self._check(x)
        return self._held.forward(x, _modulus(self.q))

    def products(
        self,
        s_hat: Elements,
        a_hat: Elements,
        out: NDArray[Any] | None = None,
        *,
        rounded: bool = False,
    ) -> NDArray[Any]:
        """Return the polynomials a_j s, uint64 (blocks, n), in `out` if given.

        `s_hat` is the transform of s, uint64 (n,), `a_hat` those of a_1, a_2, ..., uint64 (blocks,
        n). `rounded`, over the Goldilocks field only: to uint32, which is SASH's G(s), ring form.
        """
        from flhe.math import goldilocks_kernels, ring_kernels

        if rounded and self.q != Q:
            raise ConfigError(f"only the Goldilocks field rounds products, not one modulo {self.q}")
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
        if self.q == Q:
            steps, e, s = _steps(self.n), np.uint64((1 << 32) - 1), np.ascontiguousarray(s_hat)
            given = steps.roots, steps.twist, e, rounded or None
            goldilocks_kernels.products(s, a_hat, *given, out)
        else:
            tables, q = self._held, np.uint64(self.q)
            s = scaled(s_hat, pow(self.n, -1, self.q), self.q)
            roots, parts = tables.inverse_roots, tables.inverse_parts
            space = np.empty((2, self.n), np.uint64)
            ring_kernels.products(s, quotients(s, q), fixed(a_hat), roots, parts, q, space, out)
        return out

    def _check(self, x: Elements) -> None:
        if x.shape[-1:] != (self.n,) or x.dtype != np.uint64:
            raise ConfigError(
                f"a ring of dimension {self.n}: got {x.dtype} {x.shape}, takes uint64 (..., {self.n})"
            )
