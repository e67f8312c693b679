"""How the seconds of a phase grow: what is counted exactly, and what a measurement says of each count.

    seconds(phase) = curve(units) + a * extra

`units` is what most of the work is proportional to: values; whole polynomials under FedML-HE;
ciphertexts under BatchCrypt; coefficients in ESAFL's narrow rings. The curve is piecewise linear
through sizes that span the caches, flat before the first, and goes on at its last slope. `extra` is the
one more thing that a cohort changes: mask streams times the lanes that each covers (FLASHE, FedML-HE),
or coefficients (ESAFL, where two or three values fit into one). Bytes are counted by the schemes' own
rules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flhe.coding.select import Select
from flhe.coding.sparsify import TopK
from flhe.coding.support import HEADER, MAX_PARAMETER
from flhe.coding.update import update_codec
from flhe.schemes.base import Adder
from flhe.schemes.batchcrypt.adder import BatchCryptAdder
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.masking import telescoped
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective
from flhe.training.terms import Terms
from flhe_lab.bench.contender import SLOT, Setting
from flhe_lab.bench.federation import layout_of
from flhe_lab.bench.schemes import NARROW
from flhe_lab.tables import phase_costs as who

CLIENTS = 4
"""Of a measurement, unless it says another number."""
SHARE = 0.1
"""What FLASHE sends of an update, and FedML-HE encrypts, where it is not all."""

TERMS: dict[str, Terms] = {
    who.FLASHE: Terms(),
    who.FLASHE_TENTH: Terms(Flashe("adaptive"), update_codec(top_k=SHARE, warmup=0)),
    who.SASH: Terms(Sash(), update_codec(bits=0)),
    who.BATCHCRYPT: Terms(BatchCrypt()),
    who.ESAFL: Terms(Esafl(keys="joint")),
    who.ESAFL_NARROW: Terms(Esafl(NARROW, keys="joint")),
    who.FEDML: Terms(FedmlHe()),
    who.FEDML_TENTH: Terms(FedmlHe(), update_codec(weighted=False), select=Select(SHARE, "random")),
}
"""What is measured, as a federation would run it; FedAvg in clear has no terms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by a count; never falling."""

    counts: tuple[float, ...]  # Of the measurements, ascending; at least one
    seconds: tuple[float, ...]  # Of each of them

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Curve:
        """The curve through measurements; one that is below an earlier one is raised to it."""
        counts, seconds = zip(*sorted(points), strict=True)
        return cls(tuple(counts), tuple(np.maximum.accumulate(seconds).tolist()))

    def at(self, count: float) -> float:
        """Seconds of so much."""
        last = self.counts[-1]
        if count <= last:
            return float(np.interp(count, self.counts, self.seconds))
        if len(self.counts) == 1:
            return self.seconds[0] * count / last
        slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.counts[-2])
        return self.seconds[-1] + slope * (count - last)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: its two counts, and the seconds of a phase."""

    units: float
    extra: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The law of one phase."""

    curve: Curve
    extra_s: float

    @classmethod
    def of(cls, base: Sequence[Row], more: Sequence[Row]) -> Fit:
        """Least squares of relative errors; the curve bends where `base` was measured.

        An `extra` that is not told apart by these measurements, or would save time, costs nothing.
        """
        bends = sorted({row.units for row in base})
        rows = [*base, *more]
        peaks = [Curve(tuple(bends), tuple(peak)) for peak in np.eye(len(bends)).tolist()]
        knots = [[peak.at(row.units) for peak in peaks] for row in rows]
        known = len(rows) > len(bends) and len({row.extra for row in rows}) > 1
        while True:
            extras = [[row.extra] if known else [] for row in rows]
            matrix = np.array([[*own, *more] for own, more in zip(knots, extras, strict=True)])
            weighted = matrix / np.array([[row.seconds] for row in rows])
            scale = np.abs(weighted).max(axis=0)
            found = np.linalg.lstsq(weighted / scale, np.ones(len(rows)), rcond=1e-9)[0] / scale
            slope = float(found[-1]) if known else 0.0
            if slope >= 0:
                break
            known = False
        heights = np.maximum(found[: len(bends)], 0.0).tolist()
        return cls(Curve.through(list(zip(bends, heights, strict=True))), slope)

    def at(self, units: float, extra: float) -> float:
        """Seconds of so much."""
        return self.curve.at(units) + self.extra_s * extra


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    name: str  # Of `phase_costs.WHO`
    values: int  # As in `contender.Setting`
    cohort: int = CLIENTS  # The same
    dropouts: int = 0  # The same
    repeats: int = field(default=5, compare=False)  # Turns that count
    base: bool = field(default=True, compare=False)
    """Whether the curve bends here; the others tell what else work depends on."""

    @property
    def key(self) -> str:
        """Of its times."""
        return f"{self.name} | {self.values} | {self.cohort} | {self.dropouts}"

    @property
    def adder(self) -> tuple[Adder, int]:
        """The adder of what it measures, and the lanes that an update has in it."""
        return adder_of(TERMS[self.name], self.values, self.cohort)


@functools.lru_cache(maxsize=256)
def adder_of(terms: Terms, values: int, cohort: int) -> tuple[Adder, int]:
    """The adder of an update, and the lanes that it encrypts; a FlheError where there is none."""
    layout, fixed = layout_of(values), terms.resolved(cohort)
    return fixed.selective(fixed.for_cohort(cohort), layout), fixed.lanes(layout)


def counts(point: Point, phase: str) -> tuple[float, float]:
    """Both counts of a phase."""
    return units(point), extra(point, phase)


def units(point: Point) -> float:
    """What most of the work is proportional to."""
    if point.name == who.ESAFL_NARROW:
        return _coefficients(point)
    if point.name not in (who.BATCHCRYPT, who.FEDML):
        return float(point.values)
    adder, lanes = point.adder
    if isinstance(adder, BatchCryptAdder):
        return float(adder.batch.batches(lanes))
    assert isinstance(adder, FedmlHeAdder)
    return float(adder.sizes.count(lanes))


def _coefficients(point: Point) -> float:
    """Of all limbs; what a last one that is not full takes is not rounded up."""
    adder, _ = point.adder
    assert isinstance(adder, EsaflAdder)
    slots = adder.sizes.slots
    return point.values / slots.per * len(slots.moduli)


def extra(point: Point, phase: str) -> float:
    """What else there is to do, in counts that one slope goes with; 0 where there is nothing."""
    if point.name == who.ESAFL:
        return _coefficients(point)
    if phase != "decrypt" or point.name not in _STREAMED:
        return 0.0
    survivors = Setting(1, point.cohort, point.dropouts).survivors
    if point.name == who.FLASHE_TENTH:
        return float(point.values * len(survivors))  # all senders' masks are made
    streams = sum(map(len, telescoped(survivors, "double")))
    adder, lanes = point.adder
    inner = adder.inner if isinstance(adder, Selective) else adder
    return float(
        streams * (inner.sizes.count(lanes) if isinstance(inner, FedmlHeAdder) else point.values)
    )


_STREAMED = (who.FLASHE, who.FLASHE_TENTH, who.FEDML, who.FEDML_TENTH)
"""Whose opening takes more streams as dropouts leave more runs of senders."""


def sealed_bytes(terms: Terms, values: int, cohort: int, senders: int = 1) -> int:
    """Bytes of one upload, its header too, or of the sum of `senders`; dense updates."""
    adder, lanes = adder_of(terms, values, cohort)
    return adder.nbytes(lanes) + _header(adder.name, lanes, senders)


def _header(name: str, lanes: int, senders: int) -> int:
    return len(Sealed(name, SLOT, tuple(range(senders)), lanes, np.empty(0, np.uint8)).header())


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse round."""

    support: int  # Bytes of one
    part: int  # Bytes of the ciphertext beside it
    total: int  # Bytes of the sum without supports


def sparse_bytes(terms: Terms, values: int, cohort: int, senders: int) -> Sparse:
    """Sizes where supports are random and independent: what sites have in common makes sums shorter."""
    adder, _ = adder_of(terms, values, cohort)
    layout = layout_of(values)
    topk = TopK(SHARE, 0)
    sent = int(topk.keep(topk.init(layout).shared).sum())
    beside, share = terms.trailer_lanes(layout), sent / values
    union = round(values * (1 - (1 - share) ** senders))
    part = adder.nbytes(sent + beside) + _header(adder.name, sent + beside, 1)
    total = adder.nbytes(union + beside) + _header(adder.name, union + beside, senders)
    return Sparse(support_bytes(sent, values), part, total)


def support_bytes(count: int, length: int) -> int:
    """Bytes that a random set of `count` of `length` coordinates takes on average; see `Support`."""
    skip = 1 - count / length
    bits = float(length)
    for p in range(MAX_PARAMETER + 1):
        gone = skip ** (1 << p)
        if gone < 1:
            bits = min(bits, count * (gone / (1 - gone) + 1 + p))
    return HEADER + int(-(-bits // 8))
