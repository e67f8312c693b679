"""One aggregation of three updates by everybody, in turns: what FedML-HE's tables are made of.

Who takes part, and what seconds are of: see the tables' notes. Bare TenSEAL is CKKS of ring dimension
8192 with one level, scale 2^40, from float32 to bytes and back; the level is for the server's weights
(Algorithm 1 of the paper). A sealer is made anew each time. Longer vectors than the longest that is
taken are projected from that one: "sampled".

Only a model's length matters to what is timed: vectors of so many values are drawn at random. Ratios
are made of the paper's sizes and seconds; its own differ a little where it had more digits, and for
CNN's 16.66, which is that of Table 8's 105.72 MB.

Source: Jin et al., "FedML-HE", Sec. 2.3 and appendix D.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from flhe_lab.bench import schemes
from flhe_lab.bench.contender import Make
from flhe_lab.bench.peers import SLOTS, Weighs, tenseal_ckks
from flhe_lab.papers.published import rows
from flhe_lab.tables import phase_costs
from flhe_lab.tables.phase_costs import Cost, measure
from flhe_lab.tables.table import Found, Plan, Step

COHORT = 3
MODELS = rows("fedml", "table_4")
_NAMED = {model.name.partition(" (")[0]: model for model in MODELS}
CNN, MOBILENET, RESNET_18, RESNET_50, VIT = (
    _NAMED[name] for name in ("CNN", "MobileNet", "ResNet-18", "ResNet-50", "Vision Transformer")
)
TABLE_5 = {_NAMED[row.model]: row for row in rows("fedml", "table_5")}
TOP_K = TABLE_5[RESNET_18].values
TABLE_6 = rows("fedml", "table_6")
TABLE_7 = {row.share: row for row in rows("fedml", "table_7")}
TABLE_8 = {row.framework: row for row in rows("fedml", "table_8")}


PLAIN, OURS = phase_costs.PLAIN, phase_costs.FEDML
TENSEAL, FLARE = "TenSEAL, server weighs", "TenSEAL, clients weigh"
SHARES = (0.0, 0.1, 0.5, 1.0)
"""Encrypted, of every model: all, Fig. 7's tenth and half; and none, to tell what the rest costs."""

MODULI = (60, 40, 60)
"""Bits of TenSEAL's; the last is the key's."""

MANY = 1_000_000
"""Values of which two turns are enough: they take minutes."""


def ours(share: float) -> str:
    """The name of ours with so much encrypted."""
    return OURS if share == 1 else f"{OURS}, {share:.0%} encrypted"


def tenseals(share: float) -> str:
    """The name of TenSEAL with so much encrypted."""
    return TENSEAL if share == 1 else f"TenSEAL, {share:.0%} encrypted"


def bare(weighs: Weighs) -> Make:
    """Bare TenSEAL, as a user would write it; one context for all that is made of it."""
    cipher = tenseal_ckks(MODULI, weighs=weighs, wire=True)
    return lambda setting, updates: cipher.contender(setting, updates, alike=False)


def ways_of(values: int, shares: Sequence[float]) -> dict[str, Make]:
    """Everybody who is run, by name, for vectors of one length."""
    ways: dict[str, Make] = {PLAIN: schemes.plain}
    for share in shares:
        # With a share of none, one value is encrypted.
        ways[ours(share)] = functools.partial(schemes.fedml, share=share or 1 / values)
    return {**ways, TENSEAL: bare("server"), FLARE: bare("client")}


def longest(plan: Plan) -> int:
    """Values of the longest vector that is taken whole."""
    # Shares of it fill whole ciphertexts of 4096, so that they can be projected.
    return 30 * SLOTS if plan.quick else MOBILENET.values


def step(values: int, shares: Sequence[float], plan: Plan) -> Step:
    """The measurement for vectors of `values`, or for the longest that is taken, at these shares."""
    taken = min(values, longest(plan))
    slug, repeats = "-".join(f"{share:g}" for share in shares), 2 if taken > MANY else plan.repeats
    return Step(
        f"fedml-turns-{taken}-{slug}",
        lambda say: measure(taken, COHORT, ways_of(taken, shares), repeats, say),
        f"FedML-HE and TenSEAL, {taken:,} values",
    )


def costs(values: int, shares: Sequence[float], plan: Plan, found: Found) -> dict[str, Cost]:
    """Name -> what it took for vectors of `values`, of what `step` gave; projected where it sampled.

    TenSEAL of a share is in proportion: so much of all its seconds and bytes, and the rest of plain's.
    """
    factor = values / min(values, longest(plan))
    read = phase_costs.read(found[step(values, shares, plan).key])
    out = {name: cost.scaled(factor) for name, cost in read.items()}
    for share in (each for each in shares if 0 < each < 1):
        name = tenseals(share)
        out[name] = out[TENSEAL].mixed(share, out[PLAIN], name)
    return out
