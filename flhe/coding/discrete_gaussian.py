"""DiscreteGaussian: integers with noise, so that every opened sum is differentially private.

    integer_i = round(x_i / g) + N_Z(0, v),        v = ceil((z D)^2 / k)

g is the grid, a power of two in the update's own units. D is the sensitivity in steps of the grid:
the most that one unit of privacy changes the sum of integers in L2. z is the noise multiplier, and
k the number of honest members that add noise to any opened sum. So k of them together give a
standard deviation of z D. Members that drop out never lower it, and all others add to it.

The unit of privacy is a member's update, compared with zeros, or a record, compared with none:

    member   `ClipNorm(l2)` bounds an update of d values. Rounding is stochastic, and drawn again until
             the norm of the integers is at most
             D = min(c + sqrt(d), sqrt(c^2 + d / 4 + c + sqrt(d) / 2)),   c = l2 / g.
             The first try succeeds with a probability of 0.39 or more.
    record   The app adds up gradients of single records, each clipped to l2. With one record more or
             less two such sums differ by c in L2. Their integers, rounded to nearest, differ by at most
             D = c + sqrt(d).

No integer wraps: bits leave room for the largest value and 12 standard deviations of all the noise.

Source: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism", ICML 2021 (arXiv
2102.06387), Proposition 22 with beta = exp(-1/2), and Theorem 1; proof: docs/privacy_proof.md.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.coding.aciq import MAX_ALPHA, MIN_ALPHA
from flhe.coding.base import WEIGHT, Codec, Integers, Mechanism, Plain, Reals, Space, State
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, logger
from flhe.math import discrete_gaussian
from flhe.math.prg import PIECE
from flhe.wire.secret import Random

Unit = Literal["member", "record"]

TAIL = 12
"""Standard deviations that integers have room for: 2**-103 of the noise lies beyond."""

MAX_INFLATION = 1.25
"""Maximum factor by which rounding may increase the sensitivity."""

LEAST = 4
"""Minimum standard deviation of one member's noise, in steps: sums of discrete Gaussians are then
within exp(1e-64) of one, a value each (`flhe.training.accountant`)."""

LEAST_BITS, MOST_BITS = 12, 32
"""Bits of one integer. With fewer, 12 standard deviations of noise that `MOST_MEMBERS` share, `LEAST`
each, have no room."""

MOST_MEMBERS = 1024
MOST_VALUES = 1 << 32
"""Values for which the accountant's added terms hold."""
_TRIES = 256
"""Maximum number of roundings: none of them is within the bound with probability 2**-180."""


