"""A round of a federation out of costs that were measured and a network that was not.

Seconds of work keep their marks; whatever waits for a link is projected, and so is the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flhe_lab.advise.round_model import Breakdown, Work, simulate, typical
from flhe_lab.advise.wan import Link
from flhe_lab.tables.learned import NAMES, VALUES
from flhe_lab.tables.marked import Marked, projected
from flhe_lab.tables.phase_costs import Cost

PARTS = ("training", "encryption", "decryption", "idle")
"""An iteration, as the paper's figures stack it; idle holds transfers and the server's work."""

TOTAL = "iteration"


@dataclass(frozen=True, slots=True)
class Round:
    """One round as the slowest client sees it.

    Parameters
    ----------
    train_s, encrypt_s, decrypt_s : Marked
        Its own work, as measured or sampled.
    wait_s : Marked
        All else, transfer, the server's work and waiting for others: what the papers call idle.
    total_s : Marked
        The round.
    breakdown : Breakdown
        The model's own account.
    """

    train_s: Marked
    encrypt_s: Marked
    decrypt_s: Marked
    wait_s: Marked
    total_s: Marked
    breakdown: Breakdown

    def parts(self) -> dict[str, Marked]:
        """PARTS, then TOTAL."""
        numbers = (self.train_s, self.encrypt_s, self.decrypt_s, self.wait_s, self.total_s)
        return dict(zip((*PARTS, TOTAL), numbers, strict=True))


def work_of(cost: Cost, train_s: float) -> Work:
    """What the round simulator is asked."""
    down = cost.upload_bytes if cost.down_bytes is None else cost.down_bytes
    return Work(
        train_s,
        cost.encrypt_s.value,
        cost.decrypt_s.value,
        cost.add_s.value,
        round(cost.upload_bytes.value),
        round(down.value),
    )


def played(cost: Cost, train_s: Marked, links: Sequence[Link]) -> Round:
    """Play one round of as many clients as there are links."""
    whole = typical(simulate(work_of(cost, train_s.value), links))
    own = whole.train_s + whole.encrypt_s + whole.decrypt_s
    idle, total = projected(whole.total_s - own), projected(whole.total_s)
    return Round(train_s, cost.encrypt_s, cost.decrypt_s, idle, total, whole)


def row(model: str) -> str:
    """Name and size, as the papers round it."""
    return f"{NAMES[model]} ({VALUES[model] / 1e6:.2f}M)"
