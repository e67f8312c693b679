"""ESAFL, Figures 4 to 6 and Table 5: an iteration, its traffic, training to the end.

Tables 3 and 4 are in `esafl_packing`, learning curves (Figure 3) in `learned`. Everybody is measured in
the same steps as for BatchCrypt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flhe.sim.bench.esafl_sizes import MODELS as TABLE_3
from flhe.sim.tables import batchcrypt_paper, esafl_packing
from flhe.sim.tables import phase_costs as costs_of
from flhe.sim.tables.batchcrypt_paper import (
    BATCHCRYPT,
    COHORT,
    ESAFL,
    FATE,
    ITERATIONS,
    MODELS,
    PLAIN,
    line,
)
from flhe.sim.tables.batchcrypt_round import (
    AGGREGATION,
    GIGABYTES,
    HOURS,
    TRAFFIC,
    breakdown,
    convergence,
    notes,
    result,
    steps,
    told,
    traffic,
)
from flhe.sim.tables.phase_costs import BATCHCRYPT_2048, ESAFL_NARROW, PHE, PHE_BATCHED
from flhe.sim.tables.result import Entry, Result, ratios
from flhe.sim.tables.rounds import TOTAL
from flhe.sim.tables.section import Found, Plan, Section

ENCRYPTED = (PHE, PHE_BATCHED, BATCHCRYPT_2048, costs_of.ESAFL, ESAFL_NARROW)
CLEAR = (costs_of.ESAFL, ESAFL_NARROW, costs_of.PLAIN)
PAPERS = (FATE, BATCHCRYPT, ESAFL, PLAIN)

PRESETS = (
    "ESAFL has the ring goldilocks-4096, flhe's default, or rns-8192, which is slower and sends "
    "less; values have 16 bits, as in the paper."
)
BORROWED = (
    "The paper's FATE and BatchCrypt are BatchCrypt's numbers, of other machines and of Python; "
    "its own are of C++ on a desktop. Here all are run in turns on one machine."
)
FROM_TABLE_5 = (
    "The paper's iterations of ESAFL and plain are the hours of its Table 5 by its epochs and 52, 44 "
    "and 174 iterations an epoch, which BatchCrypt's hours imply. Hours are told to a tenth: the 0.2 "
    "of plain FCN may be off by a quarter."
)


def iteration_s(model: str) -> Mapping[str, float]:
    """Mode -> seconds of an iteration in the paper."""
    borrowed = batchcrypt_paper.iteration_s(model)
    own = {
        mode: said.hours * 3600 / (said.epochs * ITERATIONS[model])
        for mode, said in ((mode, line("ESAFL", model, mode)) for mode in (ESAFL, PLAIN))
    }
    return {FATE: borrowed[FATE], BATCHCRYPT: borrowed[BATCHCRYPT], **own}


def traffic_mb(model: str) -> Mapping[str, float]:
    """Mode -> MB of an iteration in the paper, all nine clients: nine times Table 3."""
    borrowed = batchcrypt_paper.traffic_mb(model)
    said = TABLE_3[MODELS.index(model)]
    own = {ESAFL: COHORT * said.traffic[1], PLAIN: COHORT * said.plain_traffic}
    return {FATE: borrowed[FATE], BATCHCRYPT: borrowed[BATCHCRYPT], **own}


def report_4(plan: Plan, found: Found) -> list[Result]:
    """Where an iteration goes."""
    out = breakdown(plan, found, ENCRYPTED)
    out += told(TOTAL, "s", iteration_s, PAPERS[:3])
    out += ratios(out, TOTAL, ESAFL)
    said = notes(plan, PRESETS, BORROWED, "Fig. 4 is a picture without numbers.", FROM_TABLE_5)
    whats = ("encryption", "decryption", "idle", AGGREGATION, TOTAL)
    return [result("ESAFL", "Figure 4", "time of an iteration", out, whats, said)]


def report_5(plan: Plan, found: Found) -> list[Result]:
    """What an iteration transfers."""
    out = traffic(plan, found, ENCRYPTED)
    out += told(TRAFFIC, "MB", traffic_mb, PAPERS[:3])
    out += ratios(out, TRAFFIC, ESAFL)
    said = notes(
        plan,
        PRESETS,
        "All nine clients, up and down, MB of 2^20 bytes. Fig. 5 is a picture without numbers: the "
        "paper's here are BatchCrypt's for FATE and BatchCrypt, and nine times Table 3 for ESAFL, of "
        "which FCN's is one way. Its text has FATE at 68, 103 and 112 times ESAFL.",
    )
    return [result("ESAFL", "Figure 5", "traffic of an iteration", out, (TRAFFIC,), said)]


def report_6(plan: Plan, found: Found) -> list[Result]:
    """ESAFL beside no encryption at all."""
    times = [e for e in breakdown(plan, found, CLEAR) if e.what == TOTAL]
    out: list[Entry] = [*times, *traffic(plan, found, CLEAR)]
    out += told(TOTAL, "s", iteration_s, PAPERS[2:])
    out += told(TRAFFIC, "MB", traffic_mb, PAPERS[2:])
    out += [*ratios(out, TOTAL, PLAIN), *ratios(out, TRAFFIC, PLAIN)]
    said = notes(
        plan,
        PRESETS,
        "Plain is float32. Traffic is of all nine clients, MB of 2^20 bytes. Fig. 6 is a picture "
        "without numbers; the paper's traffic here is nine times Table 3's, where FCN's ESAFL is "
        "one way and its plain is both.",
        FROM_TABLE_5,
    )
    return [result("ESAFL", "Figure 6", "an iteration, beside plain", out, (TOTAL, TRAFFIC), said)]


def report_table_5(plan: Plan, found: Found) -> list[Result]:
    """Hours and GB until convergence."""
    out = convergence("ESAFL", plan, found, (*ENCRYPTED, costs_of.PLAIN), PAPERS)
    for what, _ in (HOURS, GIGABYTES):
        out += [*ratios(out, what, PLAIN), *ratios(out, what, ESAFL)]
    said = notes(
        plan,
        PRESETS,
        "Projected as the paper does: an iteration, times the iterations of the paper's epochs, "
        "which are taken over for whoever stands for them. An epoch has 52, 44 and 174 iterations, "
        "as BatchCrypt's hours imply. Traffic is of all nine clients, up and down, GB of 2^30 bytes.",
        BORROWED,
        "The paper's GB of ESAFL and plain are of all nine clients for FCN, and of one for AlexNet "
        "and LSTM; FATE's and BatchCrypt's, taken from BatchCrypt, are of nine, and for these two "
        "models of a tenth of the iterations. So the ratios between them that the text quotes are "
        "of unlike things for two models of three. LSTM's 139.9 to 100.4 GB, over as many epochs, "
        "are 1.39 where Table 3 has 44.82 to 30.67 MB, 1.46.",
        "Its accuracies are not those of its Sec. 8.2: 88.79% here, 89.05% there for FCN; losses of "
        "0.0351 and 0.0357 for LSTM here, 0.0337 and 0.0336 there.",
        "The slowdowns of its text are increases, one less than the ratio (see "
        "docs/corrections.md).",
    )
    title = "training to convergence: hours and traffic"
    return [result("ESAFL", "Table 5", title, out, (HOURS[0], GIGABYTES[0]), said)]


SECTIONS: Sequence[Section] = (
    *esafl_packing.SECTIONS,
    Section("esafl-figure-4", "ESAFL", steps, report_4, ("Figure 4",)),
    Section("esafl-figure-5", "ESAFL", steps, report_5, ("Figure 5",)),
    Section("esafl-figure-6", "ESAFL", steps, report_6, ("Figure 6",)),
    Section("esafl-table-5", "ESAFL", steps, report_table_5, ("Table 5",)),
)
