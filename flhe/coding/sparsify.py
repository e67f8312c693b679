"""TopK: send the largest values of every layer, and keep the others for the next round.

The values that a client does not send, its residual, are added to the next update *before*
choosing. Chosen values plus new residuals are updates plus old residuals, exactly.

The number of values kept does not depend on the values, so it reveals nothing about them. Of equal
magnitudes those with the lowest coordinates are kept, and zeros if there is nothing else.

Running statistics travel whole. A residual of a variance, added rounds after it was measured,
overshoots, and one negative variance makes a model's predictions useless. Small arrays travel whole
too, because they cost nothing.

`Weigh` divides by the weight of the whole round, even if few clients sent a coordinate. The paper
normalizes by the senders of each coordinate, which makes rare coordinates larger, and their errors
with them.

Source: FLASHE, Algorithm 1, lines 15-21 and 30; the schedule is that of its Sec. 6.4, where
sparsity grows to 20%, 60%, 80% and 90% every 10 rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Plain, Reals, Space, State
from flhe.coding.flatten import Layout, matches, raise_not_finite
from flhe.coding.support import MAX_LENGTH
from flhe.errors import ConfigError, MisfitError, ProtocolError
from flhe.math.buffers import empty, fixed

WARMUP = (0.8, 0.4, 0.2)
"""Shares kept before the final one, each for `warmup` rounds."""

ROUNDS = "topk.rounds"
"""Name of the number of opened rounds in a checkpoint."""

MAX_ROUNDS = 1 << 53
"""Above this a float64 does not hold every number of rounds."""

WHOLE = ("*running_*", "*moving_*")
"""Names of running statistics, as PyTorch and Keras have them."""

SMALL = 256
"""Default maximum size of an array that travels whole, in values."""


class Progress(NamedTuple):
    """Shared state of all readers.

    `bounds` are the starts of the layers, and the end of the last one; `whole`: the layers that
    travel whole; `rounds`: the number of rounds opened so far.
    """

    bounds: tuple[int, ...]
    whole: tuple[bool, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class TopK(Codec):
    """Keep the share `ratio` of every layer, the largest by magnitude.

    Parameters
    ----------
    ratio : float
        Share kept in the end, above 0 and up to 1; read as the decimal number it is written as, so
        that 0.1 of 30 values is 3.
    warmup : int
        Rounds for each of the shares 0.8, 0.4 and 0.2 that lie above `ratio`; 0 for none of them.
    whole : tuple of str
        Names of arrays that travel whole in every round; `*` and `?` match as in file names.
    small : int
        Arrays of at most this many values travel whole too.
    """

    name: ClassVar[str] = "topk"
    place: ClassVar[Literal["first"]] = "first"
    sparse: ClassVar[bool] = True

    ratio: float
    warmup: int = 10
    whole: tuple[str, ...] = WHOLE
    small: int = SMALL

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:  # false for NaN
            raise ConfigError(f"TopK(ratio={self.ratio}): ratio must be above 0 and at most 1")
        if type(self.warmup) is not int or self.warmup < 0:
            raise ConfigError(f"TopK(warmup={self.warmup}): rounds cannot be negative")
        if type(self.small) is not int or self.small < 0:
            raise ConfigError(f"TopK(small={self.small!r}): a number of values, 0 for none")
        if type(self.whole) not in (tuple, list) or not all(type(n) is str for n in self.whole):
            raise ConfigError("TopK: arrays that travel whole are a tuple of names")
        object.__setattr__(self, "whole", tuple(self.whole))

    @property
    def least_share(self) -> float:
        """Final share of each layer's values; small layers travel whole."""
        return self.ratio

    def parameters(self) -> dict[str, Any]:
        """Return the ratio as decimal text, the warm-up, and the arrays that travel whole."""
        return {
            "name": self.name,
            "ratio": str(float(self.ratio)),
            "warmup": self.warmup,
            "whole": list(self.whole),
            "small": self.small,
        }

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> TopK:
        """Invert `parameters`, without the name."""
        return cls(**{**stored, "ratio": float(stored["ratio"])})

    def summary(self) -> str:
        """Return the share that is sent as text."""
        return f"top {self.ratio}"

    def init(self, layout: Layout) -> State:
        """Return the layers and zero rounds as shared state, without a residual.

        Raises ConfigError: a layout of 2**31 values or more.
        """
        segments = list(layout.segments())
        bounds = (0, *(stop for _, _, stop in segments))
        if bounds[-1] > MAX_LENGTH:
            raise ConfigError(f"TopK: {bounds[-1]} values, at most {MAX_LENGTH} are taken")
        whole = tuple(
            stop - start <= self.small or any(matches(name, one) for one in self.whole)
            for name, start, stop in segments
        )
        return State(shared=Progress(bounds, whole, 0))

    def out(self, space: Space) -> Reals:
        """Return reals without a bound, since residuals add up; so Clip goes after this."""
        if not isinstance(space, Reals):
            raise MisfitError(f"TopK takes reals, got {space}; put it before Quantize")
        return Reals(math.inf)

    def share(self, rounds: int) -> Fraction:
        """Return the share of values kept after `rounds` opened rounds, exactly as written."""
        steps = [share for share in WARMUP if share > self.ratio] if self.warmup else []
        at = rounds // self.warmup if steps else 0
        return Fraction(str(float(steps[at] if at < len(steps) else self.ratio)))

    def keep(self, progress: Progress) -> NDArray[np.int64]:
        """Return how many values each layer sends: all, or its share, rounded up; (layers,)."""
        share = self.share(progress.rounds)
        sizes = np.diff(np.array(progress.bounds, np.int64)).tolist()
        kept = zip(sizes, progress.whole, strict=True)
        return np.array(
            [size if whole else math.ceil(share * size) for size, whole in kept], np.int64
        )

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 (length,) to chosen values and their coordinates, float32 and uint32 (k,).

        The tentative state holds the new residual, float32 (length,).

        Raises MisfitError: a vector that is sparse already, or does not have the layout's length;
        RangeError: NaN or infinity in the update, or in its sum with the residual.
        """
        from flhe.math import sparse_kernels

        progress: Progress = state.shared
        if plain.coords is not None:
            raise MisfitError("TopK takes dense updates, got a sparse one; sparsify only once")
        length = progress.bounds[-1]
        x = np.ascontiguousarray(plain.values, np.float32)
        old = np.empty(0, np.float32) if state.local is None else state.local
        if x.shape != (length,) or (state.local is not None and old.shape != (length,)):
            raise MisfitError(f"TopK: update and residual must have the layout's {length} values")
        keep = self.keep(progress)
        total = int(keep.sum())
        # One more place than is filled: see the kernel.
        coords, values = np.empty(total + 1, np.uint32), np.empty(total + 1, np.float32)
        residual = empty(length, np.float32)
        starts = np.array(progress.bounds, np.int64)
        words = np.empty((int(np.diff(starts).max(initial=0)) + 63) >> 6, np.uint64)
        sample = np.empty(sparse_kernels.SAMPLE, np.float32)
        space = words, words.view(np.uint32), sample, sample.view(np.int32)
        made = coords, values, residual, residual.view(np.int32)
        if not sparse_kernels.top_k(fixed(x), fixed(old), starts, keep, *space, *made):
            raise_not_finite()
        chosen = plain._replace(values=values[:total], coords=coords[:total])
        return chosen, State(progress, residual)

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Decode a sum over a union of coordinates to float32 (length,), zero for unsent values.

        Values float32 or float64 (u,), coords uint32 (u,). A dense sum passes unchanged. Both count
        one more opened round.

        Raises ProtocolError: coordinates that do not ascend or lie beyond the layout, so the sum
        was not made of the senders' updates.
        """
        from flhe.math import coordinate_kernels

        progress: Progress = state.shared
        after = State(progress._replace(rounds=progress.rounds + 1), state.local)
        if total.coords is None:
            return total, after
        values = total.values
        if values.shape != total.coords.shape:
            raise ProtocolError(
                "the sum does not have one value a coordinate; the round is refused"
            )
        out = empty(progress.bounds[-1], np.float32)
        out[:] = 0
        if not coordinate_kernels.scatter(total.coords, values, out):
            raise ProtocolError(
                "the sum's coordinates do not ascend or lie beyond the layout; the round is refused"
            )
        return total._replace(values=out, coords=None), after

    def memory(self, shared: Progress) -> dict[str, NDArray[np.float64]]:
        """Return the part of the shared state for a checkpoint: the number of rounds."""
        return {ROUNDS: np.array([shared.rounds], np.float64)}

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Return the state from a checkpoint's memory, fresh if it holds none; no residual.

        Raises ProtocolError: an invalid number of rounds.
        """
        state = self.init(layout)
        kept = memory.get(ROUNDS)
        if kept is None:
            return state
        if kept.shape != (1,) or kept.dtype != np.float64:
            raise ProtocolError("checkpoint: TopK's rounds are not one number")
        rounds = float(kept[0])
        if not (0 <= rounds <= MAX_ROUNDS and rounds.is_integer()):
            raise ProtocolError("checkpoint: TopK's rounds are not a number of rounds")
        return State(state.shared._replace(rounds=int(rounds)))


def merged(
    values: NDArray[np.float32], coords: NDArray[np.uint32], residual: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the whole update as a new residual, for a round whose sum does not hold it.

    `values` and `coords`, shape (k,), are the encoded ones; `residual`, shape (length,), is the
    remainder. Exact where the residual is zero at the coordinates: everywhere except at clipped
    values.
    """
    whole = residual.copy()
    whole[coords] += values
    return whole
