"""Blocks: TenSEAL, one BFV ciphertext of the ring at a time, with masks of our own."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.packages import absent
from flhe.schemes import ternary
from flhe.schemes.bfv.keys import BfvSecret
from flhe.schemes.bfv.sizes import BfvSizes
from flhe.schemes.seal_format import MAGIC, SealFormat, Words, to_seal_order


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise absent(name) from None


@functools.cache
def minor_version() -> int:
    """SEAL's minor version in the TenSEAL that is installed; it loads no other."""
    ts = _needed("tenseal")
    made = ts.context(ts.SCHEME_TYPE.CKKS, 2048, coeff_mod_bit_sizes=[27, 27], n_threads=1)
    data = made.serialize(save_public_key=False, save_galois_keys=False, save_relin_keys=False)
    version: int = data[data.index(MAGIC.to_bytes(2, "little")) + 4]
    return version


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Encryption and decryption under one key.

    Parameters
    ----------
    sizes : BfvSizes
        The ring.
    seal : SealFormat
        Encodings of the SEAL that is installed.
    context : tenseal.Context
        With the key; secret.
    key : NDArray[uint64]
        The key's transform in our own order, shape (n,); secret.
    """

    sizes: BfvSizes
    seal: SealFormat = field(repr=False)
    context: Any = field(repr=False)
    key: Words = field(repr=False)

    @classmethod
    def of(cls, sizes: BfvSizes, secret: BfvSecret) -> Blocks:
        """TenSEAL with that key."""
        key = sizes.ring.forward(ternary.lift(secret.coefficients, sizes.q))
        seal = SealFormat(sizes.n, sizes.q, minor_version(), sizes.t)
        # Blocks come one by one, which is what TenSEAL's threads would share: one is enough.
        own = seal.context(key[to_seal_order(sizes.ring)])
        return cls(sizes, seal, _needed("tenseal").context_from(own, 1), key)

    def encrypt(self, slots: NDArray[np.int64], a: Words) -> Words:
        """Encrypt integers under the masks `a`.

        Parameters
        ----------
        slots : NDArray
            Shape (blocks * n,), each within half the plain modulus.
        a : NDArray
            uint64 (blocks, n), uniform below q, never used before.

        Returns
        -------
        NDArray
            q m / t + e - a s, uint64 (blocks, n).
        """
        vector, context = _needed("tenseal")._ts_cpp.BFVVector, self.context.data
        decompress, ring = _needed("zstandard").ZstdDecompressor(), self.sizes.ring
        out = np.empty(a.shape, np.uint64)
        for values, mask, row in zip(slots.reshape(len(a), -1), a, out, strict=True):
            c0, c1 = self.seal.polynomials(vector(context, values.tolist()).serialize(), decompress)
            # (c0, c1) -> (c, a): c = c0 + (c1 - a) s, and so m + e = c + a s as before.
            moved = ring.products(self.key, ring.forward(ring.subtract(c1, mask))[None])
            row[:] = ring.add(c0, moved[0])
        return out

    def decrypt(self, c: Words, a: Words) -> NDArray[np.int64]:
        """What ciphertexts under masks `a` hold: (blocks * n,), within half the plain modulus.

        `c` and `a` are uint64 (blocks, n), below q.
        """
        vector, context = _needed("tenseal")._ts_cpp.BFVVector, self.context.data
        out = np.empty((len(c), self.sizes.n), np.int64)
        for ours, mask, row in zip(c, a, out, strict=True):
            row[:] = vector(context, self.seal.vector(ours, mask, 1.0)).decrypt()
        return out.reshape(-1)
