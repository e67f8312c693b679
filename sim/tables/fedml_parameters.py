"""FedML-HE's Table 6: CKKS by the values in a ciphertext and the scale, under TenSEAL.

The paper's batch is how many slots are used, in one ring. What a scale does to a model is seen in the
error of a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flhe_lab.bench.contender import Setting
from flhe_lab.bench.peers import SLOTS, tenseal_ckks
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.papers.published import MB
from flhe_lab.tables.fedml_measure import CNN, COHORT, TABLE_6
from flhe_lab.tables.result import Marked, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

HEAD = 5
"""Bits of the data's prime above the scale: sign, integer part, and noise where it is that large."""

SHORTEST, KEYS = 20, 60
"""Bits of the shortest prime that there is for a ring of 8192; of the keys' prime."""


def cost_of_setups(values: int, repeats: int, say: Say) -> list[dict[str, Any]]:
    """Seconds, bytes and error of one mean of `values`, by batch and scale."""
    setting = Setting(values, COHORT)
    updates, found = setting.updates(), []
    for paper in TABLE_6:
        say(f"{paper.batch} values, {paper.scale} bits")
        # The shortest prime that carries values below 2**(HEAD - 1).
        moduli = max(paper.scale + HEAD, SHORTEST), KEYS
        cipher = tenseal_ckks(moduli, paper.scale, slots=paper.batch, weighs="client", wire=True)
        way = cipher.contender(setting, updates, alike=False)
        # How far it is off is what is asked for: it may be far.
        (seen,) = in_turns([replace(way, error=None)], repeats).values()
        seconds = seen.least
        row = {
            "slots": paper.batch,
            "scale": paper.scale,
            "values": values,
            "seconds": sum(seconds.values()) + (COHORT - 1) * seconds["add"],
            "bytes": way.upload_bytes,
            "error": way.error() if way.error else None,
        }
        found.append(row)
    return found


def _step(plan: Plan) -> Step:
    values = SLOTS * (4 if plan.quick else 16)
    return Step(
        f"fedml-parameters-{values}",
        lambda say: cost_of_setups(values, 1 if plan.quick else 3, say),
        "CKKS by batch and scale",
    )


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    costs = {(cost["slots"], cost["scale"]): cost for cost in found[_step(plan).key]}
    for paper in sorted(TABLE_6, key=lambda paper: paper.scale):
        cost, row, x = costs[paper.batch, paper.scale], f"{paper.scale} bits", float(paper.scale)
        factor = CNN.values / cost["values"]
        numbers = {
            "aggregation": Marked(cost["seconds"] * factor, "sampled"),
            "upload": Marked(cost["bytes"] * factor / MB, "sampled"),
            "largest error": measured(cost["error"]),
        }
        yield Line(row, f"TenSEAL, {paper.batch} values", "peer", numbers, x)
        theirs = {
            "aggregation": paper.seconds,
            "upload": paper.nbytes / MB,
            "test accuracy": paper.change,
        }
        yield Line(row, f"{paper.batch} values", "paper", theirs, x)


def _told(plan: Plan, found: Found) -> dict[str, object]:
    return {"taken": found[_step(plan).key][0]["values"]}


TABLE_6_SECTION = section(lambda plan: [_step(plan)], Table("fedml-table-6", _lines, _told))
