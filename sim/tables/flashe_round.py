"""One round of FLASHE's evaluation: its models, its link, and where a client's time goes."""

from __future__ import annotations

from flhe.sim.advise import wan
from flhe.sim.tables.flashe_paper import COHORT, MODELS
from flhe.sim.tables.headlines import BATCHES
from flhe.sim.tables.learned import NAMES, VALUES, batch_s, training_step
from flhe.sim.tables.marked import Marked
from flhe.sim.tables.rounds import Round, played
from flhe.sim.tables.section import Found, Plan, Step
from flhe.sim.tables.turns import Cost

LINK = wan.named("40mbps")
"""The slowest of the paper's links: a synchronous round waits for it (Sec. 2.3)."""

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


def iteration(cost: Cost, train: Marked, down: Marked | None = None) -> Round:
    """One of ten clients at LINK; what comes down is as long as an upload unless told."""
    return played(cost, train, LINK.links(COHORT), None if down is None else down.value)
