"""chain(): codecs one after the other, checked when built.

    chain(Clip(1.0), Weigh(max_examples=5000), Quantize(16))

Where Clip, Weigh and Quantize stand together, their loops run as one (`fused`): one pass over the
vector instead of six, with the same integers as the three would give for the same rounding values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding import fused
from flhe.coding.base import Codec, Plain, State
from flhe.coding.clip import Clip
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError
from flhe.spaces import Reals, Space


@dataclass(frozen=True, slots=True)
class Chain:
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

    def __post_init__(self) -> None:
        if not self.codecs:
            raise ConfigError("chain(): needs at least one codec")
        self.out(Reals(float("inf")))
        kinds = [type(c).__name__ for c in self.codecs]
        if twice := next((k for k in kinds if kinds.count(k) > 1), None):
            raise MisfitError(f"chain(): {twice} stands in it twice; once is enough")

    def parameters(self) -> dict[str, Any]:
        """Parameters of each, in order."""
        return {"name": "chain", "codecs": [c.parameters() for c in self.codecs]}

    def init(self, layout: Layout) -> State:
        """A tuple of the codecs' states."""
        states = [c.init(layout) for c in self.codecs]
        return State(tuple(s.shared for s in states), tuple(s.local for s in states))

    def out(self, space: Space) -> Space:
        """Space of the last codec's output; MisfitError where two neighbours do not fit."""
        for codec in self.codecs:
            space = codec.out(space)
        return space

    def lanes(self, extras: int) -> int:
        """Lanes of the extras after the last codec."""
        for codec in self.codecs:
            extras = codec.lanes(extras)
        return extras

    def check_cohort(self, cohort: int) -> None:
        """Whatever any of the codecs has to say about the number of senders."""
        for codec in self.codecs:
            check = getattr(codec, "check_cohort", None)
            if check is not None:
                check(cohort)

    def error(self, layout: Layout, count: int, inner: float = 0.0) -> float:
        """The errors of the codecs, last first, each scaled by those that decode after it."""
        for codec in reversed(self.codecs):
            inner = codec.error(layout, count, inner)
        return inner

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode through all codecs."""
        states = _states(state)
        at = 0
        while at < len(self.codecs):
            match self.codecs[at : at + 3]:
                case (Clip() as clip, Weigh() as weigh, Quantize() as quantize) if self.fuse:
                    plain = fused.encode(clip, weigh, quantize, plain, states[at].shared)
                    at += 3
                case (codec, *_):
                    plain, states[at] = codec.encode(plain, states[at])
                    at += 1
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
        match self.codecs:
            case (Clip() as clip, Weigh() as weigh, Quantize() as quantize) if self.fuse:
                segments = state.shared[0]
                plain = fused.encode_parts(clip, weigh, quantize, parts, length, extras, segments)
                return plain, state
        values = np.empty(length, np.float32)
        at = 0
        for part in parts:
            values[at : at + part.size] = part
            at += part.size
        return self.encode(Plain(values, extras), state)

    def decode(
        self, total: Plain, senders: Sequence[int], state: State, *, reuse: bool = False
    ) -> tuple[Plain, State]:
        """Decode through all codecs, last first; with `reuse`, `total.values` may be overwritten."""
        states = _states(state)
        at = len(self.codecs)
        while at > 0:
            match self.codecs[max(at - 3, 0) : at]:
                case (Clip() as clip, Weigh() as weigh, Quantize() as quantize) if self.fuse:
                    shared = states[at - 3].shared
                    total = fused.decode(clip, weigh, quantize, total, senders, shared, reuse=reuse)
                    at -= 3
                case (*_, codec):
                    at -= 1
                    total, states[at] = codec.decode(total, senders, states[at])
        return total, _joined(states)


def chain(*codecs: Codec) -> Chain:
    """Codecs in the order of encoding, checked for fit here and now."""
    return Chain(codecs)


def _states(state: State) -> list[State]:
    return [State(s, loc) for s, loc in zip(state.shared, state.local, strict=True)]


def _joined(states: Sequence[State]) -> State:
    return State(tuple(s.shared for s in states), tuple(s.local for s in states))
