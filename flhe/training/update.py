"""Update: the sum of what training changed, or of gradients; its mean makes the next model."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Totals
from flhe.coding.flatten import Layout
from flhe.coding.support import covered
from flhe.math.permutation import Permutation
from flhe.schemes import sealed
from flhe.schemes.sealed import Sealed
from flhe.training.kind import Ending
from flhe.training.model import Model
from flhe.training.terms import Terms


class Update(Ending):
    """What every round of training adds up."""

    purpose: ClassVar[str] = sealed.UPDATE
    partial: ClassVar[bool] = True

    def extras(self, terms: Terms, layout: Layout) -> int:
        """Weight, metrics, integer arrays, and what codecs add."""
        return terms.extra_lanes(layout)

    def encode(
        self,
        terms: Terms,
        layout: Layout,
        draft: Plain,
        state: State,
        permutation: Permutation | None,
    ) -> Plain:
        """Clip, weigh, quantize and permute what was selected for it."""
        return terms.codec.keyed(permutation).finish(draft, state)[0]

    def read(
        self,
        terms: Terms,
        model: Model,
        total: Sealed,
        lanes: NDArray[Any],
        state: State,
        permutation: Permutation | None = None,
    ) -> tuple[Model, Totals]:
        """Decode the sum, and step with its mean."""
        layout, codec = model.layout, terms.codec.keyed(permutation)
        length = lanes.size - terms.extra_lanes(layout)
        plain = Plain(lanes[:length], lanes[length:])
        if total.supports:
            plain = plain._replace(coords=covered(total.supports))
        opened, state = codec.decode(plain, total.senders, state, reuse=True)
        totals = terms.extras(layout).decode(opened.extras)
        optimizer = terms.optimizer
        moments = model.moments or optimizer.init(layout.floats)
        # A server's optimizer counts rounds, as Flower's do; a client's its own steps, as PyTorch's do.
        trained = total.slot.round - terms.select.mapped  # a round for the map is none of training
        number = model.steps + 1 if optimizer.gradients else trained
        change, moments = optimizer.step(opened.values, moments, number, out=opened.values)
        masters = layout.apply(model.masters, change, totals.integers, reuse=True)
        memory = codec.memory(state)
        return model.after(total.slot.round, masters, moments, memory), totals


UPDATE = Update()
