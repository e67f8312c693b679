"""SASH as its paper has it: mu = 512, q = 2^64, p = 2^32, truncation; for comparison only.

    y_u = x_u + floor(<a, k_u> p / q)  mod p,      x_u unsigned, w bits (SASH, Eq. 2 and Fig. 2)

The sum comes out wrong by up to N - 1 (SASH, Theorem 1): a floor is taken in each mask, and one in
the mask of the summed seed. Seeds modulo 2^64 cannot be added by Shamir shares, which live in a
prime field. And the lattice-estimator gives these parameters 91 bits where the paper claims 128:
nothing here is offered to users.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import BLOCK, CHUNK, AesCtr
from flhe.wire.secret import Random

MU = 512
"""mu: entries of a seed."""

SECURITY = 91
"""Bits, by the lattice-estimator (usvp, bdd, dual; MATZOV gates), rounded down."""

ROWS = CHUNK // (8 * MU)
"""Rows of the matrix that one piece of keystream holds."""


def lwr_masks(
    seed: NDArray[np.uint64], rows: NDArray[np.uint64], out: NDArray[np.uint32] | None = None
) -> NDArray[np.uint32]:
    """G(seed): the seed, shape (mu,), times each row of (count, mu), without the low 32 bits."""
    from flhe_lab.papers import lwr_kernels

    out = np.empty(len(rows), np.uint32) if out is None else out
    lwr_kernels.lwr_masks(seed, rows, out)
    return out


@dataclass(frozen=True, slots=True)
class PaperSash:
    """The paper's scheme among `cohort` clients, for one public matrix."""

    cohort: int  # N, 2 or more

    def seed(self, random: Random = secrets.token_bytes) -> NDArray[np.uint64]:
        """A fresh seed, uniform modulo 2^64, shape (MU,)."""
        return np.frombuffer(random(8 * MU), "<u8").astype(np.uint64)

    def mask(self, seed: NDArray[np.uint64], length: int) -> NDArray[np.uint32]:
        """G(seed), shape (length,)."""
        out = np.empty(length, np.uint32)
        # Stream 0 from block 0: it is public, and no mask by itself.
        stream = AesCtr().stream(bytes(32), 0)
        words = np.empty(CHUNK + BLOCK, np.uint8)
        for at in range(0, length, ROWS):
            part = out[at : at + ROWS]
            stream.into(words, 8 * MU * part.size)
            rows = words[: 8 * MU * part.size].view(np.uint64).reshape(part.size, MU)
            lwr_masks(seed, rows, part)
        return out

    def encrypt(self, values: NDArray[np.uint32], seed: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """y_u: `values` below 2^w, N (2^w - 1) < 2^32, shape (length,), masked."""
        return values + self.mask(seed, values.size)

    def decrypt(self, total: NDArray[np.uint32], seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """The sum of the senders' values, wrong by up to N - 1, modulo 2^32."""
        return total - self.mask(seeds, total.size)
