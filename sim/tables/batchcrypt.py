"""BatchCrypt's Tables 1 and 4 and Figures 7 to 11; ESAFL's Figures 4 to 6 and Table 5.

Both evaluate nine clients in five data centers. Everybody is measured in one step a model, whichever
paper asks. Their figures are pictures: `iteration_s` and `traffic_mb` give what texts and tables imply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flhe.coding.slots import Slots
from flhe.schemes.batchcrypt.keys import KEY_BITS as ALLOWED
from flhe_lab.advise import prices, wan
from flhe_lab.bench.contender import Contender, Setting, part_of
from flhe_lab.bench.phe import phe_batches, phe_keys, phe_values
from flhe_lab.bench.schemes import batchcrypt
from flhe_lab.papers.convergence import Projection, billed, reported
from flhe_lab.papers.packing import TABLE_3
from flhe_lab.papers.published import MB, rows
from flhe_lab.tables import phase_costs as costs_of
from flhe_lab.tables.evaluation import NAMES, TOTAL, VALUES, Evaluation, Round, training_step
from flhe_lab.tables.phase_costs import Cost, read, timed
from flhe_lab.tables.result import Marked, counted, derived, projected, published
from flhe_lab.tables.table import (
    Fill,
    Found,
    Line,
    Numbers,
    Plan,
    Say,
    Section,
    Step,
    Table,
    section,
)

MODELS = ("fcn", "alexnet", "lstm")
"""Table 3, by growing size; FMNIST, CIFAR and LSTM there."""

COHORT = 9
LINK = wan.named("batchcrypt")
EVALUATION = Evaluation(MODELS, COHORT, LINK, prices.BATCHCRYPT, 1, MODELS[0])

FATE, BATCHCRYPT, ESAFL, PLAIN = "FATE", "BatchCrypt", "ESAFL", "plain"
"""Modes, as `convergence.REPORTED` has them."""

ITERATIONS = {"fcn": 52, "alexnet": 44, "lstm": 174}
"""Iterations of an epoch. Told nowhere: stock FATE's hours (Table 4) by its seconds an iteration (Sec.
3.1) and its epochs are 52.03, 44.01 and 173.99."""

MODES: Mapping[str, str] = {
    costs_of.PHE: FATE,
    costs_of.PHE_BATCHED: BATCHCRYPT,
    costs_of.BATCHCRYPT_2048: BATCHCRYPT,
    costs_of.BATCHCRYPT: BATCHCRYPT,
    costs_of.ESAFL: ESAFL,
    costs_of.ESAFL_NARROW: ESAFL,
    costs_of.PLAIN: PLAIN,
}
"""Who is measured -> which of the papers' it stands for, and whose epochs it takes."""

BATCHED = (costs_of.PHE_BATCHED, costs_of.BATCHCRYPT_2048, costs_of.BATCHCRYPT)
PEERS = (costs_of.PHE, costs_of.PHE_BATCHED, costs_of.BATCHCRYPT_2048)
ESAFLS = (costs_of.ESAFL, costs_of.ESAFL_NARROW, costs_of.PLAIN)
AGGREGATION, TRAFFIC = "server's additions", "traffic"
BILL = ("instances", "network", "total")

# --- what the papers say ---


STOCK = {each.model: each for each in rows("batchcrypt", "iterations")}


def line(paper: str, model: str, mode: str) -> Any:
    """A line of BatchCrypt's Table 4, or of ESAFL's Table 5."""
    return reported(paper, NAMES[model], mode)


def iteration_s(paper: str, model: str, mode: str) -> Marked:
    """Seconds of an iteration: stock FATE's as told, the others' by the ratios told.

    ESAFL's own are hours of its Table 5.
    """
    if paper == ESAFL and mode in (ESAFL, PLAIN):
        said = line(paper, model, mode)
        return derived(said.hours * 3600 / (said.epochs * ITERATIONS[model]))
    stock = STOCK[model]
    if mode == FATE:
        return published(stock.stock_s)
    return derived(stock.stock_s / {BATCHCRYPT: stock.faster, PLAIN: stock.to_plain}[mode])


def traffic_mb(paper: str, model: str, mode: str) -> Marked:
    """MB of an iteration, all nine clients, up and down; ESAFL's own are nine times its Table 3."""
    stock, own = STOCK[model], TABLE_3[MODELS.index(model)]
    if paper == ESAFL and mode in (ESAFL, PLAIN):
        return derived(COHORT * (own.traffic[1] if mode == ESAFL else own.plain_traffic))
    if mode == BATCHCRYPT:
        return derived(stock.stock_gb * 1024 / stock.smaller)
    return published(stock.stock_gb * 1024 if mode == FATE else stock.plain_mb)


