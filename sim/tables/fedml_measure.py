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
from dataclasses import replace

import numpy as np

from flhe.coding.select import Select
from flhe_lab.bench import schemes
from flhe_lab.bench.contender import Contender, Make, Setting, Vector
from flhe_lab.bench.federation import layout_of
from flhe_lab.bench.peers import SLOTS, Weighs, tenseal_ckks
from flhe_lab.papers.published import rows
from flhe_lab.tables import phase_costs
from flhe_lab.tables.phase_costs import Cost, measure
from flhe_lab.tables.table import Found, Plan, Say, Step

COHORT = 3
MODELS = rows("fedml", "table_4")
_NAMED = {model.name.partition(" (")[0]: model for model in MODELS}
CNN, MOBILENET, RESNET_18, RESNET_50, VIT, BERT = (
    _NAMED[name]
    for name in ("CNN", "MobileNet", "ResNet-18", "ResNet-50", "Vision Transformer", "BERT")
)
TABLE_5 = {_NAMED[row.model]: row for row in rows("fedml", "table_5")}
TOP_K = TABLE_5[RESNET_18].values
TABLE_6 = rows("fedml", "table_6")
BATCHES, SCALES = ([*dict.fromkeys(getattr(r, by) for r in TABLE_6)] for by in ("batch", "scale"))
TABLE_7 = {row.share: row for row in rows("fedml", "table_7")}
TABLE_8 = {row.framework: row for row in rows("fedml", "table_8")}


PLAIN, OURS = phase_costs.PLAIN, phase_costs.FEDML
TENSEAL, FLARE = "TenSEAL, server weighs", "TenSEAL, clients weigh"
SHARES = (0.0, 0.1, 0.5, 1.0)
"""Encrypted, of every model: all, Fig. 7's tenth and half; and none, to tell what the rest costs."""

MODULI = (60, 40, 60)
"""Bits of TenSEAL's; the last is the key's."""

ENOUGH_S = 30.0
"""Seconds after which two turns are enough, unless the plan is a quick one."""


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


def selected(make: Make, share: float) -> Make:
    """A random share of the values under `make`, the rest in clear as float32.

    Taking vectors apart and putting means together counts.
    """

    def made(setting: Setting, updates: Sequence[Vector]) -> Contender:
        coords = Select(share, "random").fixed(layout_of(setting.values)).coords
        clear, mean = np.ones(setting.values, bool), np.empty_like(updates[0])
        clear[coords] = False
        rest_of = replace(setting, values=setting.values - coords.size)
        inner = make(replace(setting, values=coords.size), [u[coords] for u in updates])
        rest = schemes.plain(rest_of, [u[clear] for u in updates])
        one, other = updates[0][coords], updates[0][clear]

        def both(phase: str) -> None:
            if phase == "encrypt":
                _ = updates[0][coords], updates[0][clear]
            for part in (inner, rest):
                if phase in part.phases:
                    part.phases[phase]()
            if phase == "decrypt":
                mean[coords], mean[clear] = one, other

        sizes = [(each.upload_bytes or 0, each.sum_bytes or 0) for each in (inner, rest)]
        upload, down = map(sum, zip(*sizes, strict=True))
        return replace(
            inner,
            phases={phase: functools.partial(both, phase) for phase in inner.phases},
            upload_bytes=upload,
            sum_bytes=down,
            error=lambda: max(each.error() for each in (inner, rest) if each.error),
        )

    return made


def fewer(make: Make, count: int) -> Make:
    """Of each update only `count` values at agreed coordinates, under `make`; the rest is remembered.

    What is not sent is added to the next update, as DoubleSqueeze does. Coordinates are the group's, as
    `Select(rest="drop")` has them: ciphertexts of different coordinates do not add up. Choosing values
    and remembering the others counts.
    """

    def made(setting: Setting, updates: Sequence[Vector]) -> Contender:
        coords = Select(count / setting.values, "random").fixed(layout_of(setting.values)).coords
        inner = make(replace(setting, values=coords.size), [u[coords] for u in updates])
        whole = np.zeros_like(updates[0])

        def encrypt() -> None:
            np.add(whole, updates[0], out=whole)
            _ = whole[coords]
            whole[coords] = 0
            inner.phases["encrypt"]()

        def decrypt() -> None:
            inner.phases["decrypt"]()
            np.zeros_like(whole)[coords] = updates[0][coords]

        return replace(
            inner,
            phases={**inner.phases, "encrypt": encrypt, "decrypt": decrypt},
            before=lambda: whole.fill(0),  # turns begin alike
        )

    return made


def ways_of(values: int, shares: Sequence[float]) -> dict[str, Make]:
    """Everybody, by name, for vectors of one length."""
    server = bare("server")
    ways: dict[str, Make] = {PLAIN: schemes.plain}
    for share in shares:
        # With a share of none, one value is encrypted.
        ways[ours(share)] = functools.partial(schemes.fedml, share=share or 1 / values)
        if share:
            ways[tenseals(share)] = server if share == 1 else selected(server, share)
    if 1.0 in shares:
        ways[FLARE] = bare("client")
    return ways


def longest(plan: Plan) -> int:
    """Values of the longest vector that is taken whole."""
    # Shares of it fill whole ciphertexts of 4096, so that they can be projected.
    return 30 * SLOTS if plan.quick else MOBILENET.values


def step(values: int, shares: Sequence[float], plan: Plan) -> Step:
    """The measurement for vectors of `values`, or for the longest that is taken, at these shares."""
    taken = min(values, longest(plan))
    slug = "-".join(f"{share:g}" for share in shares)
    return Step(
        f"fedml-turns-{taken}-{slug}" + ("-quick" if plan.quick else ""),
        lambda say: measure(taken, COHORT, ways_of(taken, shares), plan.repeats, say, ENOUGH_S),
        f"FedML-HE and TenSEAL, {taken:,} values",
    )


def costs(values: int, shares: Sequence[float], plan: Plan, found: Found) -> dict[str, Cost]:
    """Name -> what it took for vectors of `values`, of what `step` gave; projected where it sampled."""
    factor = values / min(values, longest(plan))
    read = phase_costs.read(found[step(values, shares, plan).key])
    return {name: cost.scaled(factor) for name, cost in read.items()}


REDUCED_SHARES = (0.3, 1.0)
"""Encrypted, of the values that are sent: Fig. 8's 30%, and Table 5's all."""


def reduced_step(values: int, plan: Plan) -> Step:
    """The measurement for TOP_K of `values` that are sent; a quick plan takes a part of both."""
    whole, sent = (each // (16 if plan.quick else 1) for each in (values, TOP_K))

    def work(say: Say) -> phase_costs.Rows:
        ways = {name: fewer(make, sent) for name, make in ways_of(sent, REDUCED_SHARES).items()}
        return measure(whole, COHORT, ways, plan.repeats, say, ENOUGH_S)

    return Step(
        f"fedml-reduced-{whole}-{sent}" + ("-quick" if plan.quick else ""),
        work,
        f"FedML-HE and TenSEAL, {sent:,} of {whole:,} values",
    )


def reduced_costs(values: int, plan: Plan, found: Found) -> dict[str, Cost]:
    """Name -> what it took, of what `reduced_step` gave."""
    factor = values / (values // 16) if plan.quick else 1.0
    read = phase_costs.read(found[reduced_step(values, plan).key])
    return {name: cost.scaled(factor) for name, cost in read.items()}
