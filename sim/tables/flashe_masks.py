"""FLASHE, Figures 12 and 13: which masking where clients drop out, and masks that are made ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flhe.sim.bench.mask_counts import CLIENTS, MODES, crossover
from flhe.sim.tables import flashe_dropouts, flashe_prepared
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.dots import dots
from flhe.sim.tables.flashe_dropouts import SETS, crossing
from flhe.sim.tables.flashe_paper import CROSSOVER_80, GAP_80_S, MODELS
from flhe.sim.tables.learned import NAMES, VALUES
from flhe.sim.tables.marked import measured, projected, published, sampled
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.rounds import proportional
from flhe.sim.tables.section import Found, Plan, Section, Step

SAMPLE = 100_000
"""Values that a quick run measures for all models."""

MASKS = "masks a value"
AT, GAP = "crossover", "single less double, no dropout"


def steps(plan: Plan) -> list[Step]:
    """Both maskings at all dropout rates: a step a model, or one sample for all of them."""
    return [_step(model, plan) for model in (MODELS[:1] if plan.quick else MODELS)]


def _step(model: str, plan: Plan) -> Step:
    values, draws = (SAMPLE, 4) if plan.quick else (VALUES[model], 8)
    return Step(
        f"flashe-dropouts-{values}-{draws}",
        lambda say: flashe_dropouts.measure(values, draws, say),
        f"double and single masking with dropouts, {values:,} values",
        weight=2 + values * draws / 4e5,
    )


def _points(model: str, plan: Plan, found: Found) -> tuple[list[dict[str, Any]], float]:
    """What was measured for a model, and how many times larger the model is."""
    factor = VALUES[model] / SAMPLE if plan.quick else 1.0
    return found[_step(model, plan).key], factor


def _time(model: str) -> str:
    return f"HE time, {NAMES[model]}"


def report_12(plan: Plan, found: Found) -> list[Result]:
    """Seconds of both maskings over dropout, and where they cross."""
    lines: list[Entry] = []
    for model in MODELS:
        points, factor = _points(model, plan, found)
        for point in points:
            where, x = f"dropout {point['dropout']:g}", point["dropout"]
            for mode in MODES:
                who = f"{mode}, {point['clients']} clients"
                number = proportional(measured(point["seconds"][mode]), factor)
                lines.append(Entry(where, who, "ours", _time(model), "s", number, x))
                if model == MODELS[0]:
                    masks = sampled(point["masks"][mode])
                    lines.append(Entry(where, who, "ours", MASKS, "", masks, x))
    whats = (*(_time(model) for model in MODELS), MASKS)
    chart = Chart("lines", whats, xlabel="dropout rate")
    notes = (
        "One surviving client's encryption and opening, from integers to integers, one thread; "
        "quantization is no part of it. The mean over random sets of survivors; masks are "
        f"counted, the mean over {SETS} sets, as the paper has it for seconds.",
        *_sampled(plan),
        "The paper's picture has no numbers; what its text tells is in the table of crossovers.",
    )
    title = "a client's HE time under double and single masking, over dropout"
    seconds = Result("flashe-figure-12", "FLASHE, Figure 12", title, tuple(lines), chart, notes)
    return [seconds, _crossovers(plan, found)]


def _sampled(plan: Plan) -> tuple[str, ...]:
    if not plan.quick:
        return ()
    return (f"A quick run measures {SAMPLE:,} values; the models' seconds are proportional.",)


def _crossovers(plan: Plan, found: Found) -> Result:
    out: list[Entry] = []
    mark = sampled if plan.quick else measured
    for count in CLIENTS:
        where = f"{count} clients"
        out.append(Entry(where, "masks, Theorem 2", "ours", AT, "", projected(crossover(count))))
        for model in MODELS:
            points, factor = _points(model, plan, found)
            mine = [p for p in points if p["clients"] == count]
            rates = [p["dropout"] for p in mine]
            if model == MODELS[0]:  # masks are those of any model
                masks = crossing(rates, *([p["masks"][mode] for p in mine] for mode in MODES))
                if masks is not None:
                    out.append(Entry(where, "masks, counted", "ours", AT, "", sampled(masks)))
            double, single = ([p["seconds"][mode] for p in mine] for mode in MODES)
            at = crossing(rates, double, single)
            who = f"seconds, {NAMES[model]}"
            if at is not None:
                out.append(Entry(where, who, "ours", AT, "", mark(at)))
            gap = proportional(measured(single[0] - double[0]), factor)
            out.append(Entry(where, who, "ours", GAP, "s", gap))
    largest = f"{CLIENTS[-1]} clients"
    out.append(Entry(largest, "text", "paper", AT, "", published(CROSSOVER_80)))
    for model, gap_s in GAP_80_S.items():
        who = f"text, {'least' if model == MODELS[0] else 'most'} of three"
        out.append(Entry(largest, who, "paper", GAP, "s", published(gap_s)))
    notes = (
        "The dropout rate beyond which single masking takes less, on straight lines between "
        "tenths.",
        *_sampled(plan),
        "By Theorem 2 the crossover is 0.476 for 80 clients and 0.408 for 20; the paper tells "
        "0.4 for 80. It lies below 0.3 for fewer than nine clients, and for two or three at no "
        "rate at all; the paper (Sec. 3.6) has it between 0.3 and 0.5.",
    )
    chart = dots(out, (AT, GAP))
    title = "where single masking becomes cheaper"
    name = "flashe-figure-12-crossovers"
    return Result(name, "FLASHE, Figure 12", title, tuple(out), chart, notes)


SECTIONS: Sequence[Section] = (
    Section("flashe-figure-12", "FLASHE", steps, report_12, ("Figure 12",)),
    flashe_prepared.SECTION,
)