def _paper_bill(model: str, mode: str) -> Numbers:
    """A line of Table 4 at the prices of Sec. 6.5."""
    said = line(BATCHCRYPT, model, mode)
    each = said.traffic_gb / 2 / COHORT
    bill = billed(said.hours, each, each, prices.BATCHCRYPT, LINK, COHORT)
    usd = map(derived, (bill.instance_usd, bill.network_usd, bill.total))
    return dict(zip(BILL, usd, strict=True))


def _step(model: str, plan: Plan) -> Step:
    return costs_of.step(VALUES[model], COHORT, tuple(MODES), plan)


steps, costs = EVALUATION.steps(_step), partial(EVALUATION.costs, _step)


def everybodys_mb(cost: Cost) -> Marked:
    """What all nine send and receive in an iteration, MB of 2^20 bytes."""
    return cost.upload_bytes * (2 * COHORT) / MB


def _end(paper: str, model: str, cost: Cost, seen: Round) -> Projection:
    """Training to convergence, over the epochs that the paper's table has for whom it stands for."""
    epochs = line(paper, model, MODES[cost.who]).epochs
    return EVALUATION.ends(seen, epochs * ITERATIONS[model])


def convergence_of(paper: str, names: Sequence[str], modes: Sequence[str]) -> Fill:
    """Hours and all nine clients' GB until convergence, and the paper's epochs and accuracy."""

    def ours(model: str, cost: Cost, seen: Round) -> Numbers:
        end = _end(paper, model, cost, seen)
        return {"time": projected(end.hours), TRAFFIC: projected(end.traffic_gb * COHORT)}

    def theirs(model: str, mode: str) -> Numbers:
        said = line(paper, model, mode)
        reached = {"loss" if model == "lstm" else "accuracy": said.reached}
        return {"time": said.hours, TRAFFIC: said.traffic_gb, "epochs": said.epochs, **reached}

    return EVALUATION.filled(costs(names), ours, modes, theirs)


def _bill(model: str, cost: Cost, seen: Round) -> Numbers:
    bill = _end(BATCHCRYPT, model, cost, seen).bill
    usd = map(projected, (bill.instance_usd, bill.network_usd, bill.total))
    return dict(zip(BILL, usd, strict=True))


def iterations_of(paper: str, names: Sequence[str], modes: Sequence[str]) -> Fill:
    """Where an iteration goes, and what it transfers."""

    def ours(_model: str, cost: Cost, seen: Round) -> Numbers:
        return seen.parts | {AGGREGATION: cost.add_s * COHORT, TRAFFIC: everybodys_mb(cost)}

    def theirs(model: str, mode: str) -> Numbers:
        told = {TOTAL: iteration_s(paper, model, mode), TRAFFIC: traffic_mb(paper, model, mode)}
        if paper != BATCHCRYPT or mode != FATE:
            return told
        ratios = {TOTAL: STOCK[model].faster, TRAFFIC: STOCK[model].smaller}
        return {**told, **{f"{what}, to {BATCHCRYPT}": ratio for what, ratio in ratios.items()}}

    return EVALUATION.filled(costs(names), ours, modes, theirs)


STOCK_MODES, FASTER = (FATE, BATCHCRYPT, PLAIN), (FATE, BATCHCRYPT, ESAFL, PLAIN)
BILLED, TO_ESAFL = (costs_of.PHE, *BATCHED, costs_of.PLAIN), (*PEERS, *ESAFLS)
FILLS: Mapping[str, Fill] = {
    "batchcrypt-figure-7": iterations_of(BATCHCRYPT, BILLED, STOCK_MODES),
    "batchcrypt-table-4": convergence_of(BATCHCRYPT, BILLED, STOCK_MODES),
    "batchcrypt-figure-11": EVALUATION.filled(costs(BILLED), _bill, STOCK_MODES, _paper_bill),
    "esafl-figure-4": iterations_of(ESAFL, TO_ESAFL, FASTER),
    "esafl-table-5": convergence_of(ESAFL, TO_ESAFL, FASTER),
}
"""Table -> what it holds."""

ROUNDS = {name: section(steps, Table(name, fill)) for name, fill in FILLS.items()}


TABLE_1 = rows("batchcrypt", "table_1")
TABLE_1_VALUES = 900_000
WHOLE = "BatchCrypt (flhe), 16 bits"
KEYS = tuple(line.key_bits for line in TABLE_1)


