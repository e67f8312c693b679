"""DiscreteGaussian: integers with noise, so that every opened sum is differentially private.

    integer_i = round(x_i / g) + N_Z(0, v),        v = ceil((z D)^2 / k)

g is the grid, a power of two in the update's own units. D is the sensitivity in steps of the grid: the
most that one unit of privacy changes the sum of integers in L2. z is the noise multiplier, and k how
many honest members add noise to any sum that is opened. So k of them together give a standard deviation
of z D. Members that drop out never lower it, and all others add to it.

The unit of privacy is a member's update, beside one of zeros, or a record, beside none:

    member   `ClipNorm(l2)` bounds an update of d values. Rounding is stochastic, and drawn again until
             the norm of the integers is at most
             D = min(c + sqrt(d), sqrt(c^2 + d / 4 + c + sqrt(d) / 2)),   c = l2 / g.
             The first try does with a probability of 0.39 or more.
    record   The app adds up gradients of single records, each clipped to l2. With one record more or
             less two such sums differ by c in L2. Their integers, rounded to nearest, differ by at most
             D = c + sqrt(d).

No integer wraps: bits leave room for the largest value and 12 standard deviations of all the noise.

Source: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism", ICML 2021 (arXiv
2102.06387), Proposition 22 with beta = exp(-1/2), and Theorem 1; proof: docs/privacy_proof.md.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.coding.aciq import MAX_ALPHA, MIN_ALPHA
from flhe.coding.base import WEIGHT, Codec, Integers, Mechanism, Plain, Reals, Space, State
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError
from flhe.math import discrete_gaussian
from flhe.math.prg import PIECE

if TYPE_CHECKING:
    from flhe.wire.secret import Random

logger = logging.getLogger("flhe")

Unit = Literal["member", "record"]

TAIL = 12
"""Standard deviations that integers have room for: 2**-103 of the noise lies beyond."""

MAX_INFLATION = 1.25
"""Most that rounding may add to the sensitivity, as a factor."""

LEAST = 4
"""Least standard deviation of one member's noise, in steps: sums of discrete Gaussians are then within
exp(1e-64) of one, a value each (`flhe.training.accountant`)."""

MOST_MEMBERS = 1024
_TRIES = 256
"""Roundings after which none is within the bound: with probability 2**-180."""


class Grid(NamedTuple):
    """How an update becomes integers: g, and in steps of it D and the largest value."""

    step: float
    sensitivity: float
    reach: float


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(Codec):
    """Round to integers and add noise; decode to the sum, divided.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    l2 : float
        Largest L2 norm of what one unit of privacy contributes, in the update's own units: the clipping
        threshold of a member's update, or of a record's gradient.
    multiplier : float
        z: standard deviation of the noise in a sum over its sensitivity, 0.01 to 1000.
    unit : "member" or "record"
        What is hidden: what a member's update holds, or whether a record is in the data.
    sampling : float
        Probability with which each record is in a batch (`flhe.dpsgd.poisson_batch`), above 0, 1 at
        most. Members are not sampled: who is asked is the server's choice, which nobody trusts.
    divisor : float
        What opened sums are divided by: of records, the expected size of all members' batches together,
        which no round changes. 0, for members alone, is the number of senders.
    largest : float
        Largest absolute value of a member's vector, in the update's own units; what lies beyond is cut.
        0 is l2 for members, l2 * divisor for records: then none does.
    bits : int
        Bits of one integer, sign included, 8 to 32; 0 until the cohort says how many.
    """

    name: ClassVar[str] = "discrete-gaussian"
    place: ClassVar[Literal["first", "last", ""]] = "last"

    l2: float
    multiplier: float
    unit: Unit = "member"
    sampling: float = 1.0
    divisor: float = 0.0
    largest: float = 0.0
    bits: int = 24
    random: Random = field(default=secrets.token_bytes, repr=False, compare=False)
    honest: int = field(default=1, kw_only=True, compare=False)
    """k, which a member fills in."""

    def __post_init__(self) -> None:
        Quantize(self.bits)
        checks = {
            f"bits={self.bits}: 8 to 32, or 0": self.bits == 0 or self.bits >= 8,
            f"unit={self.unit!r}: 'member' or 'record'": self.unit in ("member", "record"),
            f"l2={self.l2}: {MIN_ALPHA} to {MAX_ALPHA}": MIN_ALPHA <= self.l2 <= MAX_ALPHA,
            f"multiplier={self.multiplier}: 0.01 to 1000": 0.01 <= self.multiplier <= 1000,
            f"sampling={self.sampling}: above 0, 1 at most": 0 < self.sampling <= 1,
            f"divisor={self.divisor}: 1e-9 to 1e15, for records": (
                self.divisor == 0 and self.of_members
            )
            or 1e-9 <= self.divisor <= 1e15,
            f"largest={self.largest}: 0 or more": 0 <= self.largest <= MAX_ALPHA,
        }
        for what, holds in checks.items():
            if not holds:
                raise ConfigError(f"DiscreteGaussian: {what}")
        if self.of_members and self.sampling != 1:
            raise ConfigError(
                f"DiscreteGaussian(sampling={self.sampling}): who takes part in a round is the "
                "server's choice, so members are not sampled for privacy; use sampling=1, or "
                "unit='record'"
            )

    @property
    def of_members(self) -> bool:
        """Whether members are what is hidden."""
        return self.unit == "member"

    # --- what it declares ---

    @property
    def value_bits(self) -> int:
        """Its bits."""
        return self.bits

    @property
    def whole_weight(self) -> int:
        """1: an example count in a sum would need noise of its own."""
        return 1

    @property
    def mechanism(self) -> Mechanism:
        """Its multiplier, how records are sampled, and what is hidden."""
        return Mechanism(self.multiplier, self.sampling, self.of_members)

    @property
    def promised(self) -> Mapping[str, float]:
        """For records, its clipping threshold and sampling rate: the app keeps to both, or neither."""
        return {} if self.of_members else {"max-norm": self.l2, "sampling": self.sampling}

    @property
    def of_gradients(self) -> bool:
        """For records: several steps of training would let one change an update by more."""
        return not self.of_members

    def summary(self) -> str:
        """Its noise."""
        of = f"a {self.unit} of norm {self.l2:g}, sampling rate {self.sampling:g}"
        return f"noise of {self.multiplier:g} times what changes for {of}; {self.bits} bits"

    def settled(self, bits: int) -> DiscreteGaussian:
        """With so many bits."""
        return replace(self, bits=bits)

    def counting_on(self, honest: int) -> DiscreteGaussian:
        """With noise of which `honest` members together are enough."""
        return replace(self, honest=honest)

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> DiscreteGaussian:
        """The same; MisfitError where what comes before it is not what its sensitivity is of."""
        if self.of_members and [codec.norm_bound <= self.l2 for codec in before] != [True]:
            raise MisfitError(
                f"DiscreteGaussian(l2={self.l2:g}) hides a member whose update has that norm at most: "
                f"put ClipNorm({self.l2:g}) before it, and nothing else"
            )
        if before and not self.of_members:
            raise MisfitError(
                "DiscreteGaussian of records stands alone: a step before it would change by how much "
                "a record's gradient changes the sum"
            )
        return self

    def parameters(self) -> dict[str, Any]:
        """All but the source of noise and the members that are counted on; numbers as exact text."""
        numbers = ("l2", "multiplier", "sampling", "divisor", "largest")
        exact = {name: float(getattr(self, name)).hex() for name in numbers}
        return {"name": self.name, "unit": self.unit, "bits": self.bits, **exact}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> DiscreteGaussian:
        """Inverse of `parameters`, without the name."""
        kept = ("unit", "bits")
        numbers = ("l2", "multiplier", "sampling", "divisor", "largest")
        if set(stored) != {*kept, *numbers}:
            raise ConfigError("DiscreteGaussian: other parameters than it has")
        given: dict[str, Any] = {
            name: value if name in kept else float.fromhex(value) for name, value in stored.items()
        }
        return cls(**given)

    def out(self, space: Space) -> Integers:
        """Integers of `bits` bits."""
        if not isinstance(space, Reals):
            raise MisfitError(f"DiscreteGaussian takes reals, got {space}; it rounds by itself")
        return Integers(Quantize(self.bits).levels)

    def lanes(self, extras: int, layout: Layout) -> int:
        """Each extra takes limbs, as of `Quantize`."""
        return Quantize(self.bits).lanes(extras, layout)

    # --- the grid ---

    def init(self, layout: Layout) -> State:
        """The grid of this model.

        Raises ConfigError: integer buffers, which would be added up without noise; MisfitError: too
        few bits for this model.
        """
        if layout.integers:
            raise ConfigError(
                "differential privacy, and the model has integer buffers (as batch norm's counts), "
                "which are added up exactly: use a model without them, as one with group norm"
            )
        return State(self.grid(layout.floats))

    def grid(self, length: int) -> Grid:
        """The finest grid on which `length` values and their noise have room; MisfitError for none."""
        reach = self.largest or self.l2 * (1.0 if self.of_members else self.divisor)
        levels = Quantize(self.bits).levels
        step = math.ldexp(1.0, math.frexp(reach / levels)[1] - 1)
        while True:
            norm = self.l2 / step
            sensitivity = self._sensitivity(norm, length)
            if sensitivity > MAX_INFLATION * norm:
                raise MisfitError(
                    f"DiscreteGaussian(bits={self.bits}): on so coarse a grid, rounding {length} "
                    f"values adds much to what a {self.unit} changes; use more bits"
                    + ("" if self.of_members else ", or a smaller `largest`")
                )
            if reach / step + TAIL * self.multiplier * sensitivity + 2 <= levels:
                break
            step *= 2
        grid = Grid(step, sensitivity, reach / step)
        if not self._variance(grid, MOST_MEMBERS) >= LEAST**2:
            raise MisfitError(
                f"DiscreteGaussian(multiplier={self.multiplier:g}, bits={self.bits}): one member's "
                "noise would be a few steps of the grid, too coarse to be accounted for; use more bits"
            )
        if self._variance(grid, 1) > discrete_gaussian.MAX_VARIANCE:
            raise MisfitError(f"DiscreteGaussian(bits={self.bits}): use fewer bits")
        return grid

    def _sensitivity(self, norm: float, length: int) -> float:
        """D of vectors of that norm, in steps."""
        root = math.sqrt(length)
        if not self.of_members:
            return norm + root
        return min(norm + root, math.sqrt(norm * norm + length / 4 + norm + root / 2))

    def _variance(self, grid: Grid, honest: int) -> int:
        return math.ceil((self.multiplier * grid.sensitivity) ** 2 / honest)

    # --- encoding and decoding ---

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """float32 in, integers with noise out, shape (length,); extras become limbs.

        Nothing is refused, for a refusal would tell of the data: a vector that is not finite, or a
        member's beyond its norm, is sent as zeros, with noise.
        """
        grid: Grid = state.shared
        quantize = Quantize(self.bits)
        values = self._rounded(plain.values, grid)
        values += discrete_gaussian.draw(
            values.size, self._variance(grid, self.honest), self.random
        )
        np.clip(values, -quantize.levels, quantize.levels, out=values)
        extras = plain.extras.copy()
        extras[WEIGHT] = 1  # an app that had no example in its batch says nothing of it
        return plain._replace(
            values=values.astype(quantize.dtype, copy=False), extras=quantize.split(extras)
        ), state

    def _rounded(self, x: NDArray[np.float32], grid: Grid) -> NDArray[np.int32]:
        """Integers next to x / g, int32 (length,)."""
        out = np.zeros(x.size, np.int32)
        for _ in range(_TRIES if np.all(np.isfinite(x)) else 0):
            source, square = Quantize(self.bits).source(), 0.0
            for at in range(0, x.size, PIECE):
                part = x[at : at + PIECE] / np.float64(grid.step)  # exact: a power of two
                np.clip(part, -grid.reach, grid.reach, out=part)
                if self.of_members:
                    part += source.next(part.size) / 65536.0
                    np.floor(part, out=part)
                else:
                    np.rint(part, out=part)
                square += float(np.dot(part, part))
                out[at : at + PIECE] = part
            # A float64 sum of 2**32 squares, a PIECE at a time, is off by less than 1e-10 of itself.
            if not self.of_members or square <= grid.sensitivity**2 * (1 - 1e-9):
                return out
        logger.warning("the update is not finite, or beyond its norm: zeros are sent in its place")
        return np.zeros_like(out)

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Sum of integers in, the sum or mean out, float32 (length,).

        Raises ProtocolError: an integer that `senders` could not have added up to.
        """
        quantize, grid = Quantize(self.bits), state.shared
        opened, _ = quantize.decode(total, senders, State())
        mean = Weigh(1).mean_factor(opened, senders)
        factor = grid.step * quantize.levels * (1 / self.divisor if self.divisor else mean)
        return opened._replace(values=np.asarray(opened.values * factor, np.float32)), state
