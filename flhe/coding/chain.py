"""chain(): codecs one after the other, checked when built.

    chain(Clip(1.0), Weigh(max_examples=5000), Quantize(16))
    chain(TopK(...), Clip.history(), Weigh(max_examples=5000), Quantize(16), Permute())

Encoding has two halves where a protocol needs something in between: `select` chooses what travels, and
`finish` does the rest. Between them come the sums that adaptive thresholds are made of: `statistics` of
every sender, added up, go into `fitted`.

Where Clip, Weigh and Quantize stand together, their loops run as one (`fused`): one pass over the
vector instead of six, with the same integers as the three would give for the same rounding values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Plain, State
from flhe.coding.clip import Clip
from flhe.coding.flatten import Layout, joined
from flhe.coding.fused import Fused
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.spaces import Reals, Space
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, ProtocolError


@dataclass(frozen=True, slots=True)
class Chain(Codec):
    """Several codecs as one; `chain` builds it.

    Parameters
    ----------
    codecs : tuple[Codec, ...]
        In the order of encoding.
    fuse : bool
        Run known triples in one pass. The law tests turn it off to compare.
    """

    codecs: tuple[Codec, ...]
    fuse: bool = True
    _steps: tuple[tuple[int, Codec | Fused], ...] = field(init=False, repr=False, compare=False)
    """What runs, and which codec's state it works on."""

    def __post_init__(self) -> None:
        if not self.codecs:
            raise ConfigError("chain(): needs at least one codec")
        self._check_sparse()
        self.out(Reals(float("inf")))
        kinds = [type(c).__name__ for c in self.codecs]
        if twice := next((k for k in kinds if kinds.count(k) > 1), None):
            raise MisfitError(f"chain(): {twice} stands in it twice; once is enough")
        object.__setattr__(self, "codecs", tuple(self._informed(c) for c in self.codecs))
        steps: list[tuple[int, Codec | Fused]] = list(enumerate(self.codecs))
        for at in range(len(steps) - 2 if self.fuse else 0):
            match self.codecs[at : at + 3]:
                case (Clip() as clip, Weigh() as weigh, Quantize() as quantize):
                    steps[at : at + 3] = [(at, Fused(clip, weigh, quantize))]
        object.__setattr__(self, "_steps", tuple(steps))

    def _check_sparse(self) -> None:
        for at, codec in enumerate(self.codecs):
            if isinstance(codec, TopK) and at > 0:
                raise MisfitError("chain(): TopK chooses from the whole update; put it first")
            if isinstance(codec, Permute) and at < len(self.codecs) - 1:
                raise MisfitError("chain(): Permute hides where values belong; put it last")
            if isinstance(codec, Permute) and not self.sparse:
                raise MisfitError("chain(): Permute is for sparse updates; put TopK first")

    def _informed(self, codec: Codec) -> Codec:
        """The codec itself, or a Clip and a Weigh that know of each other, and a Clip of the bits."""
        kinds = [type(c) for c in self.codecs]
        if isinstance(codec, Weigh):  # of one example each, nobody has more
            scaled = codec.max_examples > 1 and Clip in kinds[: kinds.index(Weigh)]
            return dataclasses.replace(codec, scaled=scaled)
        if not isinstance(codec, Clip):
            return codec
        behind = (c for c in self.codecs[kinds.index(Clip) :] if isinstance(c, Weigh))
        weigh = next(behind, None)
        codec = dataclasses.replace(codec, full_weight=0 if weigh is None else weigh.max_examples)
        if not codec.adaptive:
            return codec
        bits = next((c.bits for c in self.codecs if isinstance(c, Quantize)), None)
        if bits is None:
            raise MisfitError(
                f"Clip.{codec.rule}() sets its thresholds by Quantize's bits; put Quantize(bits) "
                "behind it, or give the bound with Clip(bound)"
            )
        return dataclasses.replace(codec, bits=bits)

    @property
    def sparse(self) -> bool:
        """Whether a sparsifier comes first."""
        return isinstance(self.codecs[0], TopK)

    def parameters(self) -> dict[str, Any]:
        """Parameters of each, in order."""
        return {"name": "chain", "codecs": [c.parameters() for c in self.codecs]}

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

    def error(
        self, layout: Layout, count: int, inner: float = 0.0, state: State | None = None
    ) -> float:
        """The errors of the codecs, last first, each scaled by those that decode after it.

        Adaptive thresholds are not known ahead: their error is infinite without the `state` that
        has them.
        """
        shared = state.shared if state else (None,) * len(self.codecs)
        for codec, known in zip(reversed(self.codecs), reversed(shared), strict=True):
            if isinstance(codec, Clip):
                inner = codec.error(layout, count, inner, known)
            else:
                inner = codec.error(layout, count, inner)
        return inner

    # --- adaptive thresholds ---

    def needs_mean_squares(self, state: State) -> bool:
        """Whether `fitted` must come before `finish` in the round that starts from `state`."""
        return any(clip.needs_mean_squares(state.shared[at]) for at, clip in self._adaptive)

    def statistics(self, selected: Plain, state: State) -> NDArray[np.int64]:
        """What one sender adds to the mean squares, of what `select` gave: shape (2 L,); see `Clip`."""
        at, clip = self._fitting
        return clip.statistics(selected, state.shared[at])

    def fitted(self, sums: NDArray[np.int64], count: int, state: State) -> State:
        """With the thresholds that summed `statistics` of `count` senders give; see `Clip`."""
        at, clip = self._fitting
        fit = clip.fitted(sums, count, state.shared[at])
        return State((*state.shared[:at], fit, *state.shared[at + 1 :]), state.local)

    @property
    def _adaptive(self) -> list[tuple[int, Clip]]:
        """Where an adaptive Clip stands, and what it is: one at most."""
        return [(i, c) for i, c in enumerate(self.codecs) if isinstance(c, Clip) and c.adaptive]

    @property
    def _fitting(self) -> tuple[int, Clip]:
        if not (found := self._adaptive):
            raise ConfigError("this chain has no thresholds to fit; Clip.history() or .exchange()")
        return found[0]

    def memory(self, state: State) -> dict[str, NDArray[np.float64]]:
        """What all readers share and must outlive the process, by name."""
        known: dict[str, NDArray[np.float64]] = {}
        for codec, own in zip(self.codecs, state.shared, strict=True):
            known |= codec.memory(own)
        return known

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Inverse of `memory`; what is each client's own starts anew.

        Raises
        ------
        ProtocolError
            Malformed, or of codecs that this chain does not have.
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
        clip = self.codecs[1] if len(self.codecs) > 1 else None
        if isinstance(clip, Clip):
            plain, beyond = clip.cut(plain, states[1].shared)
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
        match self._steps:
            case ((_, Fused() as fused),):
                return fused.encode_parts(parts, length, extras, state.shared[0]), state
        return self.encode(Plain(joined(parts, length), extras), state)

    def decode(
        self, total: Plain, senders: Sequence[int], state: State, *, reuse: bool = False
    ) -> tuple[Plain, State]:
        """Decode through all codecs, last first; with `reuse`, `total.values` may be overwritten."""
        states = _states(state)
        for at, step in reversed(self._steps):
            how = {"reuse": reuse} if isinstance(step, Fused) else {}
            total, states[at] = step.decode(total, senders, states[at], **how)
        return total, _joined(states)


def chain(*codecs: Codec) -> Chain:
    """Codecs in the order of encoding, checked for fit here and now."""
    return Chain(codecs)


def _states(state: State) -> list[State]:
    return [State(s, loc) for s, loc in zip(state.shared, state.local, strict=True)]


def _joined(states: Sequence[State]) -> State:
    return State(tuple(s.shared for s in states), tuple(s.local for s in states))
