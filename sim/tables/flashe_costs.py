"""FLASHE, Table 2: bytes and seconds of its peers, with a value and with a batch a ciphertext."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flhe_lab.papers.published import rows
from flhe_lab.tables import phase_costs
from flhe_lab.tables.headlines import COHORT
from flhe_lab.tables.marked import Marked, counted, published
from flhe_lab.tables.phase_costs import (
    BFV,
    BFV_PAPER,
    BFV_VALUES,
    CKKS,
    CKKS_PAPER,
    CKKS_VALUES,
    FLASHE,
    PHE,
    PHE_BATCHED,
)
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.table import Line, Numbers, Table, section


@dataclass(frozen=True, slots=True)
class Papers:
    """One line of the table: a method's bytes and seconds; None where memory did not suffice."""

    values: int
    method: str
    size: float
    encrypt_s: float
    decrypt_s: float
    add_s: float | None = None


TABLE_2 = rows("flashe", "table_2", Papers)
PLAIN_BYTES = dict(rows("flashe", "plaintexts", lambda values, size: (int(values), float(size))))
NAMES = (PHE, PHE_BATCHED, BFV_VALUES, BFV_PAPER, BFV, CKKS_VALUES, CKKS_PAPER, CKKS, FLASHE)
"""In the order of the paper's table."""

SIZES = tuple(PLAIN_BYTES)
TIMES = ("encryption", "decryption", "addition of 10")


def steps(plan: Plan) -> list[Step]:
    """One step a size: all contenders in turns."""
    sizes = SIZES[:2] if plan.quick else SIZES
    return [phase_costs.step(n, COHORT, NAMES, plan, "flashe-table-2") for n in sizes]


def _table_2(plan: Plan, found: Found) -> Iterator[Line]:
    for step, values in zip(steps(plan), SIZES, strict=False):
        row = f"{values:,} values"
        costs = phase_costs.read(found[step.key])
        yield Line(row, "plain, float32", "ours", _sizes(counted(4 * values), values))
        for cost in (costs[name] for name in NAMES):
            seconds = (cost.encrypt_s, cost.decrypt_s, cost.add_s * (COHORT - 1))
            times = dict(zip(TIMES, seconds, strict=True))
            yield Line(row, cost.who, cost.group, {**_sizes(cost.upload_bytes, values), **times})
        yield Line(row, "plaintext", "paper", _sizes(published(PLAIN_BYTES[values]), values))
        for line in (line for line in TABLE_2 if line.values == values):
            told = dict(zip(TIMES, (line.encrypt_s, line.decrypt_s, line.add_s), strict=True))
            sizes = _sizes(published(line.size), values)
            yield Line(row, line.method, "paper", {**sizes, **told})


def _sizes(size: Marked, values: int) -> Numbers:
    return {"size": size / 1024, "size of a value": size / values}


SECTIONS: Sequence[Section] = (section(steps, Table("flashe-table-2", _table_2)),)
