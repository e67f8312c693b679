"""ESAFL, Tables 3 and 4: what packing saves, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from flhe.schemes.esafl.scheme import Eshe
from flhe.schemes.presets import DEFAULT_ESHE, ESHE
from flhe_lab.bench.esafl_sizes import (
    COHORT,
    DIMENSION,
    MB,
    MODELS,
    PAPER_ERRORS,
    Model,
    Row,
    measure,
)
from flhe_lab.bench.schemes import NARROW
from flhe_lab.papers.packing import PaperPacking, unpacked
from flhe_lab.tables.marked import Mark, Marked, counted, published
from flhe_lab.tables.section import Found, Plan, Say, Section, Step
from flhe_lab.tables.table import Line, Table, section

PAPERS_RING = "paper-32768"
RINGS = (DEFAULT_ESHE, NARROW)
BITS_3, BITS_4 = 16, 32
"""Precision of Table 3, and of Table 4."""

HOW = ("without packing", "with packing")
CIPHERTEXTS, TRAFFIC = "ciphertexts", "traffic"
SUM, MEAN = "error of a sum", "error of a mean"
AS_COUNTED, AS_WRITTEN = "paper, as counted", "paper, as written"


def _row(model: Model) -> str:
    return f"{model.name} ({model.values / 1e6:.2f}M)"


def counts(values: int, bits: int = BITS_3, n: int = DIMENSION) -> dict[tuple[str, bool], Row]:
    """(encoding, packed) -> ciphertexts and bytes of an upload; nothing is run.

    Parameters
    ----------
    values, bits : int
        Of the update, and of a value.
    n : int
        Dimension of the paper's ring.
    """
    rows = []
    counting = PaperPacking(COHORT, bits, n, halves=False, zero=False)
    writing = PaperPacking(COHORT, bits, n, offset=False)
    for name, packing in ((AS_COUNTED, counting), (AS_WRITTEN, writing)):
        for each in (unpacked(packing), packing):
            some = each.plaintexts(values)
            nbytes = some * n * ESHE[PAPERS_RING].log_q // 8
            rows.append(Row(name, bits, each.fields > 1, some, nbytes, 0, None))
    for ring in (PAPERS_RING, *RINGS):
        scheme = Eshe(COHORT, bits, ring)
        n_here, name = scheme.sizes.n, f"ours, {ring}"
        if ring == PAPERS_RING:
            nbytes = scheme.limbs.nbytes(values)
            rows.append(Row(name, bits, False, -(-values // n_here), nbytes, 0, None))
        packed = -(-scheme.sizes.slots.count(values) // n_here)
        rows.append(Row(name, bits, True, packed, scheme.nbytes(values), 0, None))
    return {(row.encoding, row.packed): row for row in rows}


def _table_3(_plan: Plan, _found: Found) -> Iterator[Line]:
    for model in MODELS:
        at = _row(model)
        for (name, packed), row in counts(model.values).items():
            numbers = _pair(HOW[packed], counted(row.ciphertexts), counted(row.traffic_mb))
            yield Line(at, name, "ours", numbers)
        clear = f"{TRAFFIC}, {HOW[0]}"
        yield Line(at, "plain", "ours", {clear: counted(8 * model.values / MB)})
        for how, some, size in zip(HOW, model.ciphertexts, model.traffic, strict=True):
            yield Line(at, "ESAFL", "paper", _pair(how, published(some), published(size)))
        yield Line(at, "plain", "paper", {clear: model.plain_traffic})


def _pair(how: str, ciphertexts: Marked, traffic: Marked) -> dict[str, Marked]:
    return {f"{CIPHERTEXTS}, {how}": ciphertexts, f"{TRAFFIC}, {how}": traffic}


def _turns(plan: Plan) -> list[tuple[Model, int]]:
    """What is measured: in a quick run FCN at Table 4's precision, which stands for all."""
    if plan.quick:
        return [(MODELS[0], BITS_4)]
    return [(model, bits) for bits in (BITS_4, BITS_3) for model in MODELS]


def steps_4(plan: Plan) -> list[Step]:
    """Nine clients encrypt, add, decrypt and compare, a step a model and precision."""
    return [_step(model, bits, plan) for model, bits in _turns(plan)]


def _step(model: Model, bits: int, plan: Plan) -> Step:
    sample = 1 if plan.quick else 2
    return Step(
        f"esafl-errors-{model.values}-{bits}-{sample}",
        lambda say: errors(model, bits, sample, say),
        f"ESAFL's errors, {model.name}, {bits} bits",
        weight=7 * sample,
    )


def errors(
    model: Model, bits: int, sample: int, say: Say, n: int = DIMENSION
) -> list[dict[str, Any]]:
    """Rows of `esafl_tables.measure`, as JSON values."""
    rows = measure(
        model,
        bits,
        n=n,
        sample=sample,
        rings=RINGS,
        progress=lambda _done, _whole, what: say(what),
    )
    return [asdict(row) for row in rows]


def _table_4(plan: Plan, found: Found) -> Iterator[Line]:
    for model, bits in _turns(plan):
        at = f"{_row(model)}, {bits} bits"
        for row in found[_step(model, bits, plan).key]:
            error, how = row["error"], HOW[row["packed"]]
            if error is not None:
                mark: Mark = "measured" if row["measured"] == model.values else "sampled"
                both = {SUM: error, MEAN: error / COHORT}
                numbers = {f"{what}, {how}": Marked(n, mark) for what, n in both.items()}
                yield Line(at, row["encoding"], "ours", numbers)
    for model in MODELS:
        at = f"{_row(model)}, {BITS_4} bits"
        numbers_told = {f"{SUM}, {how}": e for how, e in zip(HOW, PAPER_ERRORS, strict=True)}
        yield Line(at, "ESAFL", "paper", numbers_told)


SECTIONS: Sequence[Section] = (
    section(lambda _plan: (), Table("esafl-table-3", _table_3)),
    section(steps_4, Table("esafl-table-4", _table_4)),
)
