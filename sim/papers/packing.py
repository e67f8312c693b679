"""EP.EcdPack and EP.DcdUnpk: reals in the coefficients of packed polynomials, as ESAFL's paper has it.

    z_i(X) = [round(Delta phi^-1(z_i))]_q0              z_i: n/2 complex numbers              (Eq. 7)
    beta_j = 0_pad a_1,j | ... | 0_pad a_(T-1),j | 0_pad 0      in binary                  (Eq. 8, 9)
    pad >= ceil(log2 N) + 1,    T <= floor(log2 p / (log2 q0 + pad))

phi is CKKS's canonical embedding: the values of a polynomial at the roots zeta^(5^j) of x^n + 1.
Sums of packed polynomials are the packed sums, so long as N digits of log2 q0 bits do not leave their
log2 q0 + pad. Every coefficient is rounded, and a decoded value is made of all n of them: its real and
its imaginary part are off by sqrt(n / 24) units, or sqrt(n / 12) where all numbers are real, whose
polynomials are antisymmetric, roundings too. Rounding values one by one costs sqrt(1 / 12). For
additions alone the embedding gives nothing in return: `flhe.coding.coefficients` has none.

What is built here where the text leaves it open or gets it wrong (docs/corrections.md, esafl-scale,
-signs, -shift and -counts):

- *Scale.* Delta is as large as Z_q0 has room for, see `scale`: coefficients are averages of numbers.
- *Signs.* q0 / 2 is added to each coefficient, and N times as much taken off a sum. `offset=False`
  takes [.]_q0 in [0, q0) at its word: sums are known modulo q0, so Delta leaves room for N summands.
- *Fields.* a_i is found at a shift of T - i fields, which is where Eq. 9 puts it.
- *Numbers.* A polynomial has n, two in a complex number; with `halves=False` n/2, as Table 3 counts.
- *Zeros.* The last of T polynomials is zero; `zero=False` fills it, which Table 3's LSTM needs.

Arithmetic is complex128, by NumPy's FFT. Its relative error, about 2^-51, is a coefficient's rounding
only where q0 comes near 2^50: at 16 and 32 bits it adds nothing that can be seen.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 4.5 and 5.2.2; embedding: Cheon, Kim, Kim, Song, ASIACRYPT 2017.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe_lab.papers.esafl import Poly
from flhe_lab.papers.published import rows

Reals = NDArray[np.float64]

COHORT, LOG_P = 9, 460
"""N, and bits of a plaintext coefficient."""

ERRORS = (1e-2, 1e-9)
"""Table 4, of all three models: without packing, with it; magnitudes, at 32 bits."""


TABLE_3 = rows("esafl", "table_3")
"""Ciphertexts and MB of an iteration are pairs: without packing, with it."""


@dataclass(frozen=True, slots=True)
class PaperPacking:
    """The paper's encoding for sums of up to `cohort` vectors."""

    cohort: int  # N
    log_q0: int = 16  # Bits of an encoded coefficient, the paper's precision
    n: int = 1 << 15  # Dimension, a power of two
    packed: bool = True  # Whether a plaintext holds all polynomials that there is room for, or one
    halves: bool = True  # Whether both halves of a complex number carry a value
    zero: bool = True  # Whether the last of several fields is left empty
    offset: bool = True  # Whether coefficients are made positive by q0 / 2, or reduced modulo q0

    @property
    def fields(self) -> int:
        """T."""
        return LOG_P // self.width if self.packed else 1

    @property
    def width(self) -> int:
        """Bits of a field: log2 q0, and zeros above, ceil(log2 N) + 1 of them."""
        return (self.cohort - 1).bit_length() + 1 + self.log_q0

    @property
    def carrying(self) -> int:
        """Fields that carry values: T - 1, or all of them."""
        return self.fields - (self.zero and self.fields > 1)

    @property
    def values(self) -> int:
        """Values of one polynomial before packing: n or n/2."""
        return self.n if self.halves else self.n // 2

    @property
    def capacity(self) -> int:
        """Values of one plaintext."""
        return self.carrying * self.values

    @property
    def scale(self) -> float:
        """Delta: coefficients of numbers within [-1, 1], rounded, stay below q0 / 2 in magnitude.

        Where they are reduced modulo q0, the sum of N does.
        """
        largest = 2**0.5 if self.halves else 1.0
        room = (1 << (self.log_q0 - 1)) / (1 if self.offset else self.cohort)
        return (room - 1) / largest

    def plaintexts(self, length: int) -> int:
        """Plaintexts that `length` values take."""
        return -(-length // self.capacity)

    # --- EP.EcdPack ---

    def pack(self, values: Reals) -> list[Poly]:
        """Plaintexts m(X), coefficients below 2^log_p, of `values` within [-1, 1], shape (length,)."""
        whole = np.zeros(self.plaintexts(values.size) * self.capacity)
        whole[: values.size] = values
        shift, out = 1 << (self.log_q0 - 1) if self.offset else 0, []
        for block in whole.reshape(-1, self.carrying, self.values):
            packed = np.zeros(self.n, object)
            for row in block:
                digits = self.encode(row) + shift & (1 << self.log_q0) - 1
                packed = packed * (1 << self.width) + digits
            out.append((packed * (1 << self.width * (self.fields - self.carrying))).tolist())
        return out

    def encode(self, values: Reals) -> NDArray[np.int64]:
        """z(X) before it is reduced modulo q0: signed coefficients, shape (n,), of one polynomial."""
        z = values[::2] + 1j * values[1::2] if self.halves else values.astype(np.complex128)
        spectrum = np.empty(self.n, np.complex128)
        spectrum[_slots(self.n)] = z
        spectrum[self.n - 1 - _slots(self.n)] = np.conj(z)
        turned = np.fft.fft(spectrum) / self.n * self._roots().conj()
        return np.rint(self.scale * turned.real).astype(np.int64)

    # --- EP.DcdUnpk ---

    def unpack(self, plaintexts: Sequence[Poly], length: int, senders: int) -> Reals:
        """Values of the sum of `senders` packed vectors, shape (length,)."""
        q0, half, mask = 1 << self.log_q0, 1 << (self.log_q0 - 1), (1 << self.width) - 1
        out = []
        for plaintext in plaintexts:
            beta = np.array(plaintext, object)
            for i in range(1, self.carrying + 1):
                found = ((beta >> self.width * (self.fields - i)) & mask).astype(np.int64)
                signed = found - senders * half if self.offset else (found + half) % q0 - half
                out.append(self.decode(signed))
        return np.concatenate(out)[:length] if out else np.empty(0)

    def decode(self, coefficients: NDArray[np.int64]) -> Reals:
        """Values of one polynomial with signed coefficients: n, or n/2, of them."""
        spectrum = np.fft.ifft(coefficients * self._roots()) * (self.n / self.scale)
        z = spectrum[_slots(self.n)]
        parts = [z.real, z.imag] if self.halves else [z.real]
        return np.column_stack(parts).ravel()

    def _roots(self) -> NDArray[np.complex128]:
        """zeta^j for j = 0 to n - 1, zeta = exp(i pi / n)."""
        roots: NDArray[np.complex128] = np.exp(1j * np.pi / self.n * np.arange(self.n))
        return roots


@functools.cache
def _slots(n: int) -> NDArray[np.int64]:
    """zeta^(5^j) is value (5^j - 1) / 2 of the transform; its conjugate is another half's."""
    return np.array([(pow(5, j, 2 * n) - 1) // 2 for j in range(n // 2)], np.int64)


def vectors(count: int) -> Iterator[Reals]:
    """Everybody's values, uniform in [0, 1], always the same."""
    for j in range(COHORT):
        yield np.random.default_rng(j).random(count)  # test data; keys never come from here


def added(plaintexts: Iterable[Sequence[Poly]], log_p: int) -> list[Poly]:
    """EP.Eval: sums of packed vectors, plaintext by plaintext (Eq. 12)."""
    mask = (1 << log_p) - 1
    return [
        [sum(column) & mask for column in zip(*parts, strict=True)]
        for parts in zip(*plaintexts, strict=True)
    ]
