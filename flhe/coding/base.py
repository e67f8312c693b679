"""Codec: encode floats for a scheme, and decode a sum.

Law, for encoded vectors x_i of any subset S of senders:
    decode(sum over S of encode(x_i), S) ~= the sum of x_i, or their weighted mean where the chain
    holds a `Weigh`.

State is split by visibility. `shared` is a function of opened sums, so it is the same on all
clients and travels in sealed checkpoints; `local` never leaves the client. `encode` returns a
*tentative* state, to be kept only if the client is among the round's senders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import Layout
from flhe.coding.squares import Segments
from flhe.errors import MisfitError
from flhe.math.permutation import Permutation

Fitting = Literal["", "first", "always"]
"""Rounds that begin with a sum for fitting a codec: none, the first, or each."""

PROMISED = "privacy"
"""Record of an app's reply that states how it trained; see `Codec.promised`."""
COUNT, WEIGHT = 0, 1
"""Places in `extras` of the number of contributions and their total weight."""


@dataclass(frozen=True, slots=True)
class Reals:
    """Real numbers with absolute value at most `bound` (may be infinite)."""

    bound: float


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers with absolute value at most `bound`, before addition; schemes carry these."""

    bound: int


Space = Reals | Integers


class Mechanism(NamedTuple):
    """The noise of every opened sum, as input to a privacy accountant.

    Attributes
    ----------
    multiplier
        Standard deviation of the guaranteed noise, divided by the sensitivity: the most that one
        member's vector, or one record, changes a sum in L2.
    sampling
        Probability with which a record is in a round's batch, 0 to 1; 1 without sampling.
    of_members
        True if it hides a member's vector, compared with zeros; False if it hides a record.
    """

    multiplier: float
    sampling: float
    of_members: bool = False


class Plain(NamedTuple):
    """One vector, before encryption or after decryption.

    Attributes
    ----------
    values
        Values to encrypt, shape (length,): float32 before quantization, int32 or int64 after.
    coords
        Coordinates of the values, ascending; None means all of them.
    extras
        Exact integers (count, weight, metrics, integer buffers), never sparsified nor permuted;
        limbs of them once quantized, int32.
    """

    values: NDArray[Any]
    extras: NDArray[Any]
    coords: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A codec's memory between rounds: the readers' shared part and the client's local part."""

    shared: Any = None
    local: Any = None


@runtime_checkable
class Codec(Protocol):
    """One step of an encoding, with defaults that suit most steps.

    A chain asks its steps for the properties below, and never for their types.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Name on the wire."""
    place: ClassVar[Literal["first", "last", ""]] = ""
    """Required place in a chain."""
    cuts: ClassVar[bool] = False
    """True if it cuts values at thresholds, and scales those of clients with more examples than the
    weight's bound."""

    @property
    def sparse(self) -> bool:
        """True if it sends only some coordinates."""
        return False

    @property
    def least_share(self) -> float:
        """Smallest share of the values that it ever sends, 0 to 1."""
        return 1.0

    @property
    def hides(self) -> bool:
        """True if it hides the sent coordinates, by a secret order that `keyed` sets."""
        return False

    @property
    def value_bits(self) -> int | None:
        """Bits of its output integers, 0 if not set yet; None if it makes no integers."""
        return None

    @property
    def caps_weight(self) -> bool:
        """True if a weight above the maximum has no effect: a client counts with the maximum."""
        return False

    @property
    def whole_weight(self) -> int:
        """Example count with full weight; 0 for a step that does not weigh."""
        return 0

    @property
    def fitting(self) -> Fitting:
        """Rounds in which it is fitted on a sum before the update: none."""
        return ""

    @property
    def norm_bound(self) -> float:
        """Maximum L2 norm of its output; infinite if it bounds none."""
        return math.inf

    @property
    def mechanism(self) -> Mechanism | None:
        """Differential privacy of an opened sum under its noise; None for a step without noise."""
        return None

    @property
    def promised(self) -> Mapping[str, float]:
        """Facts that an app must state in the record `PROMISED` of its reply: none."""
        return {}

    @property
    def of_gradients(self) -> bool:
        """True if it is valid only for sums of gradients, one a record."""
        return False

    def summary(self) -> str:
        """Describe the step in a few words."""
        return ""

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> Codec:
        """Return the step, adapted to its neighbours in a chain; MisfitError if one is missing."""
        return self

    def settled(self, bits: int) -> Codec:
        """Return the step with `bits` bits, if it makes integers."""
        return self

    def keyed(self, permutation: Permutation | None) -> Codec:
        """Return the step with the secret order of one attempt, if it hides coordinates."""
        return self

    def counting_on(self, honest: int) -> Codec:
        """Return one member's step, given that `honest` members add noise to any opened sum."""
        return self

    def fused(self, behind: Sequence[Codec]) -> tuple[Any, int] | None:
        """Return one pass for this step and some behind it, and their number; None without one."""
        return None

    def init(self, layout: Layout) -> State:
        """Return the state before the first round: none."""
        return State()

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode one client's vector; the state is tentative."""

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode the sum of the vectors that `senders` encoded."""

    def out(self, space: Space) -> Space:
        """Return the output space for inputs in `space`; MisfitError for unsuitable inputs."""

    def lanes(self, extras: int, layout: Layout) -> int:
        """Return how many integers carry `extras` exact numbers after this step: as many."""
        return extras

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters and the name, for terms and for hashing into the layout."""

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> Codec:
        """Invert `parameters`, without the name; ConfigError or ValueError for other input."""
        return cls(**stored)

    def cut(self, plain: Plain, shared: Any) -> tuple[Plain, NDArray[np.float32] | None]:
        """Return chosen values as this step cuts them, and the excess to send later: none."""
        return plain, None

    def segments(self, shared: Any) -> Segments:
        """Return runs (start, stop, alpha) of its thresholds; MisfitError for a step without any."""
        raise MisfitError(f"{self.name}: it has no thresholds")

    # --- thresholds that are fitted ---

    def needs_mean_squares(self, shared: Any) -> bool:
        """Return whether `fitted` must run before the next update is encoded."""
        return False

    def statistics(self, plain: Plain, shared: Any) -> NDArray[np.int64]:
        """Return one sender's part of the sum that the step is fitted on."""
        raise MisfitError(f"{self.name}: it has nothing to fit")

    def fitted(self, sums: NDArray[np.int64], count: int, shared: Any) -> Any:
        """Return the shared state fitted on the summed `statistics` of `count` senders."""
        raise MisfitError(f"{self.name}: it has nothing to fit")

    # --- state ---

    def check_cohort(self, cohort: int) -> None:
        """Raise MisfitError for more senders than the step takes; by default any number is fine."""
        return

    def memory(self, shared: Any) -> dict[str, NDArray[np.float64]]:
        """Return the shared state that must outlive the process, by name: nothing."""
        return {}

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Invert `memory`; each client's local state starts anew. ProtocolError if malformed."""
        return self.init(layout)
