"""Weigh: weighted FedAvg that adds up under encryption.

A client sends x * n / max_examples, so that values stay in range, and n itself, exactly, in `extras`.
The sum over senders, times max_examples, divided by the summed n, is FedAvg's weighted mean; the
division happens after decryption, by what the ciphertext says and not by the configured cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flhe.coding.base import COUNT, WEIGHT, Plain, State
from flhe.coding.extras import MAX_PRODUCT
from flhe.coding.flatten import Layout
from flhe.errors import ConfigError, MisfitError, ProtocolError, RangeError
from flhe.spaces import Reals, Space


@dataclass(frozen=True, slots=True)
class Weigh:
    """Scale by n / max_examples; decode to the weighted mean.

    Parameters
    ----------
    max_examples : int
        Largest example count a client may have. The closer to the truth, the finer the result: a
        client with n examples is quantized in steps max_examples / n times as wide. 1 gives every
        client the same weight.
    """

    max_examples: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_examples <= 1 << 28:
            raise ConfigError(f"Weigh(max_examples={self.max_examples}): must be 1 to 2**28")

    def parameters(self) -> dict[str, Any]:
        """The bound."""
        return {"name": "weigh", "max_examples": self.max_examples}

    def init(self, layout: Layout) -> State:
        """No state."""
        return State()

    def out(self, space: Space) -> Reals:
        """The same reals: weights are at most 1."""
        if not isinstance(space, Reals):
            raise MisfitError(f"Weigh takes reals, got {space}; put it before Quantize")
        return space

    def check_cohort(self, cohort: int) -> None:
        """Sums of weighted metrics must fit 63 bits."""
        if self.max_examples * MAX_PRODUCT * cohort >= 1 << 63:
            raise MisfitError(
                f"Weigh(max_examples={self.max_examples}) with {cohort} clients overflows 63 bits; "
                f"at most {((1 << 63) - 1) // (MAX_PRODUCT * cohort)} fit"
            )

    def lanes(self, extras: int, layout: Layout) -> int:
        """Extras pass unchanged."""
        return extras

    def error(self, layout: Layout, count: int, inner: float = 0.0) -> float:
        """The sum's error spread over the least weight that `count` clients have, one each."""
        return inner * self.max_examples / count + 2.0**-22

    def factor(self, plain: Plain) -> np.float32:
        """N / max_examples.

        Raises
        ------
        RangeError
            n is not 1 to max_examples. The count is a secret and stays out of the text.
        """
        if plain.extras.size <= WEIGHT:
            raise RangeError("Weigh needs the count and the weight in extras")
        n = int(plain.extras[WEIGHT])
        if n < 1:
            raise RangeError("the app reported no training examples; a weight must be positive")
        if n > self.max_examples:
            raise RangeError(
                f"this node trains on more than max_examples={self.max_examples}; "
                "raise max_examples in the strategy"
            )
        return np.float32(n / self.max_examples)

    def mean_factor(self, total: Plain, senders: Sequence[int]) -> float:
        """max_examples / summed n, after checking what the ciphertext says of itself.

        Raises
        ------
        ProtocolError
            The count is not the number of senders, or the weight is not what they can add up to: the
            sum was not made of one vector from each of them.
        """
        count, weight = int(total.extras[COUNT]), int(total.extras[WEIGHT])
        if count != len(senders):
            raise ProtocolError(
                f"the opened sum does not hold one update from each of its {len(senders)} senders; "
                "the round is refused"
            )
        if not count <= weight <= count * self.max_examples:
            raise ProtocolError("the opened sum has an impossible weight; the round is refused")
        return self.max_examples / weight

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """float32 in, float32 out, shape (length,)."""
        return plain._replace(values=plain.values * self.factor(plain)), state

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Sum in, weighted mean out."""
        return total._replace(values=total.values * self.mean_factor(total, senders)), state
