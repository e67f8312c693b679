"""chain(): codecs one after the other, checked when built.

    chain(Clip(1.0), Weigh(max_examples=5000), Quantize(16))
    chain(TopK(...), Clip.history(), Weigh(max_examples=5000), Quantize(16), Permute())

Encoding has two halves: `select` chooses what travels, and `finish` does the rest. Between them come
the sums that adaptive thresholds are made of: `statistics` of all senders, added up, go into `fitted`.

Where Clip, Weigh and Quantize stand together, their loops run as one (`flhe.coding.clip.Fused`).
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
    """Several codecs as one, in the order of encoding; `chain` builds it.

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
            raise MisfitError(f"chain(): {type(twice).__name__} stands in it twice; once is enough")
        informed = tuple(
            codec.informed(self.codecs[:at], self.codecs[at + 1 :])
            for at, codec in enumerate(self.codecs)
        )
        object.__setattr__(self, "codecs", informed)
        object.__setattr__(self, "_steps", tuple(self._fused()))

    def _fused(self) -> Iterator[tuple[int, Any]]:
        """What runs, and which codec's state it works on."""
        at = 0
        while at < len(self.codecs):
            codec = self.codecs[at]
            fusion = codec.fused(self.codecs[at + 1 :]) if self.fuse else None
            step, count = fusion or (codec, 1)
            yield at, step
            at += count

    # --- what the codecs declare ---

    @property
    def sparse(self) -> bool:
        """Whether some coordinates are sent only."""
        return any(codec.sparse for codec in self.codecs)

    @property
    def least_share(self) -> float:
        """Smallest share of the values that an update has in any round, 0 to 1."""
        return math.prod(codec.least_share for codec in self.codecs)

    @property
    def hides(self) -> bool:
        """Whether the coordinates that are sent are hidden."""
        return any(codec.hides for codec in self.codecs)

    @property
    def makes_integers(self) -> bool:
        """Whether what comes out are integers, which schemes add."""
        return any(codec.value_bits is not None for codec in self.codecs)

    @property
    def bits(self) -> int:
        """Bits of one value; 0 where the cohort is to say."""
        return max(codec.value_bits or 0 for codec in self.codecs)

    @property
    def max_examples(self) -> int:
        """Example count that is weighed whole; 0 where nothing is weighed."""
        return max(codec.whole_weight for codec in self.codecs)

    @property
    def weighted(self) -> bool:
        """Whether example counts weigh."""
        return self.max_examples > 1

    @property
    def fitting(self) -> Fitting:
        """When a round begins with a sum that thresholds are fitted on."""
        return next((codec.fitting for codec in self.codecs if codec.fitting), "")

    @property
    def mechanism(self) -> Mechanism | None:
        """What differential privacy opened sums have; None for none."""
        return next(filter(None, (codec.mechanism for codec in self.codecs)), None)

    @property
    def promised(self) -> Mapping[str, float]:
        """What an app must say that it did."""
        return {name: value for codec in self.codecs for name, value in codec.promised.items()}

    @property
    def of_gradients(self) -> bool:
        """Whether it holds only for sums of gradients, one a record."""
        return any(codec.of_gradients for codec in self.codecs)

    def segments(self, layout: Layout) -> Segments:
        """Runs (start, stop, alpha) of the thresholds that are given; ConfigError where none are."""
        for at, codec in enumerate(self.codecs):
            if codec.cuts and not codec.fitting:
                return codec.segments(self.init(layout).shared[at])
        raise ConfigError(
            "this chain has no thresholds that are known ahead; put Clip(bound) into it"
        )

    def summary(self) -> str:
        """What it does, in words, for logs."""
        return ", ".join(filter(None, (codec.summary() for codec in self.codecs)))

    def settled(self, bits: int) -> Chain:
        """The chain with so many bits a value."""
        return self if bits == self.bits else self._each(lambda codec: codec.settled(bits))

    def keyed(self, permutation: Permutation | None) -> Chain:
        """The chain with the secret order of one attempt, where coordinates are hidden."""
        return self._each(lambda codec: codec.keyed(permutation)) if self.hides else self

    def counting_on(self, honest: int) -> Chain:
        """The chain of one member, where `honest` members add noise to any sum that is opened."""
        return self._each(lambda codec: codec.counting_on(honest)) if self.mechanism else self

    def _each(self, change: Callable[[Codec], Codec]) -> Chain:
        return Chain(tuple(map(change, self.codecs)), self.fuse)

    def parameters(self) -> dict[str, Any]:
        """Parameters of each, in order."""
        return {"name": self.name, "codecs": [c.parameters() for c in self.codecs]}

    def init(self, layout: Layout) -> State:
        """A tuple of the codecs' states."""
        return _joined([c.init(layout) for c in self.codecs])

    def out(self, space: Space) -> Space:
        """Space of the last codec's output; MisfitError where two neighbours do not fit."""
        for codec in self.codecs:
            space = codec.out(space)
        return space

    def lanes(self, extras: int, layout: Layout) -> int:
        """Lanes of the extras after the last codec."""
        for codec in self.codecs:
            extras = codec.lanes(extras, layout)
        return extras

    def check_cohort(self, cohort: int) -> None:
        """Whatever any of the codecs has to say about the number of senders."""
        for codec in self.codecs:
            codec.check_cohort(cohort)

    # --- adaptive thresholds ---

    def needs_mean_squares(self, state: State) -> bool:
        """Whether `fitted` must come before `finish` in the round that starts from `state`."""
        return any(
            codec.needs_mean_squares(known)
            for codec, known in zip(self.codecs, state.shared, strict=True)
            if codec.fitting
        )

    def statistics(self, selected: Plain, state: State) -> NDArray[np.int64]:
        """What one sender adds to the mean squares, of what `select` gave: shape (2 L,); see `Clip`."""
        at = self._fitted
        return self.codecs[at].statistics(selected, state.shared[at])

    def fitted(self, sums: NDArray[np.int64], count: int, state: State) -> State:
        """With the thresholds that summed `statistics` of `count` senders give; see `Clip`."""
        at = self._fitted
        fit = self.codecs[at].fitted(sums, count, state.shared[at])
        return State((*state.shared[:at], fit, *state.shared[at + 1 :]), state.local)

    @property
    def _fitted(self) -> int:
        """Where the codec stands that is fitted: one at most."""
        for at, codec in enumerate(self.codecs):
            if codec.fitting:
                return at
        raise ConfigError("this chain has no thresholds to fit; Clip.history() or .exchange()")

    def memory(self, state: State) -> dict[str, NDArray[np.float64]]:
        """What all readers share and must outlive the process, by name."""
        known: dict[str, NDArray[np.float64]] = {}
        for codec, own in zip(self.codecs, state.shared, strict=True):
            known |= codec.memory(own)
        return known

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Inverse of `memory`; what is each client's own starts anew.

        Raises ProtocolError: malformed, or of codecs that this chain does not have.
        """
        state = _joined([c.recall(layout, memory) for c in self.codecs])
        if set(memory) - set(self.memory(state)):
            raise ProtocolError("the model remembers what the codecs of these terms do not know")
        return state

    # --- encoding and decoding ---

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode through all codecs."""
        return self.finish(*self.select(plain, state))

    def select(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """The first half of `encode`: what a leading sparsifier chooses; everything without one."""
        if not self.sparse:
            return plain, state
        states = _states(state)
        plain, states[0] = self.codecs[0].encode(plain, states[0])
        if len(self.codecs) > 1:
            plain, beyond = self.codecs[1].cut(plain, states[1].shared)
            if beyond is not None:  # what clipping would lose, error feedback keeps
                states[0].local[plain.coords] += beyond
        return plain, _joined(states)

    def finish(self, selected: Plain, state: State) -> tuple[Plain, State]:
        """The second half of `encode`, of what `select` gave."""
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

        What runs as one pass (`fused`) never holds it as a whole.
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
    """Codecs in the order of encoding, checked for fit here and now."""
    return Chain(codecs)


def _states(state: State) -> list[State]:
    return [State(s, loc) for s, loc in zip(state.shared, state.local, strict=True)]


def _joined(states: Sequence[State]) -> State:
    return State(tuple(s.shared for s in states), tuple(s.local for s in states))
