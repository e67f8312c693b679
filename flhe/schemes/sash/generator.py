"""G: the almost seed-homomorphic pseudorandom generator that SASH masks with.

    G(k)_d = round(<a_d, k>)  from Z_q to Z_p,    q = 2^64 - 2^32 + 1,  p = 2^32

    G(k_1) + ... + G(k_n) = G(k_1 + ... + k_n) + e,   |e| <= (n + 1) / 2

`a` is public: a_d are the rows of multiplications by uniform polynomials, one for each 2048 values, so
that a value costs a few butterflies of an inverse NTT and eight bytes of `a`. (The paper's `a` is a
matrix: mu products and 8 mu bytes a value.) It is uniform in the transformed domain right away, and is
expanded again each time: it is stored nowhere.

Source: SASH, Sec. 2.3, with rounding to nearest instead of the floor; Banerjee, Peikert and Rosen,
EUROCRYPT 2012 (learning with rounding); docs/protocol.md for why q is prime.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import spread
from flhe.math.prg import AesCtr, FieldElements
from flhe.math.prime_ring import PrimeRing
from flhe.schemes.presets import RingPreset
from flhe.schemes.sealed import Slot
from flhe.schemes.shell import windows
from flhe.wire import canonical
from flhe.wire.derive import PREFIX

Seed = NDArray[np.uint64]
"""A seed: uniform field elements, shape (dimension,)."""

PIECE = 16
"""Ring elements that are worked on at a time: 256 KiB of `a` at n = 2048, which stay in cache."""

SPARE = 3
"""Words of scratch space beyond the elements: AES comes in blocks of two."""


def public_key(preset: RingPreset, slot: Slot) -> bytes:
    """What `a` is expanded from, 32 bytes, public: a hash that binds it to one epoch of one run.

    `a` may serve every round of the epoch, because seeds are fresh for each ciphertext. The server has
    no say in the epoch's id, so it cannot choose an `a` with a trapdoor.
    """
    fields = [PREFIX + "sash-a", preset.name, slot.run_id, slot.roster_hash, slot.epoch]
    return hashlib.sha256(canonical.dumps(fields)).digest()


def expand(
    preset: RingPreset, slot: Slot, seed: Seed, out: NDArray[np.uint32], threads: int = 1
) -> None:
    """Write the mask G(seed), as `slot`'s epoch has it, into `out`, shape (length,).

    It is the same whatever the threads: work is cut where a ring element ends.
    """
    n, public = preset.dimension, public_key(preset, slot)
    ring = PrimeRing(n)
    transformed = ring.forward(seed)

    def work(start: int, stop: int) -> None:
        elements = FieldElements(AesCtr(), public)
        scratch = np.empty(PIECE * n + SPARE, np.uint64)
        for at, end in windows(start, stop, PIECE * n):
            part, count = out[at:end], -(-(end - at) // n)
            a = elements.blocks(at // n, count, n, scratch)
            if part.size == count * n:
                ring.masks(transformed, a, part.reshape(count, n))
            else:
                part[:] = ring.masks(transformed, a).reshape(-1)[: part.size]

    spread(work, out.size, n, threads)
