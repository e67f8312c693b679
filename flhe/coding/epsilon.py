"""What noise on the clear part is worth: FedML-HE's epsilon accounting, and what it does not say.

    parameter i           epsilon_i = Delta_i / b                        (Lemma 3.8)
    one release           epsilon = sum over clear i of epsilon_i        (Theorem 3.11)
    noise on all, clear   J = sum over all i of epsilon_i                (Remark 3.12)
    random p encrypted    (1 - p) J                                      (Remark 3.13)
    sensitive p encrypted (1 - p)^2 J                                    (Remark 3.14)
    several releases      their epsilons add up                          (Lemma 3.10)

An encrypted parameter counts 0 (Theorem 3.9): computationally, against whoever cannot decrypt.

Delta_i is by how much one person's data can change the value that leaves. Nothing bounds it but the
clipping threshold: with values in [-alpha, alpha] it is 2 alpha at worst, for any change of all of the
client's data. Remark 3.14 assumes that the Delta_i are spread uniformly over [0, 1] and that the
largest are encrypted: then (1 - p)^2 of the whole is left. Of equal Delta_i, 1 - p is left, whatever is
chosen; and what one measures of Delta_i on one's own data is no bound. So `Release.epsilon` is the
worst case by the thresholds, and the remarks' figures are there to compare with the paper. (Remark 3.13
says in words that the parameters *not* chosen with probability p are encrypted. Its formula is for the
chosen ones, and so is ours.)

The server's view is one client's clear part. Who opens the sum sees all parameters: with scope "clear"
the selected part reaches them without noise, and nothing is guaranteed against them.

What is taken as public: the thresholds, so those that follow the data (`Clip.history`, `Clip.exchange`)
are outside this account; the mask; and the example count that weighs an update, because the noise's
grid shows by what values were multiplied.

Source: FedML-HE, Sec. 3.2 and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.laplace import Scope
from flhe.errors import ConfigError


def spent(sensitivities: NDArray[Any], clear: NDArray[np.bool_], scale: float) -> float:
    """Theorem 3.11 for given sensitivities: the sum of Delta_i / b over the clear parameters.

    Parameters
    ----------
    sensitivities : NDArray
        Delta_i, (N,), nonnegative, in the units of the noise. On the noise's grid two values may be a
        step further apart (`Laplace.grid`, at most b / 1024), where that is not beyond 2 alpha.
    clear : NDArray
        bool (N,): which parameters leave in clear.
    scale : float
        b.

    Raises
    ------
    ConfigError
        Shapes that differ, a negative sensitivity or NaN, a scale that is not positive.
    """
    if sensitivities.shape != clear.shape or clear.dtype != np.bool_:
        raise ConfigError(
            f"sensitivities {sensitivities.shape} with {clear.dtype} {clear.shape} of clear "
            "parameters: takes two arrays of one shape, the second of them bool"
        )
    if not np.all(sensitivities >= 0):
        raise ConfigError("a sensitivity is negative or NaN; take absolute values")
    _check_scale(scale)
    return float(sensitivities[clear].sum(dtype=np.float64)) / scale


@dataclass(frozen=True, slots=True)
class LayerCount:
    """A layer, by numbers.

    Parameters
    ----------
    name : str
        Of the layer.
    values : int
        Its parameters.
    selected : int
        How many of them are encrypted.
    alpha : float
        Clipping threshold; infinity where values are not clipped.
    """

    name: str
    values: int
    selected: int
    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.selected <= self.values:
            raise ConfigError(
                f"layer {self.name!r}: {self.selected} of {self.values} parameters are selected; it "
                "must be 0 to all"
            )
        if not self.alpha > 0:
            raise ConfigError(f"layer {self.name!r}: alpha={self.alpha}, must be positive")


def layer_counts(
    segments: Iterable[tuple[str, int, int]],
    alphas: Iterable[float],
    coords: NDArray[np.uint32] | None = None,
) -> tuple[LayerCount, ...]:
    """Layers by number, from `Layout.segments()`, a threshold for each, and who is encrypted.

    Parameters
    ----------
    segments : iterable of (name, start, stop)
        Layers of the float lane.
    alphas : iterable of float
        One a layer.
    coords : NDArray, optional
        Encrypted coordinates, ascending, as `Support.coords` has them. None: nothing is encrypted.
    """
    if coords is None:
        coords = np.empty(0, np.uint32)
    pairs = list(zip(segments, alphas, strict=True))
    begins = np.searchsorted(coords, np.array([start for (_, start, _), _ in pairs], np.uint32))
    ends = np.searchsorted(coords, np.array([stop for (_, _, stop), _ in pairs], np.uint32))
    return tuple(
        LayerCount(name, stop - start, int(end - begin), alpha)
        for ((name, start, stop), alpha), begin, end in zip(pairs, begins, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Release:
    """One client's update, as it leaves once.

    Parameters
    ----------
    layers : tuple of LayerCount
        All of them.
    scale : float or None
        b of the Laplace noise, in the units of the thresholds; None for no noise.
    scope : "clear" or "all"
        Which parameters get noise.
    mapped : bool
        Whether a map chose the selection: those who open sums have seen it, without noise.
    """

    layers: tuple[LayerCount, ...]
    scale: float | None = None
    scope: Scope = "clear"
    mapped: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None:
            _check_scale(self.scale)

    @property
    def parameters(self) -> int:
        """N."""
        return sum(layer.values for layer in self.layers)

    @property
    def selected(self) -> int:
        """Parameters that are encrypted."""
        return sum(layer.selected for layer in self.layers)

    @property
    def ratio(self) -> float:
        """Share that is encrypted, p; 1 of an empty model."""
        return self.selected / self.parameters if self.parameters else 1.0

    def _sum(self, counts: Iterable[int]) -> float:
        """Worst-case epsilon of so many parameters of each layer."""
        pairs = [(count, layer.alpha) for count, layer in zip(counts, self.layers, strict=True)]
        if not any(count for count, _ in pairs):
            return 0.0
        if self.scale is None:
            return math.inf
        return math.fsum(2 * alpha * count / self.scale for count, alpha in pairs if count)

    @property
    def epsilon(self) -> float:
        """Theorem 3.11 at worst: 2 alpha / b for each clear parameter; against the server."""
        return self._sum(layer.values - layer.selected for layer in self.layers)

    @property
    def epsilon_readers(self) -> float:
        """Against those who open sums, of one client's noise; infinite unless all has it, no map."""
        if self.mapped or (self.scope == "clear" and self.selected):
            return math.inf
        return self.everything

    @property
    def everything(self) -> float:
        """J at worst (Remark 3.12): 2 alpha / b for every parameter."""
        return self._sum(layer.values for layer in self.layers)

    @property
    def random(self) -> float:
        """(1 - p) J (Remark 3.13)."""
        return self._share(1 - self.ratio)

    @property
    def sensitive(self) -> float:
        """(1 - p)^2 J (Remark 3.14): under the paper's assumption alone, see above."""
        return self._share((1 - self.ratio) ** 2)

    def _share(self, share: float) -> float:
        return share * self.everything if share else 0.0


def _check_scale(scale: float) -> None:
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale={scale} of the noise: must be finite and positive")
