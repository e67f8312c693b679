"""Codec: from floats to what a scheme can carry, and back from a sum.

Law, for encoded vectors x_i of any subset S of senders:
    decode(sum over S of encode(x_i), S) ~= the sum of x_i, or their weighted mean where the chain
    holds a `Weigh`.

State is split by who may see it. `shared` is a function of what every reader decrypted, so it is the
same on all clients and travels in sealed checkpoints; `local` never leaves the client. `encode` gives
back a *tentative* state, to be kept only when the client finds itself among the round's senders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from flhe.errors import MisfitError

if TYPE_CHECKING:
    from flhe.coding.flatten import Layout
    from flhe.coding.squares import Segments
    from flhe.math.permutation import Permutation

Fitting = Literal["", "first", "always"]
"""When a round begins with a sum that a codec is fitted on: never, in the first round, in each."""

PROMISED = "privacy"
"""Record of an app's reply that says what it did; see `Codec.promised`."""
COUNT, WEIGHT = 0, 1
"""Where `extras` holds the number of contributions and their total weight."""


@dataclass(frozen=True, slots=True)
class Reals:
    """Real numbers with absolute value at most `bound` (may be infinite)."""

    bound: float


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers with absolute value at most `bound`, before any are added; schemes carry these."""

    bound: int


Space = Reals | Integers


class Mechanism(NamedTuple):
    """The noise of every sum that is opened, as an accountant of privacy takes it.

    Attributes
    ----------
    multiplier
        Standard deviation of the noise that is counted on, divided by the sensitivity: the most that
        one member's vector, or one record, changes a sum in L2.
    sampling
        Probability with which a record is in a round's batch, 0 to 1; 1 where nothing is sampled.
    of_members
        Whether it hides a member's vector, beside one of zeros, and not a record.
    """

    multiplier: float
    sampling: float
    of_members: bool = False


class Plain(NamedTuple):
    """What travels, before encryption or after decryption.

    Attributes
    ----------
    values
        What gets encrypted, shape (length,): float32 before quantization, int32 or int64 after.
    coords
        Which coordinates the values belong to, ascending; None means all of them.
    extras
        Exact integers (count, weight, metrics, integer buffers), never sparsified nor permuted;
        limbs of them once quantized, int32.
    """

    values: NDArray[Any]
    extras: NDArray[Any]
    coords: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A codec's memory between rounds: what all readers share and what never leaves the client."""

    shared: Any = None
    local: Any = None


@runtime_checkable
class Codec(Protocol):
    """One step of an encoding, with what most of them do where nothing else is said.

    A chain asks its steps what they declare, and never which they are.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Name on the wire."""
    place: ClassVar[Literal["first", "last", ""]] = ""
    """Where in a chain it must stand."""
    cuts: ClassVar[bool] = False
    """Whether it cuts values at thresholds, and scales those of who has more examples than is usual."""

    @property
    def sparse(self) -> bool:
        """Whether it sends some coordinates only."""
        return False

    @property
    def least_share(self) -> float:
        """Smallest share of the values that it ever sends, 0 to 1."""
        return 1.0

    @property
    def hides(self) -> bool:
        """Whether it hides which coordinates are sent, by a secret order that `keyed` gives it."""
        return False

    @property
    def value_bits(self) -> int | None:
        """Bits of the integers that it makes, 0 where none is said; None where it makes none."""
        return None

    @property
    def whole_weight(self) -> int:
        """Example count that it weighs whole; 0 for a step that does not weigh."""
        return 0

    @property
    def fitting(self) -> Fitting:
        """When it is fitted on a sum that comes before the update: never."""
        return ""

    @property
    def norm_bound(self) -> float:
        """Largest L2 norm of what it gives; infinite where it bounds none."""
        return math.inf

    @property
    def mechanism(self) -> Mechanism | None:
        """What differential privacy its noise gives an opened sum; None for a step without noise."""
        return None

    @property
    def promised(self) -> Mapping[str, float]:
        """What an app must say that it did, in the record `PROMISED` of its reply: nothing."""
        return {}

    @property
    def of_gradients(self) -> bool:
        """Whether it holds only for sums of gradients, one a record."""
        return False

    def summary(self) -> str:
        """What it does, in a few words."""
        return ""

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> Codec:
        """The step, once it has asked those around it in a chain; MisfitError where one is missing."""
        return self

    def settled(self, bits: int) -> Codec:
        """The step with so many bits, where it makes integers."""
        return self

    def keyed(self, permutation: Permutation | None) -> Codec:
        """The step with the secret order of one attempt, where it hides coordinates."""
        return self

    def counting_on(self, honest: int) -> Codec:
        """The step of one member, where `honest` members add noise to any sum that is opened."""
        return self

    def fused(self, behind: Sequence[Codec]) -> tuple[Any, int] | None:
        """One pass for this step and some behind it, and how many it stands for; None without one."""
        return None

    def init(self, layout: Layout) -> State:
        """State before the first round: none."""
        return State()

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode one client's vector; the state is tentative."""

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode the sum of what `senders` encoded."""

    def out(self, space: Space) -> Space:
        """Space of the output for inputs in `space`; MisfitError where they do not go together."""

    def lanes(self, extras: int, layout: Layout) -> int:
        """How many integers carry `extras` exact numbers after this step: as many."""
        return extras

    def parameters(self) -> dict[str, Any]:
        """Public parameters, and its name: how terms carry it, and what the layout is hashed with."""

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> Codec:
        """Inverse of `parameters`, without the name; ConfigError or ValueError for others."""
        return cls(**stored)

    def cut(self, plain: Plain, shared: Any) -> tuple[Plain, NDArray[np.float32] | None]:
        """What of chosen values it will cut, and what lies beyond: nothing that may be sent later."""
        return plain, None

    def segments(self, shared: Any) -> Segments:
        """Runs (start, stop, alpha) of its thresholds; MisfitError for a step that has none."""
        raise MisfitError(f"{self.name}: it has no thresholds")

    # --- thresholds that are fitted ---

    def needs_mean_squares(self, shared: Any) -> bool:
        """Whether `fitted` must come before the next update is encoded."""
        return False

    def statistics(self, plain: Plain, shared: Any) -> NDArray[np.int64]:
        """What one sender adds to the sum that the step is fitted on."""
        raise MisfitError(f"{self.name}: it is fitted on nothing")

    def fitted(self, sums: NDArray[np.int64], count: int, shared: Any) -> Any:
        """The shared state that the summed `statistics` of `count` senders give."""
        raise MisfitError(f"{self.name}: it is fitted on nothing")

    # --- state ---

    def check_cohort(self, cohort: int) -> None:
        """MisfitError for more senders than the step takes: any number is fine."""
        return

    def memory(self, shared: Any) -> dict[str, NDArray[np.float64]]:
        """What all readers share and must outlive the process, by name: nothing."""
        return {}

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Inverse of `memory`; what is each client's own starts anew. ProtocolError if malformed."""
        return self.init(layout)
