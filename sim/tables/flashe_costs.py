"""FLASHE, Table 2: bytes and seconds of its peers, with a value and with a batch a ciphertext."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flhe_lab.bench import Contender, Setting
from flhe_lab.tables import turns
from flhe_lab.tables.flashe_paper import COHORT, PLAIN_BYTES, TABLE_2
from flhe_lab.tables.marked import Marked, counted, published
from flhe_lab.tables.phase_costs import (
    BFV,
    BFV_PAPER,
    CKKS,
    CKKS_PAPER,
    FLASHE,
    PHE,
    PHE_BATCHED,
    PLAIN,
    WHO,
)
from flhe_lab.tables.section import Found, Plan, Say, Section, Step
from flhe_lab.tables.table import Line, Table, section

BFV_VALUES, CKKS_VALUES = "TenSEAL BFV, a value each", "TenSEAL CKKS, a value each"
NAMES = (PHE, PHE_BATCHED, BFV_VALUES, BFV_PAPER, BFV, CKKS_VALUES, CKKS_PAPER, CKKS, FLASHE)
"""In the order of the paper's table."""

GROUPS = {name: WHO[name].group if name in WHO else "peer" for name in (*NAMES, PLAIN)}
SIZES = tuple(PLAIN_BYTES)
TIMES = ("encryption", "decryption", "addition of 10")


def steps(plan: Plan) -> list[Step]:
    """One step a size: all contenders in turns."""
    return [_step(values, plan.repeats) for values in (SIZES[:2] if plan.quick else SIZES)]


def _step(values: int, repeats: int) -> Step:
    return Step(
        f"flashe-table-2-{values}",
        lambda say: measure(values, repeats, say),
        f"FLASHE's Table 2, {values:,} values",
        weight=5 + values * repeats / 4e5,
    )


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time everybody of Table 2; JSON values."""
    from flhe_lab.tables.flashe_peers import tenseal_values

    setting = Setting(values, COHORT)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for name in NAMES:
        say(f"{name}, making ready")
        if name in WHO:
            contenders[name] = WHO[name].make(setting, updates)
        else:
            contenders[name] = tenseal_values(setting, updates, bfv=name == BFV_VALUES)
    return turns.timed(contenders, repeats, say, sampled=(BFV_VALUES, CKKS_VALUES))


def _table_2(plan: Plan, found: Found) -> Iterator[Line]:
    for step, values in zip(steps(plan), SIZES, strict=False):
        row = f"{values:,} values"
        costs = turns.costs(found[step.key], GROUPS)
        yield Line(row, "plain, float32", "ours", _sizes(counted(4 * values), values))
        for cost in (costs[name] for name in NAMES):
            seconds = (cost.encrypt_s, cost.decrypt_s, cost.add_s * (COHORT - 1))
            times = dict(zip(TIMES, seconds, strict=True))
            yield Line(row, cost.who, cost.group, _sizes(cost.upload_bytes, values) | times)
        yield Line(row, "plaintext", "paper", _sizes(published(PLAIN_BYTES[values]), values))
        for line in TABLE_2:
            if line.values == values:
                told = dict(zip(TIMES, (line.encrypt_s, line.decrypt_s, line.add_s), strict=True))
                yield Line(row, line.method, "paper", _sizes(published(line.size), values) | told)


def _sizes(size: Marked, values: int) -> dict[str, Marked | float | None]:
    return {"size": size / 1024, "size of a value": size / values}


SECTIONS: Sequence[Section] = (section(steps, Table("flashe-table-2", _table_2)),)
