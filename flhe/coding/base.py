"""Codec: from floats to what a scheme can carry, and back from a sum.

Law, for encoded vectors x_i of any subset S of senders:
    decode(sum over S of encode(x_i), S) ~= the sum of x_i, or their weighted mean where the chain
    holds a `Weigh`; the largest error is `Codec.error(layout, count)`.

State is split by who may see it. `shared` is a function of what every reader decrypted, so it is the
same on all clients and travels in sealed checkpoints; `local` never leaves the client. `encode` gives
back a *tentative* state, to be kept only when the client finds itself among the round's senders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flhe.coding.spaces import Space

if TYPE_CHECKING:
    from flhe.coding.flatten import Layout

COUNT, WEIGHT = 0, 1
"""Where `extras` holds the number of contributions and their total weight."""


class Plain(NamedTuple):
    """What travels, before encryption or after decryption.

    Attributes
    ----------
    values : NDArray
        What gets encrypted, shape (length,): float32 before quantization, int32 or int64 after.
    coords : NDArray[uint32] or None
        Which coordinates the values belong to, ascending; None means all of them.
    extras : NDArray[int64] or NDArray[int32]
        Exact integers (count, weight, metrics, integer buffers), never sparsified nor permuted;
        limbs of them once quantized.
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
    """One step of an encoding, with what most of them do where nothing else is said."""

    __slots__ = ()

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
        """Public parameters, for hashing into the layout."""

    def error(self, layout: Layout, count: int, inner: float = 0.0) -> float:
        """Largest error of a decoded sum (or mean) of `count` vectors, in units of the input.

        `inner` is the error of the sum that this step is given to decode.
        """
        return inner

    def check_cohort(self, cohort: int) -> None:
        """MisfitError for more senders than the step takes: any number is fine."""
        return

    def memory(self, shared: Any) -> dict[str, NDArray[np.float64]]:
        """What all readers share and must outlive the process, by name: nothing."""
        return {}

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Inverse of `memory`; what is each client's own starts anew. ProtocolError if malformed."""
        return self.init(layout)
