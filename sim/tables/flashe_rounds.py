"""FLASHE, Tables 2 and 4, Figures 7, 8, 10 and 11: ciphertexts, rounds, and training to the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flhe_lab.advise import prices, wan
from flhe_lab.bench.contender import Contender, Setting
from flhe_lab.bench.sparse import plain_sparse, sparse
from flhe_lab.papers.convergence import reported
from flhe_lab.papers.published import rows
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.evaluation import NAMES as MODEL_NAMES
from flhe_lab.tables.evaluation import TOTAL, VALUES, Evaluation, Round
from flhe_lab.tables.headlines import BATCHES, COHORT, cnn_step
from flhe_lab.tables.phase_costs import Cost
from flhe_lab.tables.result import Marked, counted, derived, projected, published
from flhe_lab.tables.table import Found, Line, Numbers, Plan, Say, Section, Step, Table, section

MODELS = ("resnet20", "gru", "cnn")
"""Sec. 6.1, by growing size."""

# The slowest of the paper's links: a synchronous round waits for it (Sec. 2.3).
EVALUATION = Evaluation(MODELS, COHORT, wan.named("40mbps"), prices.FLASHE, BATCHES, MODELS[-1])

NAMES = (who.PLAIN, who.FLASHE, who.PHE_BATCHED, who.BFV_PAPER, who.BFV, who.CKKS_PAPER, who.CKKS)
MODES: Mapping[str, str] = {
    "plain": "plain",
    "FLASHE": "FLASHE",
    "Pai+bat": "Paillier+batch",
    "FV+bat": "FV+batch",
    "CKKS+bat": "CKKS+batch",
}
"""As the paper's figures call them -> as its Table 4 does."""

# --- Table 2: peers, with a value and with a batch a ciphertext ---


TABLE_2 = rows("flashe", "table_2")
PLAIN_BYTES = dict(rows("flashe", "plaintexts"))
NAMES_2 = (
    who.PHE,
    who.PHE_BATCHED,
    who.BFV_VALUES,
    who.BFV_PAPER,
    who.BFV,
    who.CKKS_VALUES,
    who.CKKS_PAPER,
    who.CKKS,
    who.FLASHE,
)
"""In the order of the paper's table."""

SIZES = tuple(PLAIN_BYTES)
TIMES = ("encryption", "decryption", "addition of 10")


def size_steps(plan: Plan) -> list[Step]:
    """One step a size: all contenders in turns."""
    sizes = SIZES[:2] if plan.quick else SIZES
    return [who.step(n, COHORT, NAMES_2, plan) for n in sizes]


def _table_2(plan: Plan, found: Found) -> Iterator[Line]:
    for step, values in zip(size_steps(plan), SIZES, strict=False):
        row = f"{values:,} values"
        read = who.read(found[step.key])
        yield Line(row, "plain, float32", "ours", _sizes(counted(4 * values), values))
        for cost in (read[name] for name in NAMES_2):
            seconds = (cost.encrypt_s, cost.decrypt_s, cost.add_s * (COHORT - 1))
            times = dict(zip(TIMES, seconds, strict=True))
            yield Line(row, cost.who, cost.group, {**_sizes(cost.upload_bytes, values), **times})
        yield Line(row, "plaintext", "paper", _sizes(published(PLAIN_BYTES[values]), values))
        for line in (line for line in TABLE_2 if line.values == values):
            told = dict(zip(TIMES, (line.encrypt_s, line.decrypt_s, line.add_s), strict=True))
            sizes = _sizes(published(line.size), values)
            yield Line(row, line.method, "paper", {**sizes, **told})


def _sizes(size: Marked, values: int) -> Numbers:
    return {"size": size / 1024, "size of a value": size / Marked(values, size.mark)}


# --- all values: Figures 7 and 8, Table 4 ---


def _step(model: str, plan: Plan) -> Step:
    """The largest model's is the headlines', where a few more take turns."""
    if model == MODELS[-1]:
        return cnn_step(plan)
    return who.step(VALUES[model], COHORT, NAMES, plan)


steps, costs = EVALUATION.steps(_step), EVALUATION.costs(_step, NAMES)


def _said(model: str, mode: str) -> Any:
    return reported("FLASHE", MODEL_NAMES[model], MODES[mode])


