"""FedmlHeAdder: values as reals in the slots of CKKS, encrypted by TenSEAL under a shared key.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

How vectors are cut, sent and opened is in `flhe.schemes.seal_adder`. Members share s: with the server,
any one of them reads single updates.

Values are integers on the codec's grid. The noise of a sum stays below a quarter of a step
(`flhe.schemes.fedml_he.sizes` proves it for the cohort), so rounding gives the sum exactly, on every
machine, and takes off the noise: nothing of what is opened depends on s or on an error, which is how
decrypted CKKS values otherwise give the key away (Li and Micciancio, EUROCRYPT 2021). A slot that lies
off the grid says that a sum is not its senders'.

Source: FedML-HE, Algorithm 1 and Sec. 2.3, without selection, which is the codec's; CKKS
(ASIACRYPT 2017); docs/protocol.md.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import FieldElements, drawn
from flhe.schemes.fedml_he.sizes import CkksSizes
from flhe.schemes.seal_adder import SealAdder, SealOpener, SealSealer
from flhe.wire.secret import Random

DITHER_BITS = 32
"""Of one coefficient of dither: its mean is 0 exactly, and its rounding is biased by 2^-32 at most."""


@dataclass(frozen=True, slots=True)
class Dither:
    """Noise of less than a unit, which makes SEAL's rounding of coefficients random.

    SEAL rounds x + d, with d uniform in [-1/2, 1/2), to one of the integers next to x, and to x in the
    mean, whatever x is. d is a polynomial of real slots: coefficient n - i is the negative of
    coefficient i, and coefficient n / 2 is 0. `flhe.schemes.fedml_he.sizes` rests on it. d is made of
    `words`, uniform below 2^32.
    """

    sizes: CkksSizes
    words: FieldElements = field(repr=False)

    @classmethod
    def of(cls, sizes: CkksSizes, random: Random) -> Dither:
        """Dither for one vector, under a fresh key: streams of two vectors never meet."""
        return cls(sizes, FieldElements(drawn(random, 32), 1 << DITHER_BITS))

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


@dataclass(slots=True)
class FedmlHeSealer(SealSealer):
    """One client's side; parameters as for `SealSealer`, and `random`: dither is drawn from it."""

    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """With dither, which makes roundings random."""
        sizes = self.adder.sizes
        dither = Dither.of(sizes, self.random)
        return lambda values, first: (
            sizes.digits.join(values) + dither.blocks(first, values.size // sizes.block)
        )


class FedmlHeOpener(SealOpener):
    """A reader's side; parameters as for `SealOpener`."""

    __slots__ = ()

    def _slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """To the nearest integer, where the noise of so many explains the rest."""
        nearest = np.rint(opened)
        residual = np.abs(np.subtract(opened, nearest, out=opened)).max()
        return nearest.astype(np.int64), bool(residual <= self.adder.sizes.residual(senders))


@dataclass(frozen=True, slots=True)
class FedmlHeAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "ckks-a"
    SIZES, SEALER, OPENER = CkksSizes, FedmlHeSealer, FedmlHeOpener
