"""Clip: cut every value at a clipping threshold alpha, and scale it to [-1, 1].

There is one alpha for all layers or one a layer. Scaling here lets the codecs behind work on one
range.

    Clip(bound)        alpha is given
    Clip.history()     alpha = c(bits) * sigma, sigma from the rounds before
    Clip.exchange()    alpha = c(bits) * sigma, sigma of this round's vectors

sigma^2 of a layer is the mean, over a round's senders, of its mean squares before clipping. Senders
add them up under encryption (`squares`), and c(bits) minimizes the quantizer's expected error
(`aciq`). `exchange` needs this sum before every update, `history` before the first one only. Later
updates carry their own mean squares in their extras. The readers of a sum set sigma^2 := (1 - BETA)
* sigma^2 + BETA * (the senders' mean). The mean *update* alone would underestimate the spread of
the clients' own updates, by up to sqrt(N).

Source: BatchCrypt, Sec. 4.3 (dACIQ), and FLASHE, Sec. 5.2 (a threshold from the global update
history only). Both fit sigma to extremes or to the mean update; flhe fits it to an encrypted second
moment.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding import aciq, squares
from flhe.coding.aciq import AT_ALPHA, MAX_ALPHA, MIN_ALPHA
from flhe.coding.base import WEIGHT, Codec, Fitting, Plain, Reals, Space, State
from flhe.coding.flatten import Layout, matches, raise_not_finite
from flhe.coding.quantize import Quantize
from flhe.coding.squares import Layers, Segments
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError, ProtocolError, logger
from flhe.math.buffers import empty, fixed
from flhe.math.prg import PIECE

WARN_CLIPPED = 0.01
"""Fraction of clipped values that triggers a warning."""

BETA = 0.5
"""Weight of a round in the history's sigma^2."""

MEMORY = "clip.mean-square"
"""Name of the history's sigma^2 in a model's memory."""

_LARGEST = float(np.finfo(np.float32).max)
"""Largest number of float32."""

Rule = Literal["fixed", "history", "exchange"]


