"""Coefficients: slots below noise, several values in one residue of a large modulus.

    x = p e + m,    m = sum over k < per of (v_k + b) 2^(k width),    p = 2^(per width)

A value v_k in [-b, b] travels as v_k + b, so that sums of slots never borrow. A slot has room for N
values, so m < p also in a sum. floor(x / p) is the sum of the senders' noise, m the sum of their
slots. Only x modulo q is known; it is right as long as x lies within q / 2 of 0:

    q / 2 > p (8 sigma sqrt(N) + 1) + p

and noise beyond 8 sigma sqrt(N), or 40 N, indicates a wrong key. q is odd: with an even one, p e
would vanish modulo a common factor, and ciphertexts would reveal the key.

q is one modulus below 2^64, or a product of several primes below 2^63, whose residues are the
limbs.

Source: ESAFL, Eqs. 3 to 5 and Sec. 5.2.2 (packing); corrections: docs/protocol.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import Elements, quotient
from flhe.math.sampling import BOUND, SIGMA

MAX_BOUND = (1 << 31) - 1

_DEVIATIONS = 8


def opens(q: int, log_p: int, cohort: int) -> bool:
    """Return whether q / 2 > p (8 sigma sqrt(N) + 1) + p for p = 2**log_p and N = cohort."""
    room = Fraction(q, 2) - (2 << log_p)
    spread_of_one = _DEVIATIONS * Fraction(str(SIGMA)) * (1 << log_p)
    return room > 0 and room**2 > spread_of_one**2 * cohort


def slot_width(bound: int, cohort: int) -> int:
    """Return the bits of a slot for sums of `cohort` values from -bound to bound."""
    return (2 * cohort * bound).bit_length()


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Layout of one vector's values, within `bound` below 2**31, and noise, in residues.

    At most `cohort` vectors are added, 2 to 1024; `per` is the number of slots of a coefficient.
    `moduli` are q itself, odd and below 2**64, or its coprime odd factors below 2**63.
    """

    bound: int
    cohort: int
    per: int
    moduli: tuple[int, ...]

    def __post_init__(self) -> None:
        start = f"Coefficients(bound={self.bound}, cohort={self.cohort}, per={self.per}): "
        if not all(q % 2 for q in self.moduli):
            raise ConfigError(
                f"{start}an even modulus shares a factor with p = 2**{self.log_p}: noise would vanish "
                "modulo it and ciphertexts give the key away; take odd moduli"
            )
        if not opens(self.q, self.log_p, self.cohort):
            raise ConfigError(
                f"{start}{self.per} slots of {self.width} bits and the noise of {self.cohort} senders "
                f"do not fit a modulus of {self.q.bit_length()} bits; take fewer slots"
            )

    @property
    def q(self) -> int:
        """The modulus: the product of all moduli."""
        return math.prod(self.moduli)

    @property
    def width(self) -> int:
        """Bits of one slot."""
        return slot_width(self.bound, self.cohort)

    @property
    def log_p(self) -> int:
        """Bits below the noise."""
        return self.per * self.width

    @property
    def dtype(self) -> type[np.int32] | type[np.int64]:
        """Type of a slot's sum."""
        return np.int32 if self.cohort * self.bound <= MAX_BOUND else np.int64

    def noise_bound(self, count: int) -> int:
        """Return the largest noise in a sum of `count`: 8 standard deviations, or its maximum."""
        return _noise_bound(count)

    def count(self, length: int) -> int:
        """Return the coefficients that `length` values take."""
        return -(-length // self.per)

    def lift(self, values: NDArray[Any], noise: NDArray[np.int8], products: Elements) -> None:
        """Add p e + m to `products`, a s, in place: uint64 (limbs, count), contiguous, canonical.

        `values` are signed integers (length,), each within the bound, which callers check. `noise`,
        e, is int8 (count,).

        Raises ConfigError: arrays of other shapes or types.
        """
        from flhe.math import coefficient_kernels

        count = self.count(values.size)
        self._fits(products, count)
        if values.ndim != 1 or values.dtype.kind != "i" or noise.shape != (count,):
            raise ConfigError(
                f"Coefficients: got {values.dtype} {values.shape} and noise {noise.shape}, takes "
                f"signed integers (length,) and {(count,)}"
            )
        held = values if values.dtype in (np.int16, np.int32) else values.astype(np.int64)
        if empty := -values.size % self.per:  # slots of zeros
            held = np.concatenate(
                [held, np.full(empty, -self.bound, np.min_scalar_type(-self.bound))]
            )
        held, noise = np.ascontiguousarray(held), np.ascontiguousarray(noise)
        if len(self.moduli) == 1:
            coefficient_kernels.lift_one(
                held, self._shifts, self.bound, self.log_p, noise, np.uint64(self.q), products[0]
            )
            return
        powers, moduli, _, _ = _constants(self.width, self.per, self.moduli)
        coefficient_kernels.lift(
            held, self.per, self.bound, self.width, noise, powers, moduli, products
        )

    def lower(
        self, residues: Elements, length: int, senders: int, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return sums of values, `dtype` (length,), of `senders` vectors, in `out` if given.

        `residues` are the sum of p e + m: uint64 (limbs, count), contiguous, canonical.

        Raises ProtocolError: a number of senders beyond the cohort; noise or sums beyond the
        senders' bounds; a slot beyond the last value that is not empty; ConfigError: residues of
        another shape or type.
        """
        from flhe.math import coefficient_kernels

        if not 1 <= senders <= self.cohort:
            raise ProtocolError(
                f"a sum of {senders} vectors, slots have room for 1 to {self.cohort}"
            )
        count, most, away = self.count(length), self.noise_bound(senders), senders * self.bound
        self._fits(residues, count)
        out = np.empty(length, self.dtype) if out is None else out
        padded = length < count * self.per
        values = np.empty(count * self.per, self.dtype) if padded else out
        offset, mask = most << self.log_p, np.uint64((1 << self.width) - 1)
        given = away, self.log_p, values
        if len(self.moduli) == 1:
            shift, q = np.uint64(offset % self.q), np.uint64(self.q)
            found = coefficient_kernels.lower_one(residues[0], self._shifts, mask, shift, q, *given)
        else:
            _, moduli, order, garner = _constants(self.width, self.per, self.moduli)
            ascending = moduli[order]
            offsets = np.array([offset % int(q) for q in ascending], np.uint64)
            constants = order, offsets, ascending, garner
            found = coefficient_kernels.lower(
                residues, self.per, *constants, self.width, mask, *given
            )
        beyond, above = found
        if beyond > 2 * most:
            raise ProtocolError(
                f"noise beyond the {most} that {senders} senders explain: the sum was opened with "
                "another key, or altered"
            )
        if above > 2 * away:
            raise ProtocolError(
                f"a slot beyond what {senders} senders can add up to: the sum was altered, or is not "
                "what they encrypted"
            )
        if np.any(values[length:] != -away):
            raise ProtocolError("a slot beyond the last value is not empty: the sum was altered")
        if padded:
            out[:] = values[:length]
        return out

    @property
    def _shifts(self) -> tuple[int, ...]:
        return tuple(range(0, self.log_p, self.width))

    def _fits(self, residues: Elements, count: int) -> None:
        fits = residues.flags.c_contiguous and residues.shape == (len(self.moduli), count)
        if residues.dtype != np.uint64 or not fits:
            raise ConfigError(
                f"Coefficients: got residues {residues.dtype} {residues.shape}, takes uint64 "
                f"{(len(self.moduli), count)}, in one piece"
            )


@functools.cache
def _noise_bound(count: int) -> int:
    squared = Fraction(str(SIGMA)) ** 2 * _DEVIATIONS**2 * count
    above = math.isqrt(math.ceil(squared) - 1) + 1  # the root, rounded up
    return min(BOUND * count, above)


@functools.cache
def _constants(
    width: int, per: int, moduli: tuple[int, ...]
) -> tuple[Elements, Elements, NDArray[np.int64], Elements]:
    """Return constants for kernels on numbers modulo several q_i: powers, moduli, order, garner.

    Residues r_i modulo ascending q_i give the number in mixed radix (Garner, 1959): digits

        y_i = (...((r_i - y_0) / q_0 - y_1) / q_1 ... - y_(i-1)) / q_(i-1)      modulo q_i
        x = y_0 + q_0 (y_1 + q_1 (y_2 + ...))

    with products of a residue and a constant only. `garner`, (limbs, limbs, 2), holds at [i, k] the
    inverse of the k-th of the ascending moduli modulo the i-th. `order`, (limbs,), gives the limb
    of the i-th modulus. `powers`, (limbs, words + 1, 2), are 2**(bits below a word of slots), as
    far as 64 bits have room, and p at last. Each constant comes with its quotient, as
    `prime_kernels.mul` takes it.
    """
    starts = [*(width * k for k in range(0, per, 64 // width)), width * per]
    order = sorted(range(len(moduli)), key=lambda limb: moduli[limb])
    garner = np.zeros((len(moduli), len(moduli), 2), np.uint64)
    for i, limb in enumerate(order):
        for k, lower in enumerate(order[:i]):
            garner[i, k] = _pair(pow(moduli[lower], -1, moduli[limb]), moduli[limb])
    powers = np.array([[_pair(1 << at, q) for at in starts] for q in moduli], np.uint64)
    return powers, np.array(moduli, np.uint64), np.array(order, np.int64), garner


def _pair(w: int, q: int) -> tuple[int, int]:
    return w % q, int(quotient(w % q, q))