def _iteration(_model: str, cost: Cost, seen: Round) -> Numbers:
    size = cost.upload_bytes / 1e6
    return seen.parts | {"up": size, "down": size, "traffic": size * 2}


def _paper_iteration(model: str, mode: str) -> Numbers:
    said = _said(model, mode)
    traffic = derived(said.traffic_gb * (1 << 30) / 1e6 / said.epochs)
    return {TOTAL: derived(said.hours * 3600 / said.epochs), "traffic": traffic}


def _ends(model: str, _cost: Cost, seen: Round) -> Numbers:
    end = EVALUATION.ends(seen, _said(model, "plain").epochs)
    told = {"time": end.hours, "traffic": end.traffic_gb, "price": end.bill.total}
    return {what: projected(value) for what, value in told.items()}


def _paper_ends(model: str, mode: str) -> Numbers:
    said = _said(model, mode)
    return {"time": said.hours, "traffic": said.traffic_gb, "price": said.usd}


# --- the largest tenth of each update: Figures 10 and 11 ---

SHARE = 0.1
PLAIN_TENTH, PHE_TENTH = "plain, top 10%", "python-paillier, top 10%"
RATIO = "uplink, to plain with all"
PUBLISHED = {"plain, top 10%": 1 / 5, "FLASHE, top 10%": 1 / 5, "Pai, top 10%": 20.0}
"""Uplink with a tenth of the values, as a multiple of plain with all, Sec. 6.4."""


def _tenth_step(model: str, plan: Plan) -> Step:
    values = VALUES[model]
    return Step(
        f"flashe-tenth-{values}",
        lambda say: measure_tenth(values, plan.repeats, say),
        f"a tenth of {values:,} values",
    )


tenth_steps = EVALUATION.steps(_tenth_step)


def measure_tenth(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time those that send a tenth; JSON values: rows, and what comes down."""
    setting = Setting(values, COHORT)
    updates = setting.updates()
    plain, sent, union = plain_sparse(setting, updates, SHARE)
    ours = sparse(setting, updates, SHARE)
    say(f"{who.PHE}, making ready")
    contenders: Mapping[str, Contender] = {
        PLAIN_TENTH: plain,
        who.FLASHE_TENTH: ours,
        who.PHE: who.WHO[who.PHE](setting, updates),
    }
    return {
        "rows": who.timed(contenders, repeats, say),
        "union": union.count,
        "sent": sent.count,
        "support_bytes": len(sent.data),
        "sum_support_bytes": len(union.data),
    }


def tenth_costs(model: str, plan: Plan, found: Found) -> Iterator[Cost]:
    """Everybody's cost of a tenth."""
    seen, values = found[_tenth_step(model, plan).key], VALUES[model]
    read = who.read(seen["rows"])
    for name in (PLAIN_TENTH, who.FLASHE_TENTH):
        yield read[name]
    sent, union = seen["sent"] / values, seen["union"] / values
    whole = read[who.PHE]
    yield Cost(
        PHE_TENTH,
        "peer",
        whole.encrypt_s * sent,
        whole.add_s * sent,
        whole.decrypt_s * union,
        whole.upload_bytes * sent + seen["support_bytes"],
        whole.upload_bytes * union + seen["sum_support_bytes"],
    )


def _tenth(model: str, cost: Cost, seen: Round) -> Numbers:
    size, dense = cost.upload_bytes, counted(4 * VALUES[model])
    each = {"uplink": size / 1e6, "uplink a value of the model": size / VALUES[model]}
    return seen.parts | each | {RATIO: size / dense}


_filled, _modes = EVALUATION.filled, tuple(MODES)
FIGURE_7 = _filled(costs, _iteration, _modes, _paper_iteration)
TABLE_4 = _filled(costs, _ends, _modes, _paper_ends)
FIGURE_10 = _filled(
    tenth_costs, _tenth, tuple(PUBLISHED), lambda _model, mode: {RATIO: PUBLISHED[mode]}
)

SECTIONS: Sequence[Section] = (
    section(size_steps, Table("flashe-table-2", _table_2)),
    section(steps, Table("flashe-figure-7", FIGURE_7)),
    section(steps, Table("flashe-table-4", TABLE_4)),
    section(tenth_steps, Table("flashe-figure-10", FIGURE_10)),
)
