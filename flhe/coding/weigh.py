"""Weigh: weighted FedAvg that adds up under encryption.

A client sends x * n / max_examples, and n itself, exactly, in `extras`. The sum over senders, times
max_examples, divided by the summed n, is FedAvg's weighted mean.

A client with more than max_examples examples has its full weight. `Clip` scales its values up by n
/ max_examples before cutting, so its threshold is alpha * max_examples / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, WEIGHT, Codec, Plain, Reals, Space, State
from flhe.coding.extras import MAX_PRODUCT
from flhe.errors import ConfigError, ExamplesError, MisfitError, ProtocolError, RangeError


def most_examples(cohort: int) -> int:
    """Return the maximum examples of one of `cohort` clients: weighted metrics must fit 63 bits."""
    return ((1 << 63) - 1) // (MAX_PRODUCT * cohort)


@dataclass(frozen=True, slots=True)
class Weigh(Codec):
    """Scale by n / max_examples; decode to the weighted mean.

    From `max_examples` on a client uses the whole range of values; the largest client's count is
    best. A client with n examples is quantized in steps max_examples / n times as wide. 1 gives
    every client the same weight. The chain sets `scaled` if a `Clip` before it scales the values of
    clients with more.
    """

    name: ClassVar[str] = "weigh"

    max_examples: int
    scaled: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if type(self.max_examples) is not int or not 1 <= self.max_examples <= 1 << 28:
            raise ConfigError(
                f"Weigh(max_examples={self.max_examples!r}): must be 1 to 2**28, an int"
            )

    @property
    def whole_weight(self) -> int:
        """Example count with full weight."""
        return self.max_examples

    @property
    def caps_weight(self) -> bool:
        """True if no step before it scales the values of clients with more examples."""
        return self.max_examples > 1 and not self.scaled

    def summary(self) -> str:
        """Return the weighting as text."""
        return (
            f"weighed up to {self.max_examples} examples" if self.max_examples > 1 else "unweighed"
        )

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> Weigh:
        """Return the step, with `scaled` set if needed; with a maximum of 1 no client has more."""
        scaled = self.max_examples > 1 and any(codec.cuts for codec in before)
        return replace(self, scaled=scaled)

    def parameters(self) -> dict[str, Any]:
        """Return the maximum example count."""
        return {"name": self.name, "max_examples": self.max_examples}

    def out(self, space: Space) -> Reals:
        """Return the same reals: weights are at most 1."""
        if not isinstance(space, Reals):
            raise MisfitError(f"Weigh takes reals, got {space}; put it before Quantize")
        return space

    def check_cohort(self, cohort: int) -> None:
        """Check that sums of weighted metrics fit 63 bits."""
        if self.max_examples > most_examples(cohort):
            raise MisfitError(
                f"Weigh(max_examples={self.max_examples}) with {cohort} clients overflows 63 bits; "
                f"at most {most_examples(cohort)} fit"
            )

    def factor(self, extras: NDArray[Any]) -> np.float32:
        """Return n / max_examples, at most 1; `Clip` has applied the rest.

        Raises ExamplesError: n is below 1, or above max_examples without a Clip that scaled the
        values.
        """
        if extras.size <= WEIGHT:
            raise RangeError("Weigh needs the count and the weight in extras")
        n = int(extras[WEIGHT])
        if n < 1:
            raise ExamplesError("the app reported no training examples; a weight must be positive")
        if n > self.max_examples and not self.scaled:
            raise ExamplesError(
                f"this client has more than max_examples={self.max_examples} examples, and no Clip "
                "before Weigh scales its values: add one, or raise max_examples"
            )
        return np.float32(min(n, self.max_examples) / self.max_examples)

    def mean_factor(self, total: Plain, senders: Sequence[int]) -> float:
        """Return max_examples / summed n, after checking the count and the weight in the sum.

        Raises ProtocolError: the count is not the number of senders, or they cannot reach the
        weight: the sum is not made of one vector from each of them.
        """
        count, weight = int(total.extras[COUNT]), int(total.extras[WEIGHT])
        if count != len(senders):
            raise ProtocolError(
                f"the opened sum does not hold one update from each of its {len(senders)} senders; "
                "the round is refused"
            )
        most = 1 if self.max_examples == 1 else most_examples(count)
        if not count <= weight <= count * most:
            raise ProtocolError("the opened sum has an impossible weight; the round is refused")
        return self.max_examples / weight

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 to float32, shape (length,)."""
        return plain._replace(values=plain.values * self.factor(plain.extras)), state

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode a sum to the weighted mean."""
        return total._replace(values=total.values * self.mean_factor(total, senders)), state
