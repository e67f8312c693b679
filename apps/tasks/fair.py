"""q-FedAvg: the worse the model's loss on a node, the greater that node's weight.

With w the received model, F_k its loss on node k, w_k the model trained there, and L the Lipschitz
constant, 1 / learning rate:

    D_k   = L (w - w_k)
    h_k   = q F_k**(q - 1) ||D_k||**2 + L F_k**q
    w_new = w - sum of F_k**q D_k / sum of h_k

The paper's server adds up both sums. Here node k returns a_k = w - F_k**q D_k / h_k with a weight
in proportion to h_k, and FedAvg's weighted mean, in clear or under encryption, is w_new. As a_k - w
is smaller than the change by training, quantize finely (24 bits rather than 16).

The weight is h_k in units of `reference / limit`, a whole number up to `limit`. All nodes use the
same, public reference: h of a node whose loss is that of guessing and whose ||w - w_k||**2 is
sqrt(d) * clip**2. (With d weights that is the logarithmic middle between one weight that moves by
`clip`, and all of them.) A node beyond the reference counts as one at it, with a warning.

Source: Li et al., "Fair Resource Allocation in Federated Learning" (ICLR 2020), Alg. 2.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import Arrays
from flhe.errors import RangeError

logger = logging.getLogger("flhe")

MIN_LOSS = 1e-10
"""Minimum loss: F**(q - 1) has no bound near zero."""


@dataclass(frozen=True, slots=True)
class Fair:
    """The public parameters of q-FedAvg, within the bounds of `Settings`."""

    q: float  # Fairness. As it goes to 0, all nodes get the same weight
    lipschitz: float  # L, the inverse of a learning rate
    clip: float  # Largest change of one weight in one round, in the model's own units
    chance: float  # Loss of a model that guesses: ln(classes) for cross entropy
    limit: int  # Largest weight; `max_examples` of the strategy

    def reference(self, size: int) -> float:
        """Return the h with the largest weight, for a model of `size` weights."""
        return self._h(self.chance, self.clip**2 * math.sqrt(size))

    def contribution(
        self, received: Arrays, trained: Arrays, loss: float
    ) -> tuple[dict[str, NDArray[Any]], int]:
        """Return a node's a_k, in the types of `trained`, and h_k in units of reference / limit.

        Integer arrays have no gradient and are returned as trained; a negative `loss`, that of the
        received model on the node's training data, counts as 0. The weight is 1 to `limit`.

        Raises RangeError: a loss that is not finite, or an array after training that is not.
        """
        moved = {
            name: array.astype(np.float64) - received[name]
            for name, array in trained.items()
            if array.dtype.kind == "f"
        }
        square = float(sum(np.sum(np.square(change)) for change in moved.values()))
        if not (math.isfinite(loss) and math.isfinite(square)):
            raise RangeError(
                "the received model's loss here, or an array after training, is not finite; "
                "lower the learning rate"
            )
        loss = max(loss, MIN_LOSS)
        h = self._h(loss, square)
        step = 1 / (1 + self._ratio(loss, square))
        arrays = {name: np.asarray(array) for name, array in trained.items()}
        for name, change in moved.items():
            arrays[name] = np.asarray(received[name] + step * change, trained[name].dtype)
        share = h / self.reference(sum(change.size for change in moved.values()))
        if share > 1:
            logger.warning(
                "q-FedAvg would weigh this node beyond the largest weight and weighs it by that: "
                "lower the learning rate or fair-q, or raise clip"
            )
        return arrays, max(1, round(min(share, 1.0) * self.limit))

    def _ratio(self, loss: float, square: float) -> float:
        """Return the first term of h over its second, for ||w - w_k||**2 = `square`."""
        return self.q * self.lipschitz * square / loss

    def _h(self, loss: float, square: float) -> float:
        """Return h for ||w - w_k||**2 = `square`; infinite if a float cannot hold it."""
        try:
            return self.lipschitz * math.pow(loss, self.q) * (1 + self._ratio(loss, square))
        except OverflowError:
            return math.inf
