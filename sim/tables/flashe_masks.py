"""FLASHE, Figures 12 and 13: which masking where clients drop out, and masks that are made ahead.

The paper measures seconds (Fig. 12); a second there is mostly AES, and AES is called once for each
mask. So masks are counted too, by asking FLASHE itself which streams it would take, for random sets of
survivors: no machine's speed is in that (Theorem 2).
"""

from __future__ import annotations

import secrets
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.schemes.flashe.adder import FlasheAdder, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.masking import Mode, for_dropout
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sealed import Sealed
from flhe_lab.advise.round_model import simulate, typical
from flhe_lab.bench.contender import SLOT, Contender, Setting
from flhe_lab.bench.schemes import flashe
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.tables.evaluation import NAMES, TOTAL, VALUES, row, work_of
from flhe_lab.tables.flashe_rounds import EVALUATION, MODELS
from flhe_lab.tables.headlines import COHORT
from flhe_lab.tables.phase_costs import FLASHE, read, timed
from flhe_lab.tables.result import Marked, measured, projected, sampled
from flhe_lab.tables.table import Found, Line, Plan, Say, Section, Step, Table, section

CLIENTS = (20, 40, 80)
MODES: tuple[Mode, Mode] = ("double", "single")

MODEL = MODELS[-1]
"""Whose seconds Figure 12 has here: those of the others are in proportion."""

CROSSOVER_80 = 0.4
"""Dropout rate beyond which single masking is faster among 80 clients, Sec. 6.5."""

GAP_80_S = 3.1
"""Seconds that single masking takes more among 80 clients without dropouts, Sec. 6.5: at most."""

SAVED_S = {"resnet20": 1.2, "gru": 1.2, "cnn": 2.1}
"""Seconds that mask precomputation takes off an iteration, Sec. 6.6."""

LEFT_S = 0.1
"""Seconds of encryption and decryption that it leaves at most, Sec. 6.6."""

MASKS = "masks a value"
AT, GAP = "crossover", "single less double, no dropout"
WAYS = ("nothing ahead", "masks ahead")
CRITICAL, AHEAD, SAVED = "HE on the critical path", "masks, while it waits", "saved"

# --- Figure 12, measured: one client's encryption and opening under both maskings ---

RATES = tuple(i / 10 for i in range(10))
"""0 to 0.9, as in the paper."""

SETS = 50
"""Sets of survivors at a rate for which masks are counted, as in the paper."""

SEED = 12
REPEATS = 5
"""Of one set, of which the fastest counts."""

CHECKED = 1000
"""Values of the sums that are opened to see that they are right."""


def measure_dropouts(
    values: int,
    draws: int,
    say: Say,
    *,
    clients: Sequence[int] = CLIENTS,
    rates: Sequence[float] = RATES,
) -> list[dict[str, Any]]:
    """For each number of clients and each rate: mean seconds, and mean masks a value.

    Seconds are of one survivor, from quantized integers to a ciphertext and from the sum to integers,
    the mean over `draws` random sets of survivors. What the data are makes no difference to that, so
    the ciphertext that is opened is the survivor's own, named as the sum; a short sum is added up and
    opened for each set and masking.

    Raises FlheError: a sum that opens to something else.
    """
    rng = np.random.default_rng(SEED)  # who survives, and test data; masks never come from here
    out = []
    for count in clients:
        plain = _integers(values, rng)
        for rate in rates:
            share, sets = survivors_of(count, rate, SETS, rng)
            say(f"{count} clients, dropout {share:g}")
            adders = {mode: Flashe(mode).adder(count) for mode in MODES}
            taking = [
                _one(f"{mode} {i}", adders[mode], senders, plain, rng)
                for i, senders in enumerate(sets[:draws])
                for mode in MODES
            ]
            seen = in_turns(taking, REPEATS)
            took = {
                mode: sum(seen[f"{mode} {i}"].least["both"] for i in range(draws)) / draws
                for mode in MODES
            }
            masks = {mode: masks_made(adders[mode], sets) for mode in MODES}
            out.append({"clients": count, "dropout": share, "seconds": took, "masks": masks})
    return out


def _one(
    name: str, adder: FlasheAdder, senders: tuple[int, ...], plain: Plain, rng: np.random.Generator
) -> Contender:
    def both() -> None:
        key = secrets.token_bytes(32)
        part = FlasheSealer(adder, key, senders[0]).encrypt(plain, SLOT)
        FlasheOpener(adder, key).decrypt(replace(part, senders=senders))

    def error() -> float:
        """By how much a short sum of those clients opens to something else."""
        key, plains = secrets.token_bytes(32), [_integers(CHECKED, rng) for _ in senders]
        total: Sealed | None = None
        for rank, each in zip(senders, plains, strict=True):
            total = adder.add(total, FlasheSealer(adder, key, rank).encrypt(each, SLOT))
        assert total is not None
        exact = np.sum([each.values for each in plains], axis=0, dtype=np.int64)
        return float(np.abs(FlasheOpener(adder, key).decrypt(total) - exact).max())

    return Contender(name, {"both": both}, error=error)


def _integers(count: int, rng: np.random.Generator) -> Plain:
    """Quantized values that use the whole of 16 bits, and no extras."""
    largest = (1 << 15) - 1
    drawn = rng.integers(-largest, largest, count, np.int32, endpoint=True)
    return Plain(drawn, np.empty(0, np.int64))


def crossover(members: int) -> float:
    """The dropout rate up to which double masking makes no more masks than single.

    0.0 where that is so at no rate above: among two or three clients.
    """
    rates = range(1 << 40)
    above = bisect_left(rates, True, key=lambda i: for_dropout(members, i / len(rates)) == "single")
    return max(above - 1, 0) / len(rates)


