"""Kind: what a sum is of, as its readers know it: an update, a map, mean squares, or an evaluation.

A round is a short program over such sums:

    sensitivity (once) -> mean squares (where thresholds are fitted) -> update -> evaluation

A kind says how long a vector is; one that ends its round also how a draft is encoded, and which model
its total makes. Each is in a module of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Totals
from flhe.coding.flatten import Layout
from flhe.math.permutation import Permutation
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.terms import Terms


class Kind(ABC):
    """One kind of sum; for `purpose` see `Slot`."""

    purpose: ClassVar[str]
    attempt: ClassVar[int | None] = None
    """In the place of an attempt's number, where there is one such sum of a model."""
    partial: ClassVar[bool] = False
    """Whether it may be sparse, or hold a selected part of the values only."""
    valued: ClassVar[bool] = True
    """Whether it has a value for each of the model's, encoded under the round's thresholds."""

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
        permutation: Permutation | None = None,
    ) -> tuple[Model, Totals]:
        """The model after a round from `model`, by what its sum holds; its history is yet to follow.

        `lanes` is what is in the sum `total`: signed values, then extras, shape (values + extras,),
        overwritten.

        Raises ProtocolError: integers that these senders cannot have added up to.
        """
