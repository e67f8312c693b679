"""What leaves in clear over a run, and what its noise is worth; see `flhe.coding.epsilon`.

The server counts, from public terms alone. A mask that only members know may select values of any
layer, so the worst case is taken: those with the smallest clipping thresholds are the encrypted ones.
"""

from __future__ import annotations

import math

from flhe.coding.clip import Clip
from flhe.coding.epsilon import LayerCount, Release
from flhe.coding.flatten import Layout
from flhe.coding.privacy_report import PrivacyReport
from flhe.rounds.selection import fixed_mask
from flhe.rounds.terms import Terms


def release_of(terms: Terms, layout: Layout) -> Release:
    """One client's update under these terms, as it leaves once."""
    segments = list(layout.segments())
    alphas: list[float] = [math.inf] * len(
        segments
    )  # fitted ones follow the data, and bound nothing
    if not isinstance(terms.clip, str):
        clip = Clip(terms.clip)
        alphas = list(clip.init(layout).shared.alphas or alphas)
    sizes = [stop - start for _, start, stop in segments]
    selected = list(sizes)
    if terms.clear and not terms.mapped:
        coords = fixed_mask(terms.select, layout).coords
        selected = [
            int(coords.searchsorted(stop) - coords.searchsorted(start))
            for _, start, stop in segments
        ]
    elif terms.clear:
        left = terms.select.count(layout)
        selected = [0] * len(sizes)
        for i in sorted(range(len(sizes)), key=alphas.__getitem__):
            selected[i] = min(left, sizes[i])
            left -= selected[i]
    layers = tuple(
        LayerCount(name, size, chosen, alpha)
        for (name, _, _), size, chosen, alpha in zip(segments, sizes, selected, alphas, strict=True)
    )
    if terms.noise is None:
        return Release(layers, mapped=terms.mapped)
    return Release(layers, terms.noise.scale, terms.noise.scope, terms.mapped)


class Spending:
    """Counts releases: attempts in which updates may have left.

    Parameters
    ----------
    terms : Terms
        The run's.
    layout : Layout
        The model's.
    releases : int
        How many there were before, in a run that is resumed.
    """

    def __init__(self, terms: Terms, layout: Layout, releases: int = 0) -> None:
        self._release = release_of(terms, layout)
        self.report = PrivacyReport.of(self._release, releases)

    @staticmethod
    def due(terms: Terms) -> bool:
        """Whether there is anything to count."""
        return terms.clear or terms.noise is not None

    def add(self) -> None:
        """One more."""
        self.report = self.report.after(self._release)

    @property
    def epsilon(self) -> float | None:
        """Against the server, over all releases; None where there is no guarantee."""
        return self.report.epsilon if math.isfinite(self.report.epsilon) else None