def survivors_of(
    clients: int, dropout: float, sets: int, rng: np.random.Generator
) -> tuple[float, list[tuple[int, ...]]]:
    """What a dropout rate comes to in whole clients, and random sets of survivors."""
    survivors = round(clients * (1 - dropout))
    chosen = (rng.choice(clients, survivors, replace=False).tolist() for _ in range(sets))
    return (clients - survivors) / clients, [tuple(sorted(each)) for each in chosen]


def masks_made(adder: FlasheAdder, sets: Sequence[Sequence[int]]) -> float:
    """Masks that a survivor makes for a value, its own and then those of the sum: the sets' mean."""
    return statistics.fmean(
        sum(map(len, (*adder.mask_terms(senders[:1]), *adder.mask_terms(senders))))
        for senders in sets
    )


def crossing(
    rates: Sequence[float], double: Sequence[float], single: Sequence[float]
) -> float | None:
    """The rate beyond which single masking takes less, on straight lines; None where there is none.

    Where noise makes them cross more than once, it is where fewest points lie on the wrong side.
    """
    gaps = [s - d for s, d in zip(single, double, strict=True)]
    wrong = [
        sum(g < 0 for g in gaps[:at]) + sum(g >= 0 for g in gaps[at:])
        for at in range(len(gaps) + 1)
    ]
    at = wrong.index(min(wrong))
    if at in (0, len(gaps)):
        return None
    before, after = gaps[at - 1], gaps[at]  # one more point to either side would have been wrong
    return rates[at - 1] + (rates[at] - rates[at - 1]) * before / (before - after)


def _dropout_step(plan: Plan) -> Step:
    """Both maskings at all dropout rates."""
    values, draws = VALUES[MODEL], 1 if plan.quick else 8
    return Step(
        f"flashe-dropouts-{values}-{draws}",
        lambda say: measure_dropouts(values, draws, say),
        f"double and single masking with dropouts, {values:,} values",
    )


def _figure_12(plan: Plan, found: Found) -> Iterator[Line]:
    for point in found[_dropout_step(plan).key]:
        where, x = f"dropout {point['dropout']:g}", point["dropout"]
        for mode in MODES:
            numbers = {
                f"HE time, {NAMES[MODEL]}": measured(point["seconds"][mode]),
                MASKS: sampled(point["masks"][mode]),
            }
            yield Line(where, f"{mode}, {point['clients']} clients", "ours", numbers, x)


def _crossovers(plan: Plan, found: Found) -> Iterator[Line]:
    for count in CLIENTS:
        where = f"{count} clients"
        yield Line(where, "masks, Theorem 2", "ours", {AT: projected(crossover(count))})
        mine = [p for p in found[_dropout_step(plan).key] if p["clients"] == count]
        rates = [p["dropout"] for p in mine]
        for what, who, mark in (
            ("masks", "masks, counted", sampled),
            ("seconds", f"seconds, {NAMES[MODEL]}", measured),
        ):
            double, single = ([p[what][mode] for p in mine] for mode in MODES)
            at = crossing(rates, double, single)
            gap = measured(single[0] - double[0]) if what == "seconds" else None
            yield Line(where, who, "ours", {AT: None if at is None else mark(at), GAP: gap})
    yield Line(f"{CLIENTS[-1]} clients", "text", "paper", {AT: CROSSOVER_80, GAP: GAP_80_S})


def _ahead_step(model: str, plan: Plan) -> Step:
    values, repeats = VALUES[model], 3 * plan.repeats
    setting = Setting(values, COHORT)
    return Step(
        f"flashe-ahead-{values}-{repeats}",
        lambda say: timed({FLASHE: flashe(setting, setting.updates(), ahead=True)}, repeats, say),
        f"FLASHE with masks computed ahead, {values:,} values",
    )


def _figure_13(plan: Plan, found: Found) -> Iterator[Line]:
    for model in EVALUATION.shown(plan):
        where, seen = row(model), found[_ahead_step(model, plan).key]
        cost, train_s = read(seen)[FLASHE], EVALUATION.train_s(model, plan, found)
        ahead, left = (Marked(*seen[FLASHE][name]) for name in ("prepare", "encrypt_prepared"))
        ways = ((cost, 0.0), (replace(cost, encrypt_s=left), ahead.value))
        for who, (each, prepare) in zip(WAYS, ways, strict=True):
            work = replace(work_of(each, train_s.value), prepare_s=prepare)
            whole = typical(simulate(work, EVALUATION.link.links(COHORT)))
            told: dict[str, Marked] = {
                "encryption": each.encrypt_s,
                "decryption": each.decrypt_s,
                CRITICAL: each.encrypt_s + each.decrypt_s,
                TOTAL: projected(whole.total_s),
            }
            if prepare:
                told[AHEAD] = ahead
                told[SAVED] = cost.encrypt_s - left
            yield Line(where, who, "ours", told)
        yield Line(where, WAYS[1], "paper", {SAVED: SAVED_S[model]})
        yield Line(where, f"{WAYS[1]}, at most", "paper", {CRITICAL: LEFT_S})


SECTIONS: Sequence[Section] = (
    section(
        lambda plan: [_dropout_step(plan)],
        Table("flashe-figure-12", _figure_12),
        Table("flashe-figure-12-crossovers", _crossovers),
    ),
    section(
        EVALUATION.steps(_ahead_step),
        Table("flashe-figure-13", _figure_13),
    ),
)
