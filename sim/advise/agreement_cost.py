"""What agreeing on masking keys costs one member, and whoever opens the sum, beside the ciphertext.

SASH's seeds, and ESAFL's keys of one round, are shared among all members
(`flhe.keys.agreement.masking`). That does not depend on the model's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from flhe.keys.agreement.circle import SharingParameters
from flhe.math.prg import random_elements
from flhe_lab.advise.cost_model import Curve
from flhe_lab.bench.contender import Contender, Setting
from flhe_lab.bench.members import SashMembers


@dataclass(frozen=True, slots=True)
class Agreement:
    """Seconds of one agreement in which all share with all."""

    deal_s: float  # Of a member, beside its upload
    agree_s: float  # Of a member, in the stage after it
    release_s: float  # Of a member, in the stage after that
    combine_s: float  # Of whoever reads: from the answers to the sum of the seeds


class Sharing(SashMembers):
    """Members who share a seed of `elements` field elements, and upload nothing."""

    def __init__(self, clients: int, elements: int) -> None:
        self._wanted = elements
        super().__init__(Setting(1, clients))

    def _upload(self) -> None:
        self._elements = self._wanted
        self.circle = SharingParameters.of(self._epoch, self._wanted)
        self._seeds = random_elements(self._wanted)

    @property
    def name(self) -> str:
        """Of its row."""
        return f"masking keys | {self.setting.cohort} | {self._elements}"

    def contender(self) -> Contender:
        """All stages, as rank 0 and as the reader; what comes out must be what went in."""
        found = [self._seeds]

        def opened() -> None:
            found[0] = self._combine()

        stages = (lambda: self._deal(self._seeds), self._agree_on, self._release, opened)
        names = (name.removesuffix("_s") for name in Agreement.__slots__)
        return Contender(
            self.name,
            dict(zip(names, stages, strict=True)),
            error=lambda: float(not np.array_equal(found[0], self._seeds)),
            max_repeats=REPEATS,
        )


REPEATS = 5
GROUPS = (4, 8, 16, 32, 64, 128, 256)
"""Members whose agreements are measured."""
ELEMENTS = (512, 2048)


def interpolated(
    found: Mapping[tuple[int, int], Agreement], clients: int, elements: int
) -> Agreement:
    """An agreement among `clients`, of what was measured among fewer and more, and of two lengths."""
    short, long = (
        [asdict(found[group, length]) for group in GROUPS]
        for length in (min(ELEMENTS), max(ELEMENTS))
    )
    share = (elements - min(ELEMENTS)) / (max(ELEMENTS) - min(ELEMENTS))

    def one(name: str) -> float:
        curves = (
            Curve.through([(group, row[name]) for group, row in zip(GROUPS, rows, strict=True)])
            for rows in (short, long)
        )
        less, more = (curve.at(clients) for curve in curves)
        return max(less + share * (more - less), 0.0)

    return Agreement(one("deal_s"), one("agree_s"), one("release_s"), one("combine_s"))
