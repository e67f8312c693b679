"""ESAFL, Tables 3 and 4: what packing saves, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flhe.schemes.eshe import Eshe
from flhe.schemes.presets import DEFAULT_ESHE, ESHE
from flhe.sim.bench.esafl_sizes import (
    COHORT,
    DIMENSION,
    MB,
    MODELS,
    PAPER_ERRORS,
    Model,
    Row,
    measure,
)
from flhe.sim.bench.schemes import NARROW
from flhe.sim.paper_packing import PaperPacking, unpacked
from flhe.sim.tables.dots import dots
from flhe.sim.tables.marked import Mark, Marked, counted, published
from flhe.sim.tables.result import Entry, Group, Result
from flhe.sim.tables.section import Found, Plan, Say, Section, Step

PAPERS_RING = "paper-32768"
RINGS = (DEFAULT_ESHE, NARROW)
BITS_3, BITS_4 = 16, 32
"""Precision of Table 3, and of Table 4."""

HOW = ("without packing", "with packing")
CIPHERTEXTS, TRAFFIC = "ciphertexts", "traffic"
SUM, MEAN = "error of a sum", "error of a mean"
AS_COUNTED, AS_WRITTEN = "paper, as counted", "paper, as written"
READINGS = (
    "The paper's encoding is built as printed, in two readings: 'as counted', n/2 values a "
    "polynomial and no polynomial left empty, which gives Table 3's counts; 'as written', n values "
    "and one left empty. Ours has a value a coefficient, in the paper's ring (without packing), and "
    "packed in flhe's."
)


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


def report_3(_plan: Plan, _found: Found) -> list[Result]:
    """Ciphertexts and traffic of one client."""
    out: list[Entry] = []
    for model in MODELS:
        at = _row(model)
        for (name, packed), row in counts(model.values).items():
            some, size = counted(row.ciphertexts), counted(row.traffic_mb)
            out += _pair(at, name, "ours", HOW[packed], some, size)
        clear, told = counted(8 * model.values / MB), published(model.plain_traffic)
        out.append(Entry(at, "plain", "ours", f"{TRAFFIC}, {HOW[0]}", "MB", clear))
        for how, some_told, size_told in zip(HOW, model.ciphertexts, model.traffic, strict=True):
            out += _pair(at, "ESAFL", "paper", how, published(some_told), published(size_told))
        out.append(Entry(at, "plain", "paper", f"{TRAFFIC}, {HOW[0]}", "MB", told))
    notes = (
        "One client, up and down, MB of 2^20 bytes; plain is float32. Nothing is run: ciphertexts "
        "are counted, and tests compare these counts with what is encrypted. A ciphertext of the "
        "paper's is 1.867 MB, of 32,768 coefficients of 478 bits; of ours, n = 4096 with 64 bits or "
        "n = 8192 with the bits that nine summands need.",
        READINGS,
        "The paper's 1.87 MB of FCN with packing is one way; all its other traffic is both. With "
        "the down link, too, it is 3.73 MB, and what ESAFL has over BatchCrypt there is gone.",
    )
    chart = dots(out, tuple(f"{TRAFFIC}, {how}" for how in HOW), log=True)
    title = "ciphertexts and traffic of an iteration"
    return [Result("esafl-table-3", "ESAFL, Table 3", title, tuple(out), chart, notes)]


def _pair(
    at: str, who: str, group: Group, how: str, ciphertexts: Marked, traffic: Marked
) -> list[Entry]:
    return [
        Entry(at, who, group, f"{CIPHERTEXTS}, {how}", "", ciphertexts),
        Entry(at, who, group, f"{TRAFFIC}, {how}", "MB", traffic),
    ]


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


def report_4(plan: Plan, found: Found) -> list[Result]:
    """Errors of decrypted sums and means."""
    out: list[Entry] = []
    for model, bits in _turns(plan):
        at = f"{_row(model)}, {bits} bits"
        out += _errors(at, model.values, found[_step(model, bits, plan).key])
    for model in MODELS:
        for how, error in zip(HOW, PAPER_ERRORS, strict=True):
            at = f"{_row(model)}, {BITS_4} bits"
            out.append(Entry(at, "ESAFL", "paper", f"{SUM}, {how}", "", published(error)))
    notes = (
        "Mean absolute error over the values of a decrypted sum of nine, values uniform in [0, 1], "
        "and a ninth of it, the mean's. As printed, encryption takes 0.15 s a ciphertext: of long "
        "updates only the first plaintexts are run.",
        READINGS,
        "The paper has 10^-2 without packing and 10^-9 with it, both at 32 bits. By its text both "
        "encode alike, and are found equally exact: its 10^-9 is that of a mean at 32 bits, its "
        "10^-2 what either is off by at 16.",
        *(("A quick run measures FCN at 32 bits only.",) if plan.quick else ()),
    )
    chart = dots(out, tuple(f"{SUM}, {how}" for how in HOW), log=True)
    title = "error of decrypted sums"
    return [Result("esafl-table-4", "ESAFL, Table 4", title, tuple(out), chart, notes)]


def _errors(at: str, values: int, rows: Sequence[Mapping[str, Any]]) -> list[Entry]:
    out = []
    for row in rows:
        error, how = row["error"], HOW[row["packed"]]
        if error is None:
            continue
        mark: Mark = "measured" if row["measured"] == values else "sampled"
        for what, number in ((SUM, error), (MEAN, error / COHORT)):
            entry = Entry(at, row["encoding"], "ours", f"{what}, {how}", "", Marked(number, mark))
            out.append(entry)
    return out


SECTIONS: Sequence[Section] = (
    Section("esafl-table-3", "ESAFL", lambda _plan: (), report_3, ("Table 3",)),
    Section("esafl-table-4", "ESAFL", steps_4, report_4, ("Table 4",)),
)
