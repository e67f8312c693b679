"""LLL in double precision, block by block of R, which Householder's QR keeps exact enough at 300 rows.

Source: Lenstra, Lenstra, Lovasz, 1982; by blocks: Koy and Schnorr, CaLC 2001.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

WINDOW = 48
"""Rows that are reduced by themselves; every other turn they begin half a window later."""

DELTA = 0.99


def reduce(basis: NDArray[np.float64], turns: int = 400) -> None:
    """Reduce a basis of integers below 2^26, rows of shape (d, d), in place."""
    d, still = len(basis), 0
    for turn in range(turns):
        _size_reduce(basis, _triangle(basis))
        r, swaps = _triangle(basis), 0
        for at in range(turn % 2 * WINDOW // 2, d - 1, WINDOW):
            end = min(at + WINDOW, d)
            made = np.eye(end - at)
            swaps += _reduce(np.ascontiguousarray(r[at:end, at:end]), made)
            basis[at:end] = made.T @ basis[at:end]
        still = 0 if swaps else still + 1
        if still == 2:
            return


def _triangle(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """R of the basis' columns, its diagonal positive."""
    r = np.linalg.qr(basis.T, mode="r")
    return np.ascontiguousarray(r * np.sign(np.diag(r))[:, None])


@nb.njit  # type: ignore[untyped-decorator]
def _size_reduce(basis, r):  # type: ignore[no-untyped-def]
    for k in range(1, len(basis)):
        for j in range(k - 1, -1, -1):
            x = np.rint(r[j, k] / r[j, j])
            if x != 0:
                r[: j + 1, k] -= x * r[: j + 1, j]
                basis[k] -= x * basis[j]


@nb.njit  # type: ignore[untyped-decorator]
def _reduce(r, made):  # type: ignore[no-untyped-def]
    """LLL on the columns of `r`, which `made` follows; returns how many swaps it took."""
    k, swaps = 1, 0
    while k < len(r):
        for j in range(k - 1, -1, -1):
            x = np.rint(r[j, k] / r[j, j])
            if x != 0:
                r[: j + 1, k] -= x * r[: j + 1, j]
                made[:, k] -= x * made[:, j]
        if DELTA * r[k - 1, k - 1] ** 2 <= r[k - 1, k] ** 2 + r[k, k] ** 2:
            k += 1
            continue
        for matrix in (r, made):
            column = matrix[:, k].copy()
            matrix[:, k] = matrix[:, k - 1]
            matrix[:, k - 1] = column
        # A rotation makes it a triangle again.
        length = np.hypot(r[k - 1, k - 1], r[k, k - 1])
        c, s = r[k - 1, k - 1] / length, r[k, k - 1] / length
        upper, lower = r[k - 1].copy(), r[k].copy()
        r[k - 1] = c * upper + s * lower
        r[k] = c * lower - s * upper
        r[k, k - 1] = 0.0
        if r[k, k] < 0:
            r[k] = -r[k]
        swaps += 1
        k = max(k - 1, 1)
    return swaps
