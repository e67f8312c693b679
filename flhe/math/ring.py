"""The Goldilocks field Z_Q, Q = 2**64 - 2**32 + 1, and the rings Z_Q[x] / (x**n + 1) over it.

Field elements are numpy uint64, canonical: below Q. Q - 1 is a multiple of 2**32, so every transform
of up to 2**32 points exists, and 2**64 = 2**32 - 1 modulo Q, which makes products cheap
(`field_kernels`). Arguments are taken to be canonical; only `check` looks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, RangeError
from flhe.math.ring_arrays import Elementwise, check_rows, target

Q = (1 << 64) - (1 << 32) + 1
"""The Goldilocks prime."""

GENERATOR = 7
"""Of the multiplicative group of Z_Q."""

P = 1 << 32
"""What masks are rounded to: Z_P."""

MAX_POINTS = 1 << 16

Elements = NDArray[np.uint64]


def root_of_unity(order: int) -> int:
    """A primitive root of unity; `order` is a power of two up to 2**32."""
    if order < 1 or order & (order - 1) or order > 1 << 32:
        raise ConfigError(f"root_of_unity({order}): the order must be a power of two up to 2**32")
    return pow(GENERATOR, (Q - 1) // order, Q)


def check(elements: Elements) -> None:
    """RangeError unless all are uint64 below Q."""
    if elements.dtype != np.uint64:
        raise RangeError(f"field elements are uint64, got {elements.dtype}")
    if elements.size and int(elements.max()) >= Q:
        raise RangeError("a field element is not below 2**64 - 2**32 + 1")


def add(a: Elements, b: Elements) -> Elements:
    """Sums, element by element; shapes as numpy broadcasts them."""
    from flhe.math import field_kernels

    return _elementwise(field_kernels.add, a, b)


def subtract(a: Elements, b: Elements) -> Elements:
    """Differences a - b, element by element; shapes as numpy broadcasts them."""
    from flhe.math import field_kernels

    return _elementwise(field_kernels.subtract, a, b)


def times(a: Elements, b: Elements) -> Elements:
    """Products, element by element; shapes as numpy broadcasts them."""
    from flhe.math import field_kernels

    return _elementwise(field_kernels.times, a, b)


def _elementwise(kernel: Any, a: Elements, b: Elements) -> Elements:
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    if a.shape != b.shape:
        a, b = np.broadcast_arrays(a, b)
    out = np.empty(a.shape, np.uint64)
    kernel(np.ascontiguousarray(a).ravel(), np.ascontiguousarray(b).ravel(), out.reshape(-1))
    return out


def powers(base: int, count: int) -> Elements:
    """1, base, base**2, ..., shape (count,)."""
    from flhe.math import field_kernels

    out = np.empty(count, np.uint64)
    field_kernels.powers(np.uint64(base % Q), out)
    return out


def rounded(x: Elements) -> NDArray[np.uint32]:
    """The integers nearest to x * P / Q, modulo P; same shape. None is halfway, since Q is odd."""
    from flhe.math import field_kernels

    out = np.empty(x.shape, np.uint32)
    field_kernels.rounded(np.ascontiguousarray(x).ravel(), out.reshape(-1))
    return out


def lwr_masks(
    k: Elements, rows: Elements, out: NDArray[np.uint32] | None = None, *, floor: bool = False
) -> NDArray[np.uint32]:
    """Inner products of k with each row, rounded to Z_P: SASH's G(k), matrix form.

    Parameters
    ----------
    k : NDArray
        uint64 (mu,).
    rows : NDArray
        uint64 (count, mu): rows of the matrix.
    out : NDArray, optional
        uint32 (count,), to be written.
    floor : bool
        The paper's own parameters: inner products modulo 2**64, without their low 32 bits. All 64-bit
        words are elements then.
    """
    from flhe.math import ring_kernels

    if out is None:
        out = np.empty(rows.shape[:1], np.uint32)
    fits = k.dtype == rows.dtype == np.uint64 and out.dtype == np.uint32
    if not fits or k.ndim != 1 or rows.shape != out.shape + k.shape:
        raise ConfigError(
            f"lwr_masks: got {k.dtype} {k.shape}, {rows.dtype} {rows.shape} and {out.dtype} "
            f"{out.shape}, takes uint64 (mu,), uint64 (count, mu) and uint32 (count,)"
        )
    (ring_kernels.lwr_floor_masks if floor else ring_kernels.lwr_masks)(k, rows, out)
    return out


# --- transforms ---


@dataclass(frozen=True, slots=True)
class _Tables:
    """Roots of a transform modulo x**n - c, as `ring_kernels.forward` and `inverse` read them.

    Parameters
    ----------
    roots : NDArray
        uint64, stage by stage.
    inverse_roots : NDArray
        uint64, their inverses, last stage first.
    order : NDArray
        int64 (n,): where the values at w**0 or w**1, w**2 or w**3, ... lie, w a root of order 2 n.
    """

    roots: Elements
    inverse_roots: Elements
    order: NDArray[np.int64]


@functools.cache
def _tables(n: int, *, cyclic: bool) -> _Tables:
    """For x**n - 1, or x**n + 1 unless `cyclic`.

    A factor x**(2 t) - w**(2 e) splits into x**t - w**e and x**t + w**e, whose constant is
    w**(e + n). So stages are lists of exponents, halved from one to the next.
    """
    from flhe.math import ring_kernels

    w = powers(root_of_unity(2 * n), 2 * n)
    exponents = np.array([0 if cyclic else n], np.int64)
    stages, back = [], []
    while exponents.size < n:
        halves = exponents // 2
        repeated = np.resize(halves, max(halves.size, min(ring_kernels.TILE, n // 2)))
        stages.append(w[repeated])
        back.append(w[-repeated % (2 * n)])
        exponents = np.column_stack([halves, halves + n]).ravel()
    return _Tables(np.concatenate(stages), np.concatenate(back[::-1]), np.argsort(exponents))


def _forward(x: Elements, *, cyclic: bool) -> Elements:
    from flhe.math import ring_kernels

    n = x.shape[-1]
    out = np.empty(x.shape, np.uint64)
    rows = np.ascontiguousarray(x, np.uint64).reshape(-1, n)
    ring_kernels.forward(rows, _tables(n, cyclic=cyclic).roots, out.reshape(-1, n))
    return out


def evaluate(coefficients: Elements) -> Elements:
    """Values of polynomials at 1, w, ..., w**(N - 1), w = root_of_unity(N), in that order.

    Parameters
    ----------
    coefficients : NDArray
        uint64 (..., N), lowest first; N a power of two up to 2**16.
    """
    n = coefficients.shape[-1]
    if n < 1 or n & (n - 1) or n > MAX_POINTS:
        raise ConfigError(f"evaluate: {n} points, must be a power of two up to {MAX_POINTS}")
    if n == 1:
        return coefficients.copy()
    values = _forward(coefficients, cyclic=True)
    ordered: Elements = values[..., _tables(n, cyclic=True).order]
    return ordered


@dataclass(frozen=True, slots=True)
class Ring(Elementwise):
    """Z_Q[x] / (x**n + 1).

    A transform holds a polynomial's values at the odd powers of a root of order 2 n, in the order in
    which the factors of x**n + 1 split (bit-reversed). Transforms of random polynomials are random:
    who needs a uniform one can draw its transform.

    Parameters
    ----------
    n : int
        Dimension, a power of two, 2 to 8192.
    """

    n: int
    _roots: Elements = field(init=False, repr=False, compare=False)
    _inverse_roots: Elements = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n not in (2 << i for i in range(13)):
            raise ConfigError(f"Ring({self.n}): n must be a power of two, 2 to 8192")
        tables = _tables(self.n, cyclic=False)
        object.__setattr__(self, "_roots", tables.roots)
        object.__setattr__(self, "_inverse_roots", tables.inverse_roots)

    def forward(self, x: Elements) -> Elements:
        """Transforms of polynomials, uint64 (..., n), as a new array."""
        check_rows(self.n, x)
        return _forward(x, cyclic=False)

    def inverse(self, x_hat: Elements) -> Elements:
        """Polynomials whose transforms are `x_hat`, uint64 (..., n), as a new array."""
        from flhe.math import ring_kernels

        check_rows(self.n, x_hat)
        out = np.empty(x_hat.shape, np.uint64)
        rows = np.ascontiguousarray(x_hat, np.uint64).reshape(-1, self.n)
        ring_kernels.inverse(rows, self._inverse_roots, self._scale, out.reshape(-1, self.n))
        return out

    def multiply(self, a: Elements, b: Elements) -> Elements:
        """Products modulo x**n + 1; shapes (..., n) as numpy broadcasts them."""
        return self.inverse(times(self.forward(a), self.forward(b)))

    def masks(
        self, k_hat: Elements, a_hat: Elements, out: NDArray[np.uint32] | None = None
    ) -> NDArray[np.uint32]:
        """The polynomials a_j k, each coefficient rounded to Z_P: SASH's G(k), ring form.

        Parameters
        ----------
        k_hat : NDArray
            uint64 (n,): transform of k.
        a_hat : NDArray
            uint64 (blocks, n): transforms of a_1, a_2, ...
        out : NDArray, optional
            uint32 (blocks, n), to be written.
        """
        from flhe.math import ring_kernels

        out = target(self.n, k_hat, a_hat, out, np.uint32)
        ring_kernels.ring_masks(k_hat, a_hat, self._inverse_roots, self._scale, out)
        return out

    def products(self, s_hat: Elements, a_hat: Elements, out: Elements | None = None) -> Elements:
        """The polynomials a_j s, not rounded; arguments as for `masks`, but `out` is uint64."""
        from flhe.math import ring_kernels

        out = target(self.n, s_hat, a_hat, out, np.uint64)
        ring_kernels.ring_products(s_hat, a_hat, self._inverse_roots, self._scale, out)
        return out

    @property
    def q(self) -> int:
        """The modulus, as `PrimeRing` has it."""
        return Q

    def _kernel(self, name: str) -> Callable[[Elements, Elements, Elements], None]:
        from flhe.math import field_kernels

        kernel: Callable[[Elements, Elements, Elements], None] = getattr(field_kernels, name)
        return kernel

    @property
    def _scale(self) -> np.uint64:
        return np.uint64(pow(self.n, -1, Q))