def _keys_step(plan: Plan) -> Step:
    sample = 25_000 if plan.quick else 300_000
    return Step(
        f"batchcrypt-keys-{TABLE_1_VALUES}-{sample}",
        lambda say: measure_keys(TABLE_1_VALUES, sample, plan.repeats, say),
        "Paillier with keys of 1024, 2048 and 3072 bits",
    )


def measure_keys(
    values: int, sample: int, repeats: int, say: Say, key_bits: Sequence[int] = KEYS
) -> dict[str, Any]:
    """Time python-paillier and our batches by length of key; JSON values."""
    setting = Setting(values, 2)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for bits in key_bits:
        say(f"key of {bits} bits, making ready")
        contenders[f"{costs_of.PHE}|{bits}"] = phe_values(setting, updates, phe_keys(bits))
        if bits in ALLOWED:
            make = partial(batchcrypt, key_bits=bits)
            contenders[f"{WHOLE}|{bits}"] = part_of(make, sample)(setting, updates)
    return timed(contenders, repeats, say)


COLUMNS_1 = ("plaintext", "ciphertext", "encryption", "decryption")


def _table_1(plan: Plan, found: Found) -> Iterator[Line]:
    costs = read(found[_keys_step(plan).key])
    for line in TABLE_1:
        row = f"key of {line.key_bits} bits"
        for name, cost in costs.items():
            who, _, bits = name.partition("|")
            if int(bits) == line.key_bits:
                size = counted(4 * TABLE_1_VALUES / MB)
                ours = (size, cost.upload_bytes / MB, cost.encrypt_s, cost.decrypt_s)
                yield Line(row, who, cost.group, dict(zip(COLUMNS_1, ours, strict=True)))
        theirs = (line.plain_mb, line.cipher_mb, line.encrypt_s, line.decrypt_s)
        yield Line(row, costs_of.PHE, "paper", dict(zip(COLUMNS_1, theirs, strict=True)))


# --- Figure 10: LSTM by bits of a value, with keys as long as the paper's ---

LSTM, KEY_BITS = MODELS[-1], 2048
BATCH = {8: 200, 16: 100, 32: 50}
"""Sec. 6.4: bits of a value -> values of a ciphertext, as told."""

PER = "values a ciphertext"
LARGEST = 0.11
"""No value of an update is larger."""


def slots(bits: int) -> Slots:
    """How values of so many bits lie in a ciphertext."""
    return Slots((1 << (bits - 1)) - 1, COHORT, KEY_BITS - 1)


def _widths_step(plan: Plan) -> Step:
    values, sample = VALUES[LSTM], 40_000 if plan.quick else 300_000
    return Step(
        f"batchcrypt-widths-{values}-{sample}",
        lambda say: measure_widths(values, sample, plan.repeats, say),
        f"BatchCrypt with values of 8, 16 and 32 bits, {values:,} values",
    )


def measure_widths(values: int, sample: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time ours at the paper's widths, python-paillier on batches of 16 bits; JSON values."""
    setting = Setting(values, COHORT)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for bits in BATCH:
        say(f"{bits} bits, making ready")
        make = partial(batchcrypt, key_bits=KEY_BITS, bits=bits, clip=LARGEST)
        contenders[f"{bits} bits"] = part_of(make, sample)(setting, updates)
    contenders[costs_of.PHE_BATCHED] = phe_batches(setting, updates, phe_keys(KEY_BITS))
    return timed(contenders, repeats, say)


def _figure_10(plan: Plan, found: Found) -> Iterator[Line]:
    costs, train_s = read(found[_widths_step(plan).key]), EVALUATION.train_s(LSTM, plan, found)
    for bits, told in BATCH.items():
        row = f"{bits} bits"
        # python-paillier's costs go with the number of ciphertexts.
        share = slots(bits).batches(VALUES[LSTM]) / slots(16).batches(VALUES[LSTM])
        ours = replace(costs[row], who="BatchCrypt (flhe)")
        for cost in (ours, costs[costs_of.PHE_BATCHED].scaled(share)):
            numbers = EVALUATION.iteration(cost, train_s).parts
            numbers |= {TRAFFIC: everybodys_mb(cost), PER: counted(slots(bits).per)}
            yield Line(row, cost.who, cost.group, numbers)
        yield Line(row, BATCHCRYPT, "paper", {PER: told})


SECTIONS: Sequence[Section] = (
    section(lambda plan: [_keys_step(plan)], Table("batchcrypt-table-1", _table_1)),
    section(
        lambda plan: [_widths_step(plan), training_step(LSTM, plan)],
        Table("batchcrypt-figure-10", _figure_10),
    ),
    *(found for name, found in ROUNDS.items() if name.startswith("batchcrypt")),
)
