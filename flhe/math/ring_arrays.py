"""Arrays of ring elements, as `flhe.math.ring` and `flhe.math.prime_ring` take and give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError

Elements = NDArray[np.uint64]


def check_rows(n: int, x: Elements) -> None:
    """ConfigError unless x is uint64 (..., n)."""
    if x.shape[-1:] != (n,) or x.dtype != np.uint64:
        raise ConfigError(
            f"a ring of dimension {n}: got {x.dtype} {x.shape}, takes uint64 (..., {n})"
        )


def target(
    n: int, k_hat: Elements, a_hat: Elements, out: NDArray[Any] | None, dtype: Any
) -> NDArray[Any]:
    """Where the products of k and a_j go: `out`, or a new array of that type, shape (blocks, n).

    Parameters
    ----------
    n : int
        Dimension.
    k_hat : NDArray
        uint64 (n,).
    a_hat : NDArray
        uint64 (blocks, n).
    out : NDArray, optional
        (blocks, n) of type `dtype`.

    Raises
    ------
    ConfigError
        Arrays of other shapes or types.
    """
    check_rows(n, k_hat)
    check_rows(n, a_hat)
    if out is None:
        out = np.empty(a_hat.shape, dtype)
    if (k_hat.ndim, a_hat.ndim) != (1, 2) or (out.shape, out.dtype) != (a_hat.shape, dtype):
        raise ConfigError(
            f"a ring of dimension {n}: {out.dtype} {out.shape} for {a_hat.shape} and {k_hat.shape}, "
            f"takes uint64 (n,) and (blocks, n), and {np.dtype(dtype)} (blocks, n) for the products"
        )
    return out


class Elementwise:
    """Sums and differences of arrays of one shape, element by element, whatever the shape is.

    All of them raise ConfigError for arrays of two shapes, or types but uint64.
    """

    __slots__ = ()

    def _kernel(self, name: str) -> Callable[[Elements, Elements, Elements], None]:
        """The kernel "add" or "subtract": two arrays and where the result goes, (count,) each."""
        raise NotImplementedError

    def add(self, x: Elements, y: Elements) -> Elements:
        """Sums, as a new array."""
        return _run(self._kernel("add"), x, y, np.empty(x.shape, np.uint64))

    def subtract(self, x: Elements, y: Elements) -> Elements:
        """Differences x - y, as a new array."""
        return _run(self._kernel("subtract"), x, y, np.empty(x.shape, np.uint64))

    def add_into(self, total: Elements, part: Elements) -> None:
        """Add `part` to `total`, which must lie in one piece."""
        _run(self._kernel("add"), total, part, total)

    def subtract_into(self, total: Elements, part: Elements) -> None:
        """Take `part` from `total`, which must lie in one piece."""
        _run(self._kernel("subtract"), total, part, total)


def _run(
    kernel: Callable[[Elements, Elements, Elements], None], x: Elements, y: Elements, out: Elements
) -> Elements:
    if x.shape != y.shape or not x.dtype == y.dtype == np.uint64:
        raise ConfigError(
            f"elements of a ring: got {x.dtype} {x.shape} and {y.dtype} {y.shape}, takes uint64 of "
            "one shape"
        )
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ConfigError("elements of a ring: what is written to must lie in one piece")
    flat, other = (np.ascontiguousarray(a).reshape(-1) for a in (x, y))
    kernel(flat, other, out.reshape(-1))
    return out
