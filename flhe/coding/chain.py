"""chain(): codecs in sequence, checked at construction.

    chain(Clip(1.0), Weigh(max_examples=5000), Quantize(16))
    chain(TopK(...), Clip.history(), Weigh(max_examples=5000), Quantize(16), Permute())

Encoding has two halves: `select` chooses the values to send, and `finish` encodes them. Between
them come the sums for adaptive thresholds: `fitted` takes the summed `statistics` of all senders.

Adjacent Clip, Weigh and Quantize run as one loop (`flhe.coding.clip.Fused`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Fitting, Mechanism, Plain, Reals, Space, State
from flhe.coding.flatten import Layout, joined
from flhe.coding.squares import Segments
from flhe.errors import ConfigError, MisfitError, ProtocolError
from flhe.math.permutation import Permutation


@dataclass(frozen=True, slots=True)
class Chain(Codec):
    """Several codecs as one, in the order of encoding; built by `chain`.

    `fuse` runs known triples in one pass. The law tests turn it off to compare.
    """

    name: ClassVar[str] = "chain"

    codecs: tuple[Codec, ...]
    fuse: bool = True
    _steps: tuple[tuple[int, Any], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.codecs:
            raise ConfigError("chain(): needs at least one codec")
        for at, codec in enumerate(self.codecs):
            kind = type(codec).__name__
            if codec.place == "first" and at > 0:
                raise MisfitError(f"chain(): {kind} chooses from the whole update; put it first")
            if codec.place == "last" and at < len(self.codecs) - 1:
                raise MisfitError(f"chain(): {kind} hides where values belong; put it last")
        self.out(Reals(float("inf")))
        names = [codec.name for codec in self.codecs]
        if twice := next((codec for codec in self.codecs if names.count(codec.name) > 1), None):
            raise MisfitError(f"chain(): {type(twice).__name__} occurs twice; use it once")
        informed = tuple(
            codec.informed(self.codecs[:at], self.codecs[at + 1 :])
            for at, codec in enumerate(self.codecs)
        )
        object.__setattr__(self, "codecs", informed)
        object.__setattr__(self, "_steps", tuple(self._fused()))

    def _fused(self) -> Iterator[tuple[int, Any]]:
        """Yield the codecs to run, each with the index of its state."""
        at = 0
        while at < len(self.codecs):
            codec = self.codecs[at]
            fusion = codec.fused(self.codecs[at + 1 :]) if self.fuse else None
            step, count = fusion or (codec, 1)
            yield at, step
            at += count

    # --- properties of the codecs ---

    @property
    def sparse(self) -> bool:
        """True if only some coordinates are sent."""
        return any(codec.sparse for codec in self.codecs)

    @property
    def least_share(self) -> float:
        """Smallest share of the values that an update has in any round, 0 to 1."""
        return math.prod(codec.least_share for codec in self.codecs)

    @property
    def hides(self) -> bool:
        """True if the sent coordinates are hidden."""
        return any(codec.hides for codec in self.codecs)

    @property
    def makes_integers(self) -> bool:
        """True if the output is integers, which schemes add."""
        return any(codec.value_bits is not None for codec in self.codecs)

    @property
    def bits(self) -> int:
        """Bits of one value; 0 if the cohort sets them."""
        return max(codec.value_bits or 0 for codec in self.codecs)

    @property
    def max_examples(self) -> int:
        """Example count with full weight; 0 without weighing."""
        return max(codec.whole_weight for codec in self.codecs)

    @property
    def caps_weight(self) -> bool:
        """True if a weight above the maximum has no effect."""
        return any(codec.caps_weight for codec in self.codecs)

    @property
    def weighted(self) -> bool:
        """True if example counts weigh."""
        return self.max_examples > 1

    @property
    def fitting(self) -> Fitting:
        """Rounds that begin with a sum for fitting thresholds."""
        return next((codec.fitting for codec in self.codecs if codec.fitting), "")

    @property
    def mechanism(self) -> Mechanism | None:
        """Differential privacy of opened sums; None without noise."""
        return next(filter(None, (codec.mechanism for codec in self.codecs)), None)

    @property
    def promised(self) -> Mapping[str, float]:
        """Facts that an app must state in its reply."""
        return {name: value for codec in self.codecs for name, value in codec.promised.items()}

    @property
    def of_gradients(self) -> bool:
        """True if it is valid only for sums of gradients, one a record."""
        return any(codec.of_gradients for codec in self.codecs)

    def segments(self, layout: Layout) -> Segments:
        """Return runs (start, stop, alpha) of the given thresholds; ConfigError without any."""
        for at, codec in enumerate(self.codecs):
            if codec.cuts and not codec.fitting:
                return codec.segments(self.init(layout).shared[at])
        raise ConfigError(
            "this chain has no thresholds that are known ahead; put Clip(bound) into it"
        )

    def summary(self) -> str:
        """Describe the chain in words, for logs."""
        return ", ".join(filter(None, (codec.summary() for codec in self.codecs)))

    def settled(self, bits: int) -> Chain:
        """Return the chain with `bits` bits a value."""
        return self if bits == self.bits else self._each(lambda codec: codec.settled(bits))

    def keyed(self, permutation: Permutation | None) -> Chain:
        """Return the chain with the secret order of one attempt, if coordinates are hidden."""
        return self._each(lambda codec: codec.keyed(permutation)) if self.hides else self

    def counting_on(self, honest: int) -> Chain:
        """Return one member's chain, given that `honest` members add noise to any opened sum."""
        return self._each(lambda codec: codec.counting_on(honest)) if self.mechanism else self

    def _each(self, change: Callable[[Codec], Codec]) -> Chain:
        return Chain(tuple(map(change, self.codecs)), self.fuse)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of each codec, in order."""
        return {"name": self.name, "codecs": [c.parameters() for c in self.codecs]}

    def init(self, layout: Layout) -> State:
        """Return a tuple of the codecs' states."""
        return _joined([c.init(layout) for c in self.codecs])

    def out(self, space: Space) -> Space:
        """Return the space of the last codec's output; MisfitError if two neighbours do not fit."""
        for codec in self.codecs:
            space = codec.out(space)
        return space

    def lanes(self, extras: int, layout: Layout) -> int:
        """Return the lanes of the extras after the last codec."""
        for codec in self.codecs:
            extras = codec.lanes(extras, layout)
        return extras

    def check_cohort(self, cohort: int) -> None:
        """Run every codec's check of the number of senders."""
        for codec in self.codecs:
            codec.check_cohort(cohort)

    # --- adaptive thresholds ---

    def needs_mean_squares(self, state: State) -> bool:
        """Return whether `fitted` must run before `finish` in the round that starts from `state`."""
        return any(
            codec.needs_mean_squares(known)
            for codec, known in zip(self.codecs, state.shared, strict=True)
            if codec.fitting
        )

    def statistics(self, selected: Plain, state: State) -> NDArray[np.int64]:
        """Return one sender's mean squares of the output of `select`: shape (2 L,); see `Clip`."""
        at = self._fitted
        return self.codecs[at].statistics(selected, state.shared[at])

    def fitted(self, sums: NDArray[np.int64], count: int, state: State) -> State:
        """Return the state with thresholds fitted on the summed `statistics` of `count` senders."""
        at = self._fitted
        fit = self.codecs[at].fitted(sums, count, state.shared[at])
        return State((*state.shared[:at], fit, *state.shared[at + 1 :]), state.local)

    @property
    def _fitted(self) -> int:
        """Index of the fitted codec: at most one is."""
        for at, codec in enumerate(self.codecs):
            if codec.fitting:
                return at
        raise ConfigError("this chain has no thresholds to fit; Clip.history() or .exchange()")

    def memory(self, state: State) -> dict[str, NDArray[np.float64]]:
        """Return the shared state that must outlive the process, by name."""
        known: dict[str, NDArray[np.float64]] = {}
        for codec, own in zip(self.codecs, state.shared, strict=True):
            known |= codec.memory(own)
        return known

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Invert `memory`; each client's local state starts anew.

        Raises ProtocolError: malformed, or of codecs that this chain does not have.
        """
        state = _joined([c.recall(layout, memory) for c in self.codecs])
        if set(memory) - set(self.memory(state)):
            raise ProtocolError("the model's memory does not match the codecs of these terms")
        return state

    # --- encoding and decoding ---

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode through all codecs."""
        return self.finish(*self.select(plain, state))

    def select(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Run the first half of `encode`: a leading sparsifier's choice; everything without one."""
        if not self.sparse:
            return plain, state
        states = _states(state)
        plain, states[0] = self.codecs[0].encode(plain, states[0])
        if len(self.codecs) > 1:
            plain, beyond = self.codecs[1].cut(plain, states[1].shared)
            if beyond is not None:  # error feedback keeps values that clipping would lose
                assert plain.coords is not None
                cut = np.flatnonzero(beyond)  # mostly none
                states[0].local[plain.coords[cut]] += beyond[cut]
        return plain, _joined(states)

    def finish(self, selected: Plain, state: State) -> tuple[Plain, State]:
        """Run the second half of `encode`, on the output of `select`."""
        plain, states = selected, _states(state)
        for at, step in self._steps[1 if self.sparse else 0 :]:
            plain, states[at] = step.encode(plain, states[at])
        return plain, _joined(states)

    def encode_parts(
        self,
        parts: Iterable[NDArray[np.float32]],
        length: int,
        extras: NDArray[np.int64],
        state: State,
    ) -> tuple[Plain, State]:
        """Encode a vector of `length` that comes in parts of at most PIECE, in order.

        A fused pass (`fused`) never holds the whole vector.
        """
        [(_, step), *rest] = self._steps
        if hasattr(step, "encode_parts") and not rest:
            return step.encode_parts(parts, length, extras, state.shared[0]), state
        return self.encode(Plain(joined(parts, length), extras), state)

    def decode(
        self, total: Plain, senders: Sequence[int], state: State, *, reuse: bool = False
    ) -> tuple[Plain, State]:
        """Decode through all codecs, last first; with `reuse`, `total.values` may be overwritten."""
        states = _states(state)
        for at, step in reversed(self._steps):
            how = {} if step is self.codecs[at] else {"reuse": reuse}
            total, states[at] = step.decode(total, senders, states[at], **how)
        return total, _joined(states)


def chain(*codecs: Codec) -> Chain:
    """Return codecs in the order of encoding, checked for fit at once."""
    return Chain(codecs)


def _states(state: State) -> list[State]:
    return [State(s, loc) for s, loc in zip(state.shared, state.local, strict=True)]


def _joined(states: Sequence[State]) -> State:
    return State(tuple(s.shared for s in states), tuple(s.local for s in states))
