"""`flhe advise --check`: what is predicted on this machine beside what is then measured.

It calibrates anew, and in the same turns it times what it was not calibrated on: other sizes,
between its own and beyond them, of another number of clients. Bytes are those of a real upload. A phase
must not be off by more than 30%, nor bytes by more than 2%; phases of less than a tenth of a
millisecond are told and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from flhe import answer
from flhe_lab.advise.calibration import DECLARED, KEY, Calibration, cache_folder, measure
from flhe_lab.advise.cost_model import TERMS, Point, sealed_bytes, sparse_bytes
from flhe_lab.bench.contender import PHASES
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.store import Store

CLIENTS: int = DECLARED["clients"]
REPEATS, MORE_REPEATS = 7, 15
"""Of all, and where a turn takes milliseconds."""
SHORT = 350_000
SECONDS_OFF, BYTES_OFF = 0.30, 0.02
JUDGED_S = 1e-4


HELD_OUT: tuple[Point, ...] = tuple(
    Point(
        name,
        values,
        CLIENTS,
        each["dropouts"],
        REPEATS if name == who.BATCHCRYPT or values > SHORT else MORE_REPEATS,
    )
    for each in DECLARED["held_out"]
    for name in each["names"]
    for values in each["sizes"]
)
"""What is predicted and measured."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number, both ways."""

    point: Point  # Where
    what: str  # A phase, or "bytes"
    predicted: float  # Seconds, or bytes of one upload
    measured: float  # The same

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def verdict(self) -> str:
        """Nothing where the prediction is as near as is promised; what takes no time is not judged."""
        if abs(self.off) <= (BYTES_OFF if self.what == "bytes" else SECONDS_OFF):
            return ""
        return "OFF" if self.what == "bytes" or self.measured >= JUDGED_S else "too short"


def upload_bytes(point: Point) -> int:
    """One upload, by the schemes' own rules."""
    terms = TERMS[point.name]
    senders = point.cohort - point.dropouts
    if terms.codec.sparse:
        found = sparse_bytes(terms, point.values, point.cohort, senders)
        return found.part + found.support
    return sealed_bytes(terms, point.values, point.cohort)


def compare(
    speed: Calibration,
    points: Sequence[Point],
    times: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, int],
) -> list[Line]:
    """Every phase of every point, and its bytes."""
    lines = []
    for point in points:
        if point.key not in times:  # what it needs is not installed
            continue
        found = asdict(speed.phases(point.name, point.values, point.cohort, point.dropouts))
        lines += [Line(point, p, found[f"{p}_s"], times[point.key][p]) for p in PHASES]
        lines.append(Line(point, "bytes", upload_bytes(point), sizes[point.key]))
    return lines


def checked(progress: Progress = silent) -> tuple[Calibration, list[Line]]:
    """Measure anew, keep it, and hold what it predicts against what it was not calibrated on."""
    found, times, sizes = measure(also=HELD_OUT, progress=progress)
    Store(cache_folder()).put(KEY, found.to_json())
    return found, compare(found, HELD_OUT, times, sizes)


def table(lines: Sequence[Line]) -> Table:
    """All of it."""
    rows = []
    for line in lines:
        unit, scale = ("{:,.0f} B", 1.0) if line.what == "bytes" else ("{:.3f} ms", 1e3)
        both = (unit.format(scale * number) for number in (line.predicted, line.measured))
        where = (line.point.name, f"{line.point.values:,}", line.what)
        rows.append((*where, *both, f"{line.off:+.1%}", line.verdict))
    headings = ("", "values", "phase", "predicted", "measured", "off", "")
    title = f"predicted and measured, {CLIENTS} clients, one thread"
    return answer.table(headings, rows, right=True, title=title)
