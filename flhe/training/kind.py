"""Kind: what a sum is of, as its readers know it: an update, a sensitivity map, or mean squares.

A round is a short program over such sums:

    sensitivity (once) -> mean squares (where thresholds are fitted) -> update

A kind says how long a vector is; one that ends its round also how a draft is encoded, and which model
its total makes. Updates are here: the sum of what training changed, or of gradients, whose mean makes
the next model. The others are in modules of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Totals
from flhe.coding.flatten import Layout
from flhe.coding.support import covered
from flhe.errors import ProtocolError
from flhe.math.permutation import Permutation
from flhe.schemes import sealed
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.terms import Terms


class Kind(ABC):
    """One kind of sum; for `purpose` see `Slot`."""

    purpose: ClassVar[str]
    partial: ClassVar[bool] = False
    """Whether it may be sparse, or hold a selected part of the values only."""
    valued: ClassVar[bool] = True
    """Whether it has a value for each of the model's, before its extras."""

    @abstractmethod
    def extras(self, terms: Terms, layout: Layout) -> int:
        """Integers behind its values, without tags."""


class Ending(Kind):
    """A kind whose total ends a round: it makes the next model."""

    @abstractmethod
    def encode(
        self,
        terms: Terms,
        layout: Layout,
        draft: Plain,
        state: State,
        permutation: Permutation | None,
    ) -> Plain:
        """What is to be sent of a float32 draft, with its exact extras, as integers that add.

        Terms are the epoch's, bits and all; the state is the codec's, in this round; `permutation` is
        the secret order of coordinates in this attempt, where the codec hides them.
        """

    @abstractmethod
    def read(
        self,
        terms: Terms,
        model: Model,
        total: Sealed,
        lanes: NDArray[Any],
        state: State,
        check: int,
        permutation: Permutation | None = None,
    ) -> tuple[Model, Totals]:
        """The model after a round from `model`, by what its sum holds.

        `lanes` is what is in the sum `total`: signed values, then extras, shape (values + extras,),
        overwritten; `check` is what the senders' checks must add up to.

        Raises ProtocolError: integers that these senders cannot have added up to, or a check that
        differs.
        """


def check_totals(totals: Totals, check: int) -> None:
    """Refuse a sum whose senders started elsewhere than its reader; ProtocolError."""
    if totals.check != check:
        raise ProtocolError(
            "a sender of the sum started from another model, or sent other coordinates; it is refused"
        )


class Update(Ending):
    """What every round of training adds up."""

    purpose: ClassVar[str] = sealed.UPDATE
    partial: ClassVar[bool] = True

    def extras(self, terms: Terms, layout: Layout) -> int:
        """Weight, check, metrics, integer arrays, and what codecs add."""
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
        check: int,
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
        check_totals(totals, check)
        optimizer = terms.optimizer
        moments = model.moments or optimizer.init(layout.floats)
        # A server's optimizer counts rounds, as Flower's do; a client's its own steps, as PyTorch's do.
        trained = total.slot.round - terms.select.mapped  # a round for the map is none of training
        number = trained if optimizer.takes == "update" else model.steps + 1
        change, moments = optimizer.step(opened.values, moments, number, out=opened.values)
        masters = layout.apply(model.masters, change, totals.integers, reuse=True)
        memory = codec.memory(state)
        return model.after(total.slot.round, total.digest(), masters, moments, memory), totals


UPDATE = Update()
