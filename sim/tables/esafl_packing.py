"""ESAFL, Tables 3 and 4: what packing saves, and what it costs in accuracy.

Who takes part, what is counted and what is run: see the tables' notes. Moduli of ours are as small as
the slots allow, within the preset's bound. As printed, encryption takes 0.15 s a ciphertext, so of each
vector only the first plaintexts are taken.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 8.1.2 and 8.2, Tables 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.schemes.esafl.adder import EsaflOpener, EsaflSealer
from flhe.schemes.esafl.keys import Total, draw_own
from flhe.schemes.esafl.scheme import DEFAULT_ESHE, Esafl
from flhe.schemes.sealed import Sealed
from flhe_lab.bench.contender import SLOT
from flhe_lab.bench.schemes import NARROW
from flhe_lab.papers.esafl import LOG_Q, PaperEshe
from flhe_lab.papers.packing import COHORT, ERRORS, TABLE_3, PaperPacking, added, vectors
from flhe_lab.papers.published import MB
from flhe_lab.tables.batchcrypt import ROUNDS
from flhe_lab.tables.result import Mark, Marked, counted, published
from flhe_lab.tables.table import Found, Line, Plan, Say, Section, Step, Table, section

DIMENSION = 1 << 15
PAPERS_RING = "paper-32768"
RINGS = (DEFAULT_ESHE, NARROW)
BITS_3, BITS_4 = 16, 32
"""Precision of Table 3, and of Table 4."""

HOW = ("without packing", "with packing")
CIPHERTEXTS, TRAFFIC = "ciphertexts", "traffic"
SUM, MEAN = "error of a sum", "error of a mean"
AS_COUNTED, AS_WRITTEN = "paper, as counted", "paper, as written"
NOTHING = np.empty(0, np.int64)


Way = tuple[str, bool]
"""Whose encoding, and how it is read; whether a coefficient holds several values."""


def papers_ways(bits: int, n: int = DIMENSION) -> dict[Way, PaperPacking]:
    """The paper's encoding, as it is read; `n` is its ring's dimension."""
    counting = PaperPacking(COHORT, bits, n, halves=False, zero=False)
    writing = PaperPacking(COHORT, bits, n, offset=False)
    return {
        (name, packed): replace(packing, packed=packed)
        for name, packing in ((AS_COUNTED, counting), (AS_WRITTEN, writing))
        for packed in (False, True)
    }


def counts(values: int, bits: int = BITS_3, n: int = DIMENSION) -> dict[Way, tuple[int, int]]:
    """Polynomials and bytes that a client uploads of so many values; nothing is run."""
    found: dict[Way, tuple[int, int]] = {}
    for way, packing in papers_ways(bits, n).items():
        some = packing.plaintexts(values)
        found[way] = some, some * n * LOG_Q // 8
    for ring in (PAPERS_RING, *RINGS):
        adder, name = Esafl(ring, "joint").adder(COHORT, bits), f"ours, {ring}"
        if ring == PAPERS_RING:
            found[name, False] = -(-values // adder.sizes.n), adder.limbs.nbytes(values)
        packed_into = -(-adder.sizes.slots.count(values) // adder.sizes.n)
        found[name, True] = packed_into, adder.nbytes(values)
    return found


def errors(
    model: Any, bits: int, sample: int, say: Say, n: int = DIMENSION
) -> list[dict[str, Any]]:
    """What of `counts` is run, as JSON values; as printed, so many plaintexts of each vector.

    "measured" are the values that were really encrypted, added and decrypted, "error" is the mean
    absolute error of the sum of nine.
    """
    found: list[dict[str, Any]] = []
    for (name, packed), packing in papers_ways(bits, n).items():
        say(name)
        count = min(model.values, sample * packing.capacity)
        error = _papers_error(packing, count)
        found.append({"encoding": name, "packed": packed, "measured": count, "error": error})
    for ring in RINGS:
        name = f"ours, {ring}"
        say(name)
        error = _our_error(model.values, bits, ring)
        found.append({"encoding": name, "packed": True, "measured": model.values, "error": error})
    return found


def _papers_error(packing: PaperPacking, count: int) -> float:
    eshe = PaperEshe(COHORT, packing.n, weight=min(64, packing.n))
    a, exact = eshe.public(), np.zeros(count)
    s = [0] * packing.n
    totals = None
    for values in vectors(count):
        key = eshe.key()
        s = [x + y for x, y in zip(s, key, strict=True)]
        parts = [eshe.encrypt(a, key, m) for m in packing.pack(values)]
        totals = parts if totals is None else added([totals, parts], LOG_Q)
        exact += values
    assert totals is not None
    opened = packing.unpack([eshe.decrypt(a, s, total) for total in totals], count, COHORT)
    return float(np.abs(opened - exact).mean())


def _our_error(count: int, bits: int, ring: str) -> float:
    adder = Esafl(ring, "joint").adder(COHORT, bits)
    levels = adder.space.bound
    group_key, exact = bytes(32), np.zeros(count)  # it guards nothing but random numbers
    owns = [draw_own(adder.sizes.n) for _ in range(COHORT)]
    s: Total = np.add.reduce(owns, dtype=np.int32)
    total: Sealed | None = None
    for j, values in enumerate(vectors(count)):
        sealer = EsaflSealer(adder, group_key, j, owns[j])
        plain = Plain(np.rint(values * levels).astype(np.int32), NOTHING)
        total = adder.add(total, sealer.encrypt(plain, SLOT))
        exact += values
    assert total is not None
    opened = EsaflOpener(adder, group_key, s).decrypt(total) / levels
    return float(np.abs(opened - exact).mean())


def _row(model: Any) -> str:
    return f"{model.name} ({model.values / 1e6:.2f}M)"


def _table_3(_plan: Plan, _found: Found) -> Iterator[Line]:
    for model in TABLE_3:
        at = _row(model)
        for (name, packed), (some, nbytes) in counts(model.values).items():
            numbers = _pair(HOW[packed], counted(some), counted(2 * nbytes / MB))
            yield Line(at, name, "ours", numbers)
        clear = f"{TRAFFIC}, {HOW[0]}"
        yield Line(at, "plain", "ours", {clear: counted(8 * model.values / MB)})
        for how, some, size in zip(HOW, model.ciphertexts, model.traffic, strict=True):
            yield Line(at, "ESAFL", "paper", _pair(how, published(some), published(size)))
        yield Line(at, "plain", "paper", {clear: model.plain_traffic})


def _pair(how: str, ciphertexts: Marked, traffic: Marked) -> dict[str, Marked]:
    return {f"{CIPHERTEXTS}, {how}": ciphertexts, f"{TRAFFIC}, {how}": traffic}


def _turns(plan: Plan) -> list[tuple[Any, int]]:
    """What is measured: in a quick run FCN at Table 4's precision, which stands for all."""
    if plan.quick:
        return [(TABLE_3[0], BITS_4)]
    return [(model, bits) for bits in (BITS_4, BITS_3) for model in TABLE_3]


