"""One round of FLASHE's evaluation: its models, its link, and where a client's time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flhe.sim import wan
from flhe.sim.tables.flashe_paper import COHORT, MODELS
from flhe.sim.tables.headlines import BATCHES
from flhe.sim.tables.learned import NAMES, VALUES, batch_s, training_step
from flhe.sim.tables.marked import Marked, weakest
from flhe.sim.tables.phase_costs import Cost
from flhe.sim.tables.result import Entry, Group
from flhe.sim.tables.rounds import Round, played
from flhe.sim.tables.section import Found, Plan, Step

LINK = wan.named("40mbps")
"""The slowest of the paper's links: a synchronous round waits for it (Sec. 2.3)."""

PARTS = ("training", "encryption", "decryption", "idle")
"""An iteration, as the paper's figures stack it; idle holds transfers and the server's work."""

TOTAL = "iteration"

SETTING = (
    "Ten clients, each at 40 Mb/s both ways, which is the slowest link of the paper; "
    f"{BATCHES} batches of 128 in an iteration, where the paper tells no number. All work is timed on "
    "one processor, where the paper's machines have 16. Idle is a client's transfers and its wait for "
    "the server, projected."
)
LARGEST = MODELS[-1]
QUICK = (
    f"A quick run measures {NAMES[LARGEST]}, and takes the other models' encryption, decryption "
    "and bytes for proportional."
)


def row(model: str) -> str:
    """Name and size, as the papers round it."""
    return f"{NAMES[model]} ({VALUES[model] / 1e6:.2f}M)"


def training_steps(plan: Plan) -> list[Step]:
    """Seconds of a batch of each model."""
    return [training_step(model, plan) for model in MODELS]


def training(model: str, found: Found, plan: Plan) -> Marked:
    """Seconds that a client trains in an iteration."""
    return batch_s(model, found, plan) * BATCHES


def measured_models(plan: Plan) -> tuple[str, ...]:
    """Models whose costs are measured: in a quick run the largest, which stands for the others."""
    return (LARGEST,) if plan.quick else MODELS


def stands_for(model: str, plan: Plan) -> tuple[str, float]:
    """The model that is measured for this one, and how many times its size this one is."""
    at = model if model in measured_models(plan) else LARGEST
    return at, VALUES[model] / VALUES[at]


def proportional(number: Marked, factor: float) -> Marked:
    """A number of `factor` times as many values: sampled unless the factor is 1."""
    if factor == 1.0:
        return number
    return Marked(number.value * factor, weakest(number.mark, "sampled"))


def scaled(cost: Cost, factor: float) -> Cost:
    """The cost of `factor` times as many values."""
    return replace(
        cost,
        encrypt_s=proportional(cost.encrypt_s, factor),
        add_s=proportional(cost.add_s, factor),
        decrypt_s=proportional(cost.decrypt_s, factor),
        upload_bytes=proportional(cost.upload_bytes, factor),
    )


def iteration(cost: Cost, train: Marked, down: Marked | None = None) -> Round:
    """One of ten clients at LINK; what comes down is as long as an upload unless told."""
    return played(cost, train, LINK.links(COHORT), None if down is None else down.value)


def parts(seen: Round) -> dict[str, Marked]:
    """PARTS, then TOTAL."""
    numbers = (seen.train_s, seen.encrypt_s, seen.decrypt_s, seen.wait_s, seen.total_s)
    return dict(zip((*PARTS, TOTAL), numbers, strict=True))


def entries(
    where: str, who: str, group: Group, numbers: Mapping[str, Marked], unit: str
) -> list[Entry]:
    """One entry a number, named by its key."""
    return [Entry(where, who, group, what, unit, number) for what, number in numbers.items()]
