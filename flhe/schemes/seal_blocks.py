"""SealBlocks: TenSEAL, one ciphertext of the ring at a time, with our own masks.

    (c0, c1) -> (c, a)    c = c0 + (c1 - a) s

is the ciphertext that TenSEAL would have made with a in place of c1: both decrypt to c0 + c1 s.
TenSEAL prints a warning for vectors of several blocks, so blocks are encrypted one at a time; this
also keeps its lists of Python's numbers small.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flhe.math.ring import Elements, PrimeRing, lifted, quotients
from flhe.packages import absent
from flhe.schemes.seal_format import MAGIC, SealFormat, to_seal_order
from flhe.schemes.seal_keys import SealSecret
from flhe.schemes.seal_sizes import SealSizes


def tenseal(name: str = "tenseal") -> Any:
    """Return TenSEAL or a package that it needs; ConfigError with the install command if missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise absent(name) from None


@functools.cache
def minor_version() -> int:
    """Return SEAL's minor version in the installed TenSEAL, which loads no other."""
    ts = tenseal()
    # Serialize a small context: its bytes begin with an object of SEAL's.
    made = ts.context(ts.SCHEME_TYPE.CKKS, 2048, coeff_mod_bit_sizes=[27, 27], n_threads=1)
    data = made.serialize(save_public_key=False, save_galois_keys=False, save_relin_keys=False)
    return int(data[data.index(MAGIC.to_bytes(2, "little")) + 4])


@dataclass(frozen=True, slots=True, eq=False)
class SealBlocks:
    """Encryption and decryption under one key: TenSEAL's context with it, and encodings.

    `key` and `parts` are the transform of s, and its quotients; in CKKS in SEAL's order. Slots are
    multiplied by `scale`.
    """

    seal: SealFormat
    context: Any = field(repr=False)
    ring: PrimeRing
    key: Elements = field(repr=False)
    parts: Elements = field(repr=False)
    scale: float

    @classmethod
    def of(cls, sizes: SealSizes, secret: SealSecret) -> Self:
        """Return TenSEAL with that key."""
        ring, seal = sizes.ring, replace(sizes.seal, minor=minor_version())
        key = ring.forward(lifted(secret.coefficients, sizes.q))
        ordered = key[to_seal_order(ring)]
        # TenSEAL's threads would share blocks, which come one by one: one thread is enough.
        context = tenseal().context_from(seal.context(ordered), 1)
        used = key if seal.plain else ordered
        return cls(seal, context, ring, used, quotients(used, np.uint64(ring.q)), sizes.scale)

    def encrypt(self, slots: NDArray[Any], a: Elements) -> Elements:
        """Encrypt slots (blocks * slots of one,) under masks `a`; returns c, uint64 (blocks, n).

        Slots lie within the bounds of the sizes. `a` is uint64 (blocks, n), uniform below q, and
        never used before.
        """
        # TenSEAL's own Python layer copies the values three times on their way to this class.
        vector, dtype = self._vector
        scale = () if self.seal.plain else (self.scale,)
        decompress = tenseal("zstandard").ZstdDecompressor()
        out = np.empty(a.shape, np.uint64)
        for values, mask, row in zip(slots.reshape(len(a), -1), a, out, strict=True):
            listed = values.astype(dtype, copy=False).tolist()
            fresh = vector(self.context.data, listed, *scale).serialize()
            c0, c1 = self.seal.polynomials(fresh, decompress)
            row[:] = self.ring.add(c0, self._times_key(self.ring.subtract(c1, mask)))
        return out

    def _times_key(self, x: Elements) -> Elements:
        """Multiply by the key; polynomials are coefficients in BFV, and transforms in CKKS."""
        if self.seal.plain:
            product: Elements = self.ring.products(self.key, self.ring.forward(x)[None])[0]
            return product
        from flhe.math import prime_kernels

        prime_kernels.times(x, self.key, self.parts, np.uint64(self.ring.q), x)
        return x

    def decrypt(self, c: Elements, a: Elements) -> NDArray[Any]:
        """Decrypt ciphertexts of `encrypt`, noise included: (blocks * slots of one,)."""
        vector, dtype = self._vector
        out = np.empty((len(c), self.seal.slots), dtype)
        for ours, mask, row in zip(c, a, out, strict=True):
            row[:] = vector(self.context.data, self.seal.vector(ours, mask, self.scale)).decrypt()
        return out.reshape(-1)

    @property
    def _vector(self) -> tuple[Any, Any]:
        """TenSEAL's own class of vectors, and the type of their slots."""
        classes = tenseal()._ts_cpp
        return (
            (classes.BFVVector, np.int64) if self.seal.plain else (classes.CKKSVector, np.float64)
        )
