"""Blocks: TenSEAL, one ciphertext of the ring at a time, with masks of our own.

One block at a time, because TenSEAL prints a warning for vectors of several; and its lists of Python
floats then stay small.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.prg import FieldElements, Prg
from flhe.math.ring_arrays import quotient
from flhe.packages import absent
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.sizes import CkksSizes
from flhe.schemes.seal_format import MAGIC, SealFormat, Words
from flhe.wire.secret import Random


def tenseal() -> Any:
    """Return TenSEAL; ConfigError saying how to get it where it is not installed."""
    return _needed("tenseal")


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise absent(name) from None


@functools.cache
def minor_version() -> int:
    """SEAL's minor version in the TenSEAL that is installed; it loads no other."""
    ts = tenseal()
    # Of a small context; its serialization begins with an object of SEAL's.
    made = ts.context(ts.SCHEME_TYPE.CKKS, 2048, coeff_mod_bit_sizes=[27, 27], n_threads=1)
    data = made.serialize(save_public_key=False, save_galois_keys=False, save_relin_keys=False)
    version: int = data[data.index(MAGIC.to_bytes(2, "little")) + 4]
    return version


DITHER_BITS = 32
"""Of one coefficient of dither: its mean is 0 exactly, and its rounding is biased by 2^-32 at most."""


@dataclass(frozen=True, slots=True)
class Dither:
    """Noise of less than a unit, which makes SEAL's rounding of coefficients random.

    SEAL rounds x + d, with d uniform in [-1/2, 1/2), to one of the integers next to x, and to x in the
    mean, whatever x is. d is a polynomial of real slots: coefficient n - i is the negative of
    coefficient i, and coefficient n / 2 is 0. `flhe.schemes.fedml_he.sizes` rests on it.

    Parameters
    ----------
    sizes : CkksSizes
        The ring.
    words : FieldElements
        What d is made of, uniform below 2^32.
    """

    sizes: CkksSizes
    words: FieldElements = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, prg: Prg, random: Random) -> Dither:
        """Dither for one vector, under a fresh key: streams of two vectors never meet."""
        key = random(32)
        if len(key) != 32:
            raise ConfigError(f"the random source gave {len(key)} bytes, 32 were asked for")
        return cls(sizes, FieldElements(prg, key, 1 << DITHER_BITS))

    def blocks(self, first: int, count: int) -> NDArray[np.float64]:
        """Slots of blocks from `first` on: (count * n / 2,), in grid steps."""
        n = self.sizes.n
        half = (self.words.blocks(first, count, n // 2) + 0.5) / (1 << DITHER_BITS) - 0.5
        d = np.zeros((count, n), np.complex128)
        d[:, : n // 2], d[:, n // 2 + 1 :] = half, -half[:, :0:-1]
        twist, order = _odd_roots(n)
        d *= twist
        slots: NDArray[np.float64] = np.fft.fft(d).real[:, order].reshape(-1)
        return slots / self.sizes.scale


@functools.cache
def _odd_roots(n: int) -> tuple[NDArray[np.complex128], NDArray[np.int64]]:
    """What makes an FFT one at odd powers of a 2 n-th root of unity, and where in it slots are.

    Slot j is the value at the 3^j-th power, as SEAL has it.
    """
    powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)], np.int64)
    return np.exp(-1j * np.pi / n * np.arange(n)), (powers - 1) // 2


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Encryption and decryption under one key.

    Parameters
    ----------
    sizes : CkksSizes
        The ring.
    seal : SealFormat
        Encodings of the SEAL that is installed.
    context : tenseal.Context
        With the key; secret.
    key, quotients : NDArray[uint64]
        s as SEAL holds it, shape (n,), and what multiplies by it; secret.
    """

    sizes: CkksSizes
    seal: SealFormat = field(repr=False)
    context: Any = field(repr=False)
    key: Words = field(repr=False)
    quotients: Words = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, key: CkksSecret) -> Blocks:
        """TenSEAL with that key."""
        s = key.transform(sizes)
        # Blocks come one by one, which is what TenSEAL's threads would share: one is enough.
        seal = SealFormat(sizes.n, sizes.q, minor_version())
        context = tenseal().context_from(seal.context(s), 1)
        quotients = np.array([quotient(w, sizes.q) for w in s.tolist()], np.uint64)
        return cls(sizes, seal, context, s, quotients)

    def encrypt(self, slots: NDArray[Any], a: Words) -> Words:
        """Encrypt slots, integers with their dither, under the masks `a`.

        Parameters
        ----------
        slots : NDArray
            Shape (blocks * n / 2,), each within the sizes' largest, but for dither.
        a : NDArray
            uint64 (blocks, n), uniform below q, never used before.

        Returns
        -------
        NDArray
            m + e - a s, uint64 (blocks, n).
        """
        from flhe.schemes.fedml_he import ckks_kernels

        sizes = self.sizes
        # TenSEAL's own Python layer copies the values three times on their way to this class.
        vector, context, scale = tenseal()._ts_cpp.CKKSVector, self.context.data, sizes.scale
        decompress, q = _needed("zstandard").ZstdDecompressor(), np.uint64(sizes.q)
        out = np.empty(a.shape, np.uint64)
        for values, mask, row in zip(slots.reshape(len(a), -1), a, out, strict=True):
            fresh = vector(context, values.astype(np.float64).tolist(), scale).serialize()
            c0, c1 = self.seal.polynomials(fresh, decompress)
            ckks_kernels.remask(c0, c1, mask, self.key, self.quotients, q, row)
        return out

    def decrypt(self, c: Words, a: Words) -> NDArray[np.float64]:
        """What ciphertexts under masks `a` hold, noise and all: (blocks * n / 2,), in grid steps.

        `c` and `a` are uint64 (blocks, n), below q.
        """
        sizes, slots = self.sizes, self.sizes.n // 2
        vector, context = tenseal()._ts_cpp.CKKSVector, self.context.data
        out = np.empty((len(c), slots), np.float64)
        for ours, mask, row in zip(c, a, out, strict=True):
            row[:] = vector(context, self.seal.vector(ours, mask, sizes.scale)).decrypt()
        return out.reshape(-1)
