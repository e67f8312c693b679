"""SASH as its paper has it: mu = 512, q = 2^64, p = 2^32, truncation; for comparison only.

    y_u = x_u + floor(<a, k_u> p / q)  mod p,      x_u unsigned, w bits (SASH, Eq. 2 and Fig. 2)

The sum comes out wrong by up to N - 1 (SASH, Theorem 1): a floor is taken in each mask, and one in
the mask of the summed seed. Seeds modulo 2^64 cannot be added by Shamir shares, which live in a
prime field. And the lattice-estimator gives these parameters 91 bits where the paper claims 128.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import words

MU = 512
"""mu: entries of a seed."""

SECURITY = 91
"""Bits, by the lattice-estimator (usvp, bdd, dual; MATZOV gates), rounded down."""


def lwr_masks(seed: NDArray[np.uint64], rows: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """G(seed): the seed, shape (mu,), times each row of (count, mu), without the low 32 bits."""
    return (rows @ seed >> np.uint64(32)).astype(np.uint32)


def mask(seed: NDArray[np.uint64], length: int) -> NDArray[np.uint32]:
    """G(seed) under the one public matrix, shape (length,)."""
    # Stream 0 from its beginning: it is public, and no mask by itself.
    found = [part.copy() for _, part in words(bytes(32), 0, MU * length)]
    return lwr_masks(seed, np.concatenate(found).reshape(length, MU))
