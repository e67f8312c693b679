"""What agreeing on masking keys costs one member, and whoever opens the sum, beside the ciphertext.

SASH's seeds, and ESAFL's keys of one round, are shared among all members
(`flhe.keys.agreement.masking`). That does not depend on the model's size.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from flhe.errors import FlheError
from flhe.keys.agreement import masking
from flhe.math.prg import random_elements
from flhe_lab.bench.sash_members import SashMembers, Setting


@dataclass(frozen=True, slots=True)
class Agreement:
    """Seconds of one agreement in which all share with all.

    Parameters
    ----------
    deal_s, agree_s, release_s : float
        A member's, beside its upload, then in the two stages after it.
    combine_s : float
        Of whoever reads: from the answers to the sum of the seeds.
    """

    deal_s: float
    agree_s: float
    release_s: float
    combine_s: float


class Sharing(SashMembers):
    """Members who share a seed of `elements` field elements, and upload nothing."""

    def __init__(self, clients: int, elements: int) -> None:
        self._wanted = elements
        super().__init__(Setting(clients, 1))

    def _upload(self) -> None:
        self._elements = self._wanted
        self.circle = masking.Circle.of(self._epoch, self._wanted)
        self._seeds = random_elements(self._wanted)

    def cost(self) -> Agreement:
        """Run all stages once, as rank 0 and as the reader.

        Raises
        ------
        FlheError
            The seeds that come out are not those that went in.
        """
        senders, count = self.setting.senders, self.circle.thresholds.threshold
        marks = [time.perf_counter()]
        dealt = masking.deal(self._epoch, self._slot, self._seeds)
        marks.append(time.perf_counter())
        agreed, _ = masking.agree(
            self._epoch, self._identities[0], dealt, senders, self._boxes, self._elements
        )
        marks.append(time.perf_counter())
        masking.release(
            self._epoch,
            self._identities[0],
            agreed,
            senders[:count],
            self._signatures[:count],
            self._elements,
            sealed=False,
        )
        marks.append(time.perf_counter())
        found = masking.combine(self.circle, self._slot, senders, self._answers)
        marks.append(time.perf_counter())
        if not np.array_equal(found, self._seeds):
            raise FlheError("masking keys: the sum is not the sum; its times mean nothing")
        return Agreement(*np.diff(marks).tolist())


def share_with_all(clients: int, elements: int, repeats: int) -> Agreement:
    """The least of each stage's seconds over `repeats`, after one that does not count."""
    members = Sharing(clients, elements)
    members.cost()
    found = [asdict(members.cost()) for _ in range(repeats)]
    return Agreement(**{name: min(one[name] for one in found) for name in found[0]})


GROUPS = (4, 8, 16, 32, 64)
"""Members whose agreements are measured where a polynomial shares one element..."""
PACKED = (masking.PACKED_FROM, 128, 256)
"""... and where it shares several."""
ELEMENTS = (512, 2048)


def interpolated(
    found: Mapping[tuple[int, int], Agreement], clients: int, elements: int
) -> Agreement:
    """An agreement among `clients`, of what was measured among fewer and more, and of two lengths."""
    groups = PACKED if clients >= masking.PACKED_FROM else GROUPS
    short, long = (
        [asdict(found[group, length]) for group in groups]
        for length in (min(ELEMENTS), max(ELEMENTS))
    )
    share = (elements - min(ELEMENTS)) / (max(ELEMENTS) - min(ELEMENTS))

    def one(name: str) -> float:
        less, more = (_line(groups, [row[name] for row in rows], clients) for rows in (short, long))
        return max(less + share * (more - less), 0.0)

    return Agreement(one("deal_s"), one("agree_s"), one("release_s"), one("combine_s"))


def _line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Piecewise linear through the points; on beyond the last at its slope, and before the first."""
    at = min(max(int(np.searchsorted(xs, x)), 1), len(xs) - 1)
    slope = (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at] + slope * (x - xs[at])