def _step(model: Any, bits: int, plan: Plan) -> Step:
    sample = 1 if plan.quick else 2
    return Step(
        f"esafl-errors-{model.values}-{bits}-{sample}",
        lambda say: errors(model, bits, sample, say),
        f"ESAFL's errors, {model.name}, {bits} bits",
    )


def _table_4(plan: Plan, found: Found) -> Iterator[Line]:
    for model, bits in _turns(plan):
        at = f"{_row(model)}, {bits} bits"
        for row in found[_step(model, bits, plan).key]:
            mark: Mark = "measured" if row["measured"] == model.values else "sampled"
            both = {SUM: row["error"], MEAN: row["error"] / COHORT}
            how = HOW[row["packed"]]
            numbers = {f"{what}, {how}": Marked(n, mark) for what, n in both.items()}
            yield Line(at, row["encoding"], "ours", numbers)
    for model in TABLE_3:
        at = f"{_row(model)}, {BITS_4} bits"
        numbers_told = {f"{SUM}, {how}": e for how, e in zip(HOW, ERRORS, strict=True)}
        yield Line(at, "ESAFL", "paper", numbers_told)


SECTIONS: Sequence[Section] = (
    section(lambda _plan: (), Table("esafl-table-3", _table_3)),
    section(
        lambda plan: [_step(model, bits, plan) for model, bits in _turns(plan)],
        Table("esafl-table-4", _table_4),
    ),
    *(found for name, found in ROUNDS.items() if name.startswith("esafl")),
)
