"""Signed, symmetric, uniform quantization: floats to integers that add.

A value x in [-1, 1] becomes an integer next to x * levels, with levels = 2**(bits - 1) - 1. Zero
maps to zero and opposite values cancel, so a sum dequantizes without the number of its terms.

Each of the extras becomes digits in base 2**(bits - 1), all with the integer's sign. So a digit is
never larger than a value, and digit sums recompose exactly.

Source: BatchCrypt, Sec. 4.2, which counts `bits` without the sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Integers, Plain, Reals, Space, State
from flhe.coding.flatten import Layout
from flhe.errors import ConfigError, MisfitError, ProtocolError, RangeError, SumRangeError
from flhe.math.prg import PIECE, Rounding, SecureRounding

EXTRA_BITS = 63
"""Magnitude bits that one extra has room for."""


class NearestRounding(Rounding):
    """Rounding values that make `floor(x + u)` round to nearest: deterministic, for vectors."""

    def next(self, count: int) -> NDArray[np.uint16]:
        """Return one half, `count` times: floor(x + 1/2) rounds to nearest, ties up."""
        return np.full(count, 1 << 15, np.uint16)


@dataclass(frozen=True, slots=True)
class Quantize(Codec):
    """Quantize to `bits` bits, sign included, 2 to 32; 0 until the cohort sets them (`settled`).

    Stochastic rounding is unbiased to 2**-17 of a step; nearest is deterministic. `random` makes
    one source of uniform 16-bit integers per encoding; a CSPRNG by default.
    """

    name: ClassVar[str] = "quantize"

    bits: int
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    random: Callable[[], Rounding] = field(default=SecureRounding, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.bits) is not int or (self.bits != 0 and not 2 <= self.bits <= 32):
            raise ConfigError(f"Quantize(bits={self.bits!r}): bits must be 2 to 32, an int")
        if self.rounding not in ("stochastic", "nearest"):
            raise ConfigError(f"Quantize(rounding={self.rounding!r}): 'stochastic' or 'nearest'")

    @property
    def levels(self) -> int:
        """Largest integer a single value can become."""
        return (1 << max(self.bits, 1) - 1) - 1

    @property
    def value_bits(self) -> int:
        """Bits of one value."""
        return self.bits

    def summary(self) -> str:
        """Return the bits as text."""
        return f"{self.bits} bits" if self.bits else "as many bits as fit"

    def settled(self, bits: int) -> Quantize:
        """Return the step with `bits` bits."""
        return replace(self, bits=bits)

    @property
    def step(self) -> float:
        """Width of one quantization step, in units of the input."""
        return 1.0 / self.levels

    @property
    def dtype(self) -> type[np.int16] | type[np.int32]:
        """Narrowest type that holds a value: vectors of 16-bit values are half as large."""
        return np.int16 if self.bits <= 16 else np.int32

    @property
    def limbs(self) -> int:
        """Digits of one extra."""
        return -(-EXTRA_BITS // (self.bits - 1))

    def parameters(self) -> dict[str, Any]:
        """Return the bits; rounding is each client's own choice."""
        return {"name": self.name, "bits": self.bits}

    def out(self, space: Space) -> Integers:
        """Return integers of `bits` bits; refuse inputs that may exceed 1."""
        if not isinstance(space, Reals):
            raise MisfitError(f"Quantize takes reals, got {space}; quantize only once")
        if space.bound > 1:
            raise MisfitError(f"Quantize needs inputs within 1, got {space}; put Clip() before it")
        return Integers(self.levels)

    def lanes(self, extras: int, layout: Layout) -> int:
        """Return LIMBS lanes for each extra."""
        return extras * self.limbs

    @property
    def offset(self) -> float:
        """Term added to each draw: the middle of its cell, so that the mean of u is one half."""
        return 0.5 / 65536 if self.rounding == "stochastic" else 0.0

    def source(self) -> Rounding:
        """Return a source of rounding values for one vector."""
        return NearestRounding() if self.rounding == "nearest" else self.random()

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 within [-1, 1] to `dtype`, shape (length,); extras become limbs.

        Raises RangeError: NaN, infinity or a value beyond 1: coercing them would silently send a
        wrong update.
        """
        x = plain.values
        scaled = x.astype(np.float64) * self.levels
        if not np.all(np.abs(scaled) <= self.levels + 0.5):
            raise RangeError("Quantize got a value beyond 1, or NaN; clip before quantizing")
        source = self.source()
        sizes = (min(PIECE, x.size - at) for at in range(0, x.size, PIECE))
        draws = [source.next(size).copy() for size in sizes] or [np.empty(0, np.uint16)]
        u = np.concatenate(draws) / 65536.0 + self.offset
        values = np.clip(np.floor(scaled + u), -self.levels, self.levels).astype(self.dtype)
        return plain._replace(values=values, extras=self.split(plain.extras)), state

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode a sum of integers to float64; limbs become extras again.

        Raises ProtocolError: an integer that `senders` cannot reach.
        """
        largest = max(
            (max(int(p.max()), -int(p.min())) for p in (total.values, total.extras) if p.size),
            default=0,
        )
        self.check_sum(largest, len(senders))
        values = total.values.astype(np.float64) * self.step
        return total._replace(values=values, extras=self.join(total.extras)), state

    def check_sum(self, largest: int, count: int) -> None:
        """Refuse a sum whose largest absolute integer `count` senders cannot reach."""
        if largest > count * self.levels:
            raise ProtocolError(
                f"the opened sum holds values that {count} senders cannot reach: it was opened with "
                "the wrong senders or key, or it was altered; the round is refused"
            )

    def split(self, extras: NDArray[np.int64]) -> NDArray[Any]:
        """Return digits of each extra, least significant first, shape (extras.size * limbs,)."""
        digits = np.abs(extras)[:, None] >> (self.bits - 1) * np.arange(self.limbs) & self.levels
        return np.asarray((digits * np.sign(extras)[:, None]).reshape(-1), self.dtype)

    def join(self, limbs: NDArray[Any]) -> NDArray[np.int64]:
        """Return extras from summed digits, in Python integers until they are known to fit.

        Raises SumRangeError: a sum beyond 63 bits, which honest senders of an update never reach.
        """
        weights = np.array([1 << (self.bits - 1) * k for k in range(self.limbs)], object)
        sums = limbs.reshape(-1, self.limbs).astype(object) @ weights
        if any(abs(s) >= 1 << EXTRA_BITS for s in sums):
            raise SumRangeError("the opened sum holds an integer beyond 63 bits: it is refused")
        return np.asarray(sums, np.int64)
