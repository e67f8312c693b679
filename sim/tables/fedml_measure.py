"""One aggregation of three updates by everybody, in turns: what FedML-HE's tables are made of.

Who takes part: FedAvg in clear; ours with a share p encrypted; bare TenSEAL with the same share
encrypted and the rest float32, weighed by the server as in the paper's own TenSEAL version; all of it
encrypted and weighed by clients, as NVIDIA FLARE does. Bare TenSEAL is CKKS of ring dimension 8192 with
one level, scale 2^40, from float32 to bytes and back; the level is for the server's weights (Algorithm
1 of the paper).

Seconds are of the processor, on one thread: one client's from float32 to an upload, making a sealer
included; the server's on three uploads; one client's from the sum to the float32 mean. Of several turns
the minimum of each counts. Longer vectors than the longest that is taken are projected from that one:
"sampled".

Source: Jin et al., "FedML-HE", Sec. 2.3 and appendix D.7.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe.coding.select import Select
from flhe_lab.bench import schemes
from flhe_lab.bench.contender import Contender, Setting, Vector
from flhe_lab.bench.federation import layout_of
from flhe_lab.bench.peers import SLOTS, Weighs, tenseal_ckks
from flhe_lab.bench.schemes import Make
from flhe_lab.bench.turns import Measured
from flhe_lab.bench.turns import measure as timed
from flhe_lab.tables import phase_costs
from flhe_lab.tables.fedml_published import COHORT, MOBILENET
from flhe_lab.tables.marked import Marked, counted, measured
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Plan, Say, Step

PLAIN, OURS = phase_costs.PLAIN, phase_costs.FEDML
TENSEAL, FLARE = "TenSEAL, server weighs", "TenSEAL, clients weigh"
SHARES = (0.0, 0.1, 0.5, 1.0)
"""Encrypted, of every model: all, Fig. 7's tenth and half; and none, to tell what the rest costs."""

MODULI = (60, 40, 60)
"""Bits of TenSEAL's; the last is the key's."""

WARM = Setting(20_000, COHORT)
"""What the turn that warms up takes."""

ENOUGH_S = 30.0
"""Seconds after which two turns are enough, unless the plan is a quick one."""


def ours(share: float) -> str:
    """The name of ours with so much encrypted."""
    return OURS if share == 1 else f"{OURS}, {share:.0%} encrypted"


def tenseals(share: float) -> str:
    """The name of TenSEAL with so much encrypted."""
    return TENSEAL if share == 1 else f"TenSEAL, {share:.0%} encrypted"


# --- who takes part ---


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


# --- steps ---


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
        lambda say: in_turns(ways_of(taken, shares), taken, plan, say),
        f"FedML-HE and TenSEAL, {taken:,} values",
        weight=1 + taken * sum(shares) * plan.repeats / 1e6,
    )


REDUCED_SHARES = (0.3, 1.0)
"""Encrypted, of the values that are sent: Fig. 8's 30%, and Table 5's all."""


def reduced_step(values: int, count: int, plan: Plan) -> Step:
    """The measurement for `count` of `values` that are sent; a quick plan takes a part of both."""
    cut = 16 if plan.quick else 1
    whole, sent = values // cut, count // cut

    def work(say: Say) -> dict[str, Any]:
        ways = ways_of(sent, REDUCED_SHARES)
        return in_turns({name: fewer(make, sent) for name, make in ways.items()}, whole, plan, say)

    return Step(
        f"fedml-reduced-{whole}-{sent}" + ("-quick" if plan.quick else ""),
        work,
        f"FedML-HE and TenSEAL, {sent:,} of {whole:,} values",
        weight=1 + sent * 2.6 * plan.repeats / 1e6,
    )


def in_turns(ways: Mapping[str, Make], values: int, plan: Plan, say: Say) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes."""
    say("warming up")
    _warm_up()
    setting = Setting(values, COHORT)
    updates = setting.updates()
    found = timed(
        [replace(make(setting, updates), name=name) for name, make in ways.items()],
        plan.repeats,
        lambda turn, _n, who: say(f"turn {turn}: {who}"),
        clock=time.process_time,
        enough_s=ENOUGH_S,
        warm=False,
    )
    return {name: _row(each, values) for name, each in found.items()}


@functools.cache
def _warm_up() -> None:
    """Have everything loaded and compiled that the first turn would wait for, once a process."""
    for make in ways_of(WARM.values, (0.5, 1.0)).values():
        make(WARM, WARM.updates()).turn()


def _row(found: Measured, values: int) -> dict[str, Any]:
    seconds = {phase: times.min for phase, times in found.times.items()}
    return {
        "encrypt": seconds["encrypt"],
        "aggregate": COHORT * seconds["add"] + seconds.get("close", 0.0),
        "decrypt": seconds["decrypt"],
        "up": found.contender.upload_bytes,
        "down": found.contender.sum_bytes,
        "values": values,
        "error": found.error,
        "turns": found.repeats,
    }


def read(found: Mapping[str, Any], values: int) -> dict[str, Cost]:
    """Name -> what it took for vectors of `values`, of what a step gave; projected where it sampled.

    `add_s` is a part for each of the three uploads of what the server does.
    """
    out = {}
    for name, row in found.items():
        factor, whole = values / row["values"], values == row["values"]

        def told(number: float, exact: bool, factor: float = factor, whole: bool = whole) -> Marked:
            if not whole:
                return Marked(number * factor, "sampled")
            return counted(number) if exact else measured(number)

        group: Group = "peer" if name.startswith("TenSEAL") else "ours"
        times = (row["encrypt"], row["aggregate"] / COHORT, row["decrypt"])
        sizes = (told(row[way], True) for way in ("up", "down"))
        out[name] = Cost(name, group, *(told(each, False) for each in times), *sizes)
    return out


def total_s(cost: Cost) -> Marked:
    """All phases of an aggregation, one after the other: clients work at the same time."""
    return cost.work_s(COHORT)