@dataclass(frozen=True, slots=True)
class Clip(Codec):
    """Clip to [-alpha, alpha], then divide by alpha.

    Parameters
    ----------
    bound : float or mapping of str to float
        alpha, in the update's own units. A mapping gives alpha by layer name; `*` and `?` match as
        in file names, the first match counts, and a layer without a match is refused.
    rule : "fixed", "history" or "exchange"
        Source of alpha; see `history` and `exchange`.
    precision : int
        Bits of the `Quantize` behind an adaptive rule; the chain sets it.
    full_weight : int
        `max_examples` of the `Weigh` behind it, 0 without one; the chain sets it. If a client has n
        examples, more than that, its values are scaled by n / full_weight before cutting.
    """

    name: ClassVar[str] = "clip"
    cuts: ClassVar[bool] = True

    bound: float | Mapping[str, float] = 1.0
    rule: Rule = field(default="fixed", kw_only=True)
    precision: int = field(default=0, kw_only=True)
    full_weight: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.rule not in ("fixed", "history", "exchange"):
            raise ConfigError(f"Clip(rule={self.rule!r}): 'fixed', 'history' or 'exchange'")
        if self.adaptive and self.bound != 1.0:
            raise ConfigError(f"Clip.{self.rule}() finds its thresholds; give it no bound")
        for name, alpha in self._items():
            if type(name) is not str:
                raise ConfigError("Clip: thresholds must be by the names of layers")
            if not MIN_ALPHA <= alpha <= MAX_ALPHA:  # false for NaN
                raise ConfigError(
                    f"Clip({name}: {alpha}): alpha must lie between {MIN_ALPHA} and {MAX_ALPHA}"
                )

    @classmethod
    def history(cls) -> Clip:
        """Return a clip with thresholds from the mean squares of the rounds before; see above."""
        return cls(rule="history")

    @classmethod
    def exchange(cls) -> Clip:
        """Return a clip with thresholds from the mean squares of this round's vectors; see above."""
        return cls(rule="exchange")

    @property
    def adaptive(self) -> bool:
        """True if the thresholds follow the updates."""
        return self.rule != "fixed"

    def _items(self) -> list[tuple[str, float]]:
        if isinstance(self.bound, Mapping):
            return [(name, float(alpha)) for name, alpha in self.bound.items()]
        return [("*", float(self.bound))]

    def parameters(self) -> dict[str, Any]:
        """Return the thresholds as exact text, or the rule that sets them."""
        if self.adaptive:
            return {"name": self.name, "rule": self.rule}
        return {"name": self.name, "bound": [[name, alpha.hex()] for name, alpha in self._items()]}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> Clip:
        """Invert `parameters`, without the name."""
        if "rule" in stored:
            return cls(**stored)
        bound = {name: float.fromhex(alpha) for name, alpha in stored["bound"]}
        return cls(bound["*"] if list(bound) == ["*"] else bound)

    def summary(self) -> str:
        """Return the thresholds as text."""
        return f"clipped at {self.rule if self.adaptive else self.bound}"

    @property
    def fitting(self) -> Fitting:
        """Rounds in which thresholds are fitted on a sum of mean squares."""
        return {"fixed": "", "history": "first", "exchange": "always"}[self.rule]  # type: ignore[return-value]

    def informed(self, before: Sequence[Codec], behind: Sequence[Codec]) -> Clip:
        """Return the clip with the full weight and, for fitted thresholds, the bits behind it."""
        full_weight = max((codec.whole_weight for codec in behind), default=0)
        bits = [codec.value_bits for codec in behind if codec.value_bits is not None]
        if self.adaptive and not bits:
            raise MisfitError(
                f"Clip.{self.rule}() sets its thresholds by Quantize's bits; put Quantize(bits) behind "
                "it, or give the bound with Clip(bound)"
            )
        return replace(self, full_weight=full_weight, precision=max(bits) if self.adaptive else 0)

    def fused(self, behind: Sequence[Codec]) -> tuple[Any, int] | None:
        """Return one pass in place of six, with Weigh and Quantize behind it."""
        match behind:
            case [Weigh() as weigh, Quantize() as quantize, *_]:
                return Fused(self, weigh, quantize), 3
        return None

    def init(self, layout: Layout) -> State:
        """Return the layers, and their thresholds if given."""
        segments = list(layout.segments())
        bounds = (0, *(stop for _, _, stop in segments))
        if self.adaptive:
            return State(Layers(bounds))
        return State(Layers(bounds, tuple(self._given(name) for name, _, _ in segments)))

    def _given(self, layer: str) -> float:
        for pattern, alpha in self._items():
            if matches(layer, pattern):
                return alpha
        raise ConfigError(f"Clip: no threshold for layer {layer!r}; add it or a '*'")

    def segments(self, shared: Layers, coords: NDArray[np.uint32] | None = None) -> Segments:
        """Return runs of one alpha in a vector of the values at `coords`, by default of all values.

        Raises ProtocolError: no thresholds yet: the round's mean squares come first.
        """
        if shared.alphas is None:
            raise ProtocolError(
                f"Clip.{self.rule}() has no thresholds yet; mean squares come first"
            )
        return shared.segments(coords)

    def excess(self, extras: NDArray[np.int64]) -> float:
        """Return a client's example count divided by `full_weight`, at least 1."""
        if self.full_weight == 0 or extras.size <= WEIGHT:
            return 1.0
        return max(1.0, int(extras[WEIGHT]) / self.full_weight)

    # --- adaptive rules ---

    def needs_mean_squares(self, shared: Layers) -> bool:
        """Return whether `fitted` must run before the next update is encoded."""
        return shared.alphas is None

    def statistics(self, plain: Plain, shared: Layers) -> NDArray[np.int64]:
        """Return the mean squares of one client's values by layer, as extras, shape (2 L,).

        Raises NotFiniteError: NaN and infinity; RangeError: a mean square of 2**32 and more.
        """
        if not np.all(np.isfinite(plain.values)):
            raise_not_finite()
        tally = squares.Tally(shared.edges(plain.coords), self.excess(plain.extras))
        tally.add(plain.values)
        return tally.extras()

    def fitted(self, sums: NDArray[np.int64], count: int, shared: Layers) -> Layers:
        """Return layers with thresholds fitted on the summed `statistics` of `count` senders.

        Raises ProtocolError: sums of another length, or that `count` senders cannot reach.
        """
        fit = self._of(squares.mean(sums, count, shared.layers), shared)
        return fit._replace(ranged=True)

    def _of(self, mean_squares: Sequence[float], shared: Layers) -> Layers:
        alphas = aciq.thresholds(self.precision, mean_squares)
        return shared._replace(alphas=alphas, mean_squares=tuple(mean_squares), ranged=False)

    def told(self, tally: squares.Tally | None, shared: Layers) -> NDArray[np.int64]:
        """Return the mean squares in an update's extras: all of them for a history, else none.

        If the round's thresholds were fitted on its own mean squares, they are zeros. Both sums are
        opened: for a client in only one of them, their difference would reveal its mean squares.
        """
        if self.rule != "history":
            return np.empty(0, np.int64)
        return np.zeros(2 * shared.layers, np.int64) if tally is None else tally.extras()

    def tally(
        self, shared: Layers, coords: NDArray[np.uint32] | None = None, excess: float = 1.0
    ) -> squares.Tally | None:
        """Return an accumulator for an update's mean squares; None if the update sends none."""
        if self.rule != "history" or shared.ranged:
            return None
        return squares.Tally(shared.edges(coords), excess)

    def cut(self, plain: Plain, shared: Layers) -> tuple[Plain, NDArray[np.float32] | None]:
        """Return values within given thresholds, and the excess, which may be sent later.

        The excess is None where there is none, and for fitted thresholds: a history measures it, and
        other thresholds are not known yet when a client selects values.
        """
        if self.adaptive or not plain.values.size:
            return plain, None
        excess, segments = self.excess(plain.extras), self.segments(shared, plain.coords)
        if np.abs(plain.values).max() <= min(alpha for _, _, alpha in segments) / excess:
            return plain, None
        out = plain.values.copy()
        for start, stop, alpha in segments:
            bound = alpha / excess
            np.clip(out[start:stop], -bound, bound, out=out[start:stop])
        return plain._replace(values=out), plain.values - out

    def after(
        self, extras: NDArray[np.int64], count: int, shared: Layers
    ) -> tuple[NDArray[np.int64], Layers]:
        """Return opened extras without those of `encode`, and the next round's shared state."""
        if self.rule == "fixed":
            return extras, shared
        if self.rule == "exchange":
            return extras, Layers(shared.bounds)
        own = extras.size - 2 * shared.layers
        if own < 0 or shared.mean_squares is None:
            raise ProtocolError("Clip.history() opens a sum without the mean squares it needs")
        new = squares.mean(extras[own:], count, shared.layers)
        if shared.ranged:
            return extras[:own], shared._replace(ranged=False)
        pairs = zip(shared.mean_squares, new, strict=True)
        return extras[:own], self._of([(1 - BETA) * a + BETA * b for a, b in pairs], shared)

    def memory(self, shared: Layers) -> dict[str, NDArray[np.float64]]:
        """Return the memory that must outlive the process: the history's sigma^2, (L,), if any."""
        if self.rule != "history" or shared.mean_squares is None:
            return {}
        return {MEMORY: np.array(shared.mean_squares, np.float64)}

    def recall(self, layout: Layout, memory: Mapping[str, NDArray[np.float64]]) -> State:
        """Return the state from a model's memory; a fresh one if the memory holds none.

        Raises ProtocolError: anything but one mean square a layer.
        """
        state = self.init(layout)
        kept = memory.get(MEMORY)
        if self.rule != "history" or kept is None:
            return state
        if (
            kept.dtype != np.float64
            or kept.shape != (state.shared.layers,)
            or not np.all((kept >= 0) & (kept < squares.LIMIT))
        ):
            raise ProtocolError("the clipping history is not one mean square for each layer")
        return State(self._of(kept.tolist(), state.shared))

    # --- the codec's interface ---

    def out(self, space: Space) -> Reals:
        """Return reals within 1, for any input."""
        if not isinstance(space, Reals):
            raise MisfitError(f"Clip takes reals, got {space}; put it before Quantize")
        return Reals(1.0)

    def check_cohort(self, cohort: int) -> None:
        """Check that sums of mean squares fit 63 bits."""
        if self.adaptive and cohort > squares.MAX_SENDERS:
            most = f"at most {squares.MAX_SENDERS} fit, or give the bound with Clip(bound)"
            raise MisfitError(f"Clip.{self.rule}() with {cohort} clients overflows 63 bits; {most}")

    def lanes(self, extras: int, layout: Layout) -> int:
        """Return the extras unchanged; the history adds two a layer."""
        return extras + (2 * len(list(layout.segments())) if self.rule == "history" else 0)

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 to float32 within [-1, 1], shape (length,).

        Raises NotFiniteError: NaN or infinity; ProtocolError: no thresholds yet.
        """
        x = plain.values
        segments = self.segments(state.shared, plain.coords)
        if not np.all(np.isfinite(x)):
            raise_not_finite()
        out, excess = np.empty_like(x, np.float32), self.excess(plain.extras)
        clipped = 0
        for start, stop, alpha in segments:
            with np.errstate(over="ignore"):  # infinity is beyond alpha too, and is clipped
                scaled = x[start:stop] * _scale(excess, alpha)
            clipped += int(np.count_nonzero(np.abs(scaled) > AT_ALPHA))
            np.clip(scaled, -1, 1, out=out[start:stop])
        self.warn_clipped(clipped, x.size, excess)
        tally = self.tally(state.shared, plain.coords, excess)
        if tally is not None:
            tally.add(x)
        extras = np.concatenate([plain.extras, self.told(tally, state.shared)])
        return plain._replace(values=out, extras=extras), state

    def decode(self, total: Plain, senders: Sequence[int], state: State) -> tuple[Plain, State]:
        """Multiply by alpha."""
        out: NDArray[Any] = np.empty_like(total.values)
        for start, stop, alpha in self.segments(state.shared, total.coords):
            np.multiply(total.values[start:stop], alpha, out=out[start:stop])
        extras, shared = self.after(total.extras, len(senders), state.shared)
        return total._replace(values=out, extras=extras), State(shared)

    def warn_clipped(self, clipped: int, size: int, excess: float = 1.0) -> None:
        """Warn, on this node alone, of too many clipped values, without the fraction itself.

        Nothing is refused: refusals would reveal to a server how large an update is. With few bits,
        fitted thresholds cut more than 1% by design, without a warning.
        """
        half = clipped > size / 2
        if not half and (self.adaptive or clipped <= WARN_CLIPPED * size):
            return
        mend = "raise the clipping threshold"
        if self.rule == "history":
            mend = "the next rounds adapt the thresholds"
        elif self.adaptive:
            mend = "its spread is far from the others': use more bits, or Clip(bound)"
        logger.warning(
            "more than %s of the update was clipped; %s%s",
            "half" if half else "1%",
            mend,
            " (this node has more than max_examples)" if excess > 1 else "",
        )


@dataclass(frozen=True, slots=True)
class Fused:
    """Clip, Weigh and Quantize as one step, with the clip's state; raises the same errors.

    Encoding gives exactly the integers of the three steps in sequence, for the same rounding
    values. Decoding differs by at most the last bit of a float32, because the three factors are
    multiplied first.
    """

    clip: Clip
    weigh: Weigh
    quantize: Quantize

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Encode float32 to `quantize.dtype`, shape (length,)."""
        x = plain.values
        parts = (x[at : at + PIECE] for at in range(0, x.size, PIECE))
        return self.encode_parts(parts, x.size, plain.extras, state.shared, plain.coords), state

    def encode_parts(
        self,
        parts: Iterable[NDArray[np.float32]],
        length: int,
        extras: NDArray[Any],
        shared: Layers,
        coords: NDArray[np.uint32] | None = None,
    ) -> Plain:
        """Encode a vector of `length` in parts of at most PIECE, in order, as `encode` does."""
        from flhe.math import kernels

        clip, quantize = self.clip, self.quantize
        segments = clip.segments(shared, coords)
        excess = clip.excess(extras)
        tally = clip.tally(shared, coords, excess)
        out = empty(length, quantize.dtype)
        weight = self.weigh.factor(extras)
        outside = at = 0
        source, short = quantize.source(), quantize.dtype is np.int16
        usual = kernels.quantize_short if short else kernels.quantize
        for part in parts:
            beyond = 0
            for start, stop, alpha in _within(segments, at, at + part.size):
                draws = source.compiled(stop - start) if short else None
                kernel = kernels.quantize_streamed
                if draws is None:
                    kernel, draws = usual, source.next(stop - start)
                beyond += kernel(
                    fixed(part[start - at : stop - at]),
                    _scale(excess, alpha),
                    AT_ALPHA,
                    weight,
                    float(quantize.levels),
                    draws,
                    quantize.offset,
                    out[start:stop],
                )
            if beyond and not np.all(np.isfinite(part)):
                raise_not_finite()
            if tally is not None:
                tally.add(part)
            outside += beyond
            at += part.size
        clip.warn_clipped(outside, length, excess)
        extras = np.concatenate([extras, clip.told(tally, shared)])
        return Plain(out, quantize.split(extras), coords)

    def decode(
        self, total: Plain, senders: Sequence[int], state: State, *, reuse: bool = False
    ) -> tuple[Plain, State]:
        """Decode integers to the float32 weighted mean.

        With `reuse`, the mean overwrites 32-bit integers in `total.values`.
        """
        from flhe.math import kernels

        clip, quantize = self.clip, self.quantize
        if total.extras.size:
            quantize.check_sum(int(np.abs(total.extras.astype(np.int64)).max()), len(senders))
        extras = quantize.join(total.extras)
        factor = self.weigh.mean_factor(total._replace(extras=extras), senders) * quantize.step
        segments = clip.segments(state.shared, total.coords)
        extras, shared = clip.after(extras, len(senders), state.shared)
        reuse = reuse and total.values.dtype == np.int32 and total.values.flags.c_contiguous
        out = total.values.view(np.float32) if reuse else empty(total.values.size, np.float32)
        scratch = np.empty(PIECE if reuse else 0, np.float32)
        bound = len(senders) * quantize.levels
        for begin, end, alpha in segments:
            for start in range(begin, end, PIECE):  # pieces that stay in cache
                stop = min(start + PIECE, end)
                # The kernel writes to separate memory: in place it would be slow.
                target = scratch[: stop - start] if reuse else out[start:stop]
                if kernels.dequantize(
                    fixed(total.values[start:stop]), factor * alpha, bound, target
                ):
                    quantize.check_sum(bound + 1, len(senders))
                if reuse:
                    out[start:stop] = target
        return total._replace(values=out, extras=extras), State(shared)


def _scale(excess: float, alpha: float) -> np.float32:
    """Return excess / alpha as far as float32 holds it: infinity would make NaN of 0."""
    return np.float32(min(excess / alpha, _LARGEST))


def _within(segments: Segments, start: int, stop: int) -> Iterator[tuple[int, int, float]]:
    first = bisect.bisect_right(segments, start, key=lambda segment: segment[1])
    for begin, end, alpha in itertools.islice(segments, first, None):
        if begin >= stop:
            return
        yield max(begin, start), min(end, stop), alpha