class Grid(NamedTuple):
    """Grid of an update's integers: g, and in steps of it D and the largest value."""

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
        Maximum L2 norm of one unit's contribution, in the update's own units: the clipping
        threshold of a member's update, or of a record's gradient.
    multiplier : float
        z: standard deviation of the noise in a sum over its sensitivity, 0.01 to 1000.
    unit : "member" or "record"
        Unit of privacy: the content of a member's update, or the presence of a record.
    sampling : float
        Probability with which each record is in a batch (`flhe.dpsgd.poisson_batch`), above 0, 1 at
        most. Members are not sampled: the untrusted server chooses the participants.
    divisor : float
        Divisor of opened sums: for records, the expected total size of all members' batches, the
        same in every round. 0, for members alone, is the number of senders.
    largest : float
        Largest absolute value of a member's vector, in the update's own units; larger values are
        cut. 0 is l2 for members, so none is cut, and l2 * divisor for records: a sum of gradients is
        cut only if its batch has more than `divisor` records. Cutting costs accuracy, not privacy.
    bits : int
        Bits of one integer, sign included, 12 to 32; 0 until the cohort sets them.
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
    """k, which a member sets."""

    def __post_init__(self) -> None:
        Quantize(self.bits)
        checks = {
            f"bits={self.bits}: 12 to 32, or 0": self.bits == 0 or self.bits >= LEAST_BITS,
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
                f"DiscreteGaussian(sampling={self.sampling}): the server chooses a round's "
                "participants, so members are not sampled for privacy; use sampling=1, or "
                "unit='record'"
            )

    @property
    def of_members(self) -> bool:
        """True if members are the unit of privacy."""
        return self.unit == "member"

    # --- declared properties ---

    @property
    def value_bits(self) -> int:
        """Bits of one integer."""
        return self.bits

    @property
    def whole_weight(self) -> int:
        """1: an example count in a sum would need noise of its own."""
        return 1

    @property
    def mechanism(self) -> Mechanism:
        """The multiplier, the sampling rate of records, and the unit of privacy."""
        return Mechanism(self.multiplier, self.sampling, self.of_members)

    @property
    def promised(self) -> Mapping[str, float]:
        """For records, the clipping threshold and sampling rate that the app must keep to."""
        return {} if self.of_members else {"max-norm": self.l2, "sampling": self.sampling}

    @property
    def of_gradients(self) -> bool:
        """True for records: several steps of training would let one change an update by more."""
        return not self.of_members

    def summary(self) -> str:
        """Describe the noise."""
        of = f"a {self.unit} of norm {self.l2:g}, sampling rate {self.sampling:g}"
        return f"noise of {self.multiplier:g} times the sensitivity to {of}; {self.bits} bits"

    def settled(self, bits: int) -> DiscreteGaussian:
        """Return the step with `bits` bits."""
        return replace(self, bits=bits)

    def counting_on(self, honest: int) -> DiscreteGaussian:
        """Return the step with noise that is sufficient from `honest` members together."""
        return replace(self, honest=honest)

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> DiscreteGaussian:
        """Return the step itself; MisfitError if the steps before it invalidate its sensitivity."""
        if self.of_members and [codec.norm_bound <= self.l2 for codec in before] != [True]:
            raise MisfitError(
                f"DiscreteGaussian(l2={self.l2:g}) hides a member whose update has that norm at most: "
                f"put ClipNorm({self.l2:g}) before it, and nothing else"
            )
        if before and not self.of_members:
            raise MisfitError(
                "DiscreteGaussian of records stands alone: a step before it would change the effect "
                "of a record's gradient on the sum; take that step out"
            )
        return self

    def parameters(self) -> dict[str, Any]:
        """Return all but the source of noise and the honest members; numbers as exact text."""
        numbers = ("l2", "multiplier", "sampling", "divisor", "largest")
        exact = {name: float(getattr(self, name)).hex() for name in numbers}
        return {"name": self.name, "unit": self.unit, "bits": self.bits, **exact}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> DiscreteGaussian:
        """Invert `parameters`, without the name."""
        kept = ("unit", "bits")
        numbers = ("l2", "multiplier", "sampling", "divisor", "largest")
        if set(stored) != {*kept, *numbers}:
            raise ConfigError("DiscreteGaussian: other parameters than it has")
        given: dict[str, Any] = {
            name: value if name in kept else float.fromhex(value) for name, value in stored.items()
        }
        return cls(**given)

    def out(self, space: Space) -> Integers:
        """Return integers of `bits` bits."""
        if not isinstance(space, Reals):
            raise MisfitError(f"DiscreteGaussian takes reals, got {space}; it rounds by itself")
        return Integers(Quantize(self.bits).levels)

    def lanes(self, extras: int, layout: Layout) -> int:
        """Return limbs for each extra, as of `Quantize`."""
        return Quantize(self.bits).lanes(extras, layout)

    # --- the grid ---

    def init(self, layout: Layout) -> State:
        """Return the grid of this model.

        Raises ConfigError: integer buffers, which would be added up without noise; MisfitError: too
        few bits for this model.
        """
        if layout.integers:
            raise ConfigError(
                "differential privacy, but the model has integer buffers (as batch norm's counts), "
                "which are added up exactly: use a model without them, for example with group norm"
            )
        return State(self.grid(layout.floats))

    def grid(self, length: int) -> Grid:
        """Return the finest grid with room for `length` values and noise; MisfitError for none."""
        if length > MOST_VALUES:
            raise MisfitError(
                f"DiscreteGaussian: {length} values, and epsilon is proven for up to {MOST_VALUES}; "
                "train a part of the model, as with adapters"
            )
        if (found := self._finest(length)) is not None:
            return found
        more = range(self.bits + 1, MOST_BITS + 1)
        enough = next((b for b in more if replace(self, bits=b)._finest(length) is not None), 0)
        mend = f"use {enough} bits or more" if enough else "there are not so many bits"
        raise MisfitError(
            f"DiscreteGaussian(multiplier={self.multiplier:g}, bits={self.bits}): no grid has room for "
            f"the noise, and rounds {length} values finely enough; {mend}"
            + ("" if self.of_members else "; or take a smaller `largest`")
        )

    def _finest(self, length: int) -> Grid | None:
        """Return what `grid` does; None if there is none.

        On a coarser one rounding adds too much to the sensitivity, or one member's noise would be too
        few steps for the accountant.
        """
        reach = self.largest or self.l2 * (1.0 if self.of_members else self.divisor)
        levels = Quantize(self.bits).levels
        step = math.ldexp(1.0, math.frexp(reach / levels)[1] - 1)
        while True:
            norm = self.l2 / step
            grid = Grid(step, self._sensitivity(norm, length), reach / step)
            if grid.sensitivity > MAX_INFLATION * norm:
                return None
            fits = grid.reach + TAIL * self.multiplier * grid.sensitivity + 2 <= levels
            if fits and self._variance(grid, 1) <= discrete_gaussian.MAX_VARIANCE:
                return grid if self._variance(grid, MOST_MEMBERS) >= LEAST**2 else None
            step *= 2

    def _sensitivity(self, norm: float, length: int) -> float:
        """Return D of vectors of that norm, in steps."""
        root = math.sqrt(length)
        if not self.of_members:
            return norm + root
        return min(norm + root, math.sqrt(norm * norm + length / 4 + norm + root / 2))

    def _variance(self, grid: Grid, honest: int) -> int:
        return math.ceil((self.multiplier * grid.sensitivity) ** 2 / honest)

    # --- encoding and decoding ---

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 to integers with noise, shape (length,); extras become limbs.

        Nothing is refused, because a refusal would reveal data. A vector that is not finite, or a
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
        extras[WEIGHT] = 1  # an app without examples in its batch does not report it
        return plain._replace(
            values=values.astype(quantize.dtype, copy=False), extras=quantize.split(extras)
        ), state

    def _rounded(self, x: NDArray[np.float32], grid: Grid) -> NDArray[np.int32]:
        """Return integers next to x / g, int32 (length,)."""
        out, quantize = np.zeros(x.size, np.int32), Quantize(self.bits)
        if not np.all(np.isfinite(x)):
            logger.warning("the update is not finite: zeros are sent in its place")
            x = np.zeros_like(x)  # in the same time: a server sees how long it takes
        for _ in range(_TRIES):
            source, square = quantize.source(), 0.0
            for at in range(0, x.size, PIECE):
                part = x[at : at + PIECE] / np.float64(grid.step)  # exact: a power of two
                np.clip(part, -grid.reach, grid.reach, out=part)
                if self.of_members:
                    part += source.next(part.size) / 65536.0 + quantize.offset
                    np.floor(part, out=part)
                else:
                    np.rint(part, out=part)
                square += float(np.dot(part, part))
                out[at : at + PIECE] = part
            # A float64 sum of 2**32 squares, a PIECE at a time, has a relative error below 1e-10.
            if not self.of_members or square <= grid.sensitivity**2 * (1 - 1e-9):
                return out
        logger.warning("the update is beyond its norm: zeros are sent in its place")
        return np.zeros_like(out)

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode a sum of integers to the sum or mean, float32 (length,).

        Raises ProtocolError: an integer that `senders` cannot reach.
        """
        quantize, grid = Quantize(self.bits), state.shared
        opened, _ = quantize.decode(total, senders, State())
        mean = Weigh(1).mean_factor(opened, senders)
        factor = grid.step * quantize.levels * (1 / self.divisor if self.divisor else mean)
        return opened._replace(values=np.asarray(opened.values * factor, np.float32)), state
