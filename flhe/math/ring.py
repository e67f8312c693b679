"""The Goldilocks field Z_Q, Q = 2**64 - 2**32 + 1; and roots, transforms and sums of any `PrimeRing`.

Field elements are numpy uint64, canonical: below Q. Q - 1 is a multiple of 2**32, so every transform
of up to 2**32 points exists, and 2**64 = 2**32 - 1 modulo Q, which makes products cheap
(`field_kernels`). Arguments are taken to be canonical; only `check` looks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, RangeError

Q = (1 << 64) - (1 << 32) + 1
"""The Goldilocks prime."""

MAX_POINTS = 1 << 16

Elements = NDArray[np.uint64]

Modulus = np.uint64 | None
"""As kernels take it: None for the Goldilocks field."""

_WORD = 1 << 64


def root(q: int, order: int) -> int:
    """A primitive root of unity modulo a prime; `order` is a power of two that divides q - 1.

    It is g**((q - 1) / order) for the least g of 2, 3, ... that gives one: everybody finds the same.
    """
    if order < 1 or order & (order - 1) or (q - 1) % order:
        raise ConfigError(
            f"root({q}, {order}): the order must be a power of two that divides q - 1"
        )
    if order == 1:
        return 1
    for g in range(2, 1000):
        w = pow(g, (q - 1) // order, q)
        if pow(w, order // 2, q) == q - 1:
            return w
    raise ConfigError(f"root({q}, {order}): found none, q must be prime")


def quotient(w: int, q: int) -> np.uint64:
    """floor(w 2**64 / q), with which `prime_kernels.mul` multiplies by w."""
    return np.uint64(w * _WORD // q)


def quotients(w: Elements, modulus: Modulus) -> Elements:
    """`quotient` of each; without a modulus nothing reads them, and they are what is given."""
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

    They stand stage by stage, inverses last stage first. `order`, (n,), says where the values at w**0
    or w**1, w**2 or w**3, ... lie, w a root of order 2 n.
    """

    roots: Elements
    parts: Elements
    inverse_roots: Elements
    inverse_parts: Elements
    order: NDArray[np.int64]

    @classmethod
    def of(cls, w: Elements, modulus: Modulus, *, cyclic: bool = False) -> Tables:
        """For x**n + 1, or x**n - 1 if `cyclic`, of the powers 0 to 2 n - 1 of a root of order 2 n.

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
        """Transforms of polynomials, uint64 (..., n), as a new array."""
        from flhe.math import ring_kernels

        out, rows = np.empty(x.shape, np.uint64), _rows(x)
        ring_kernels.forward(rows, self.roots, self.parts, modulus, _rows(out))
        return out


def elementwise(
    name: str, x: Elements, y: Elements, modulus: Modulus, out: Elements | None = None
) -> Elements:
    """Sums ("add") or differences ("subtract") of arrays of one shape; `out` must lie in one piece."""
    from flhe.math import prime_kernels

    out = np.empty(x.shape, np.uint64) if out is None else out
    if x.shape != y.shape or not x.dtype == y.dtype == np.uint64:
        raise ConfigError(
            f"elements of a ring: got {x.dtype} {x.shape} and {y.dtype} {y.shape}, takes uint64 "
            "of one shape"
        )
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ConfigError("elements of a ring: what is written to must lie in one piece")
    flat, other = (np.ascontiguousarray(a).reshape(-1) for a in (x, y))
    getattr(prime_kernels, name)(flat, other, modulus, out.reshape(-1))
    return out


def _rows(x: Elements) -> Elements:
    return np.ascontiguousarray(x, np.uint64).reshape(-1, x.shape[-1])


# --- the Goldilocks field ---


def check(elements: Elements) -> None:
    """RangeError unless all are uint64 below Q."""
    if elements.dtype != np.uint64:
        raise RangeError(f"field elements are uint64, got {elements.dtype}")
    if elements.size and int(elements.max()) >= Q:
        raise RangeError("a field element is not below 2**64 - 2**32 + 1")


def add(a: Elements, b: Elements) -> Elements:
    """Sums, element by element, of arrays of one shape."""
    return elementwise("add", a, b, None)


def subtract(a: Elements, b: Elements) -> Elements:
    """Differences a - b, element by element, of arrays of one shape."""
    return elementwise("subtract", a, b, None)


def lifted(key: NDArray[np.signedinteger], q: int) -> Elements:
    """Small signed coefficients modulo q."""
    wide = key.astype(np.int64)
    # NumPy takes a bare q of 64 bits for a C long, which it does not fit.
    residues: Elements = wide.view(np.uint64) + np.where(wide < 0, np.uint64(q), np.uint64(0))
    return residues


def powers(base: int, count: int) -> Elements:
    """1, base, base**2, ..., shape (count,)."""
    from flhe.math import prime_kernels

    out = np.empty(count, np.uint64)
    prime_kernels.powers(np.uint64(base % Q), np.uint64(0), None, out)
    return out


@functools.cache
def _tables(n: int) -> Tables:
    return Tables.of(powers(root(Q, 2 * n), 2 * n), None, cyclic=True)


def evaluate(coefficients: Elements) -> Elements:
    """Values of polynomials at 1, w, ..., w**(N - 1), w = root(Q, N), in that order.

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
