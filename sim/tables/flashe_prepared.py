"""FLASHE, Figure 13: an iteration with and without masks that are computed while a client waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flhe.sim import bench
from flhe.sim.advise.round_model import simulate, typical
from flhe.sim.bench import Setting
from flhe.sim.bench.schemes import flashe
from flhe.sim.tables.dots import dots
from flhe.sim.tables.flashe_paper import COHORT, LEFT_S, MODELS, SAVED_S
from flhe.sim.tables.flashe_round import LINK, SETTING, training, training_steps
from flhe.sim.tables.learned import VALUES
from flhe.sim.tables.marked import counted, measured, projected, published
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.rounds import TOTAL, row, work_of
from flhe.sim.tables.section import Found, Plan, Say, Section, Step
from flhe.sim.tables.turns import Cost

WAYS = ("nothing ahead", "masks ahead")
CRITICAL, AHEAD, SAVED = "HE on the critical path", "masks, while it waits", "saved"


def steps(plan: Plan) -> list[Step]:
    """FLASHE at each model, prepared and not, and training."""
    return [_step(model, plan) for model in MODELS] + training_steps(plan)


def _step(model: str, plan: Plan) -> Step:
    values, repeats = VALUES[model], 3 * plan.repeats
    return Step(
        f"flashe-ahead-{values}-{repeats}",
        lambda say: measure(values, repeats, say),
        f"FLASHE with masks computed ahead, {values:,} values",
        weight=0.5 + values * repeats / 2e7,
    )


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Least seconds of each part, in turns: encrypt, prepare, encrypt_prepared, add, decrypt; bytes."""
    setting = Setting(values, COHORT)
    contender = flashe(setting, setting.updates(), ahead=True)
    found = bench.measure(
        [contender], repeats, lambda turn, _n, _who: say(f"turn {turn} of {repeats}")
    )
    times = found[contender.name].times
    return {name: each.min for name, each in times.items()} | {"bytes": contender.upload_bytes}


def report(plan: Plan, found: Found) -> list[Result]:
    """Both ways, model by model."""
    out: list[Entry] = []
    for model in MODELS:
        where, seen = row(model), found[_step(model, plan).key]
        second = {name: measured(seen[name]) for name in seen if name != "bytes"}
        cost = Cost(
            "FLASHE",
            "ours",
            second["encrypt"],
            second["add"],
            second["decrypt"],
            counted(seen["bytes"]),
        )
        train = training(model, found, plan)
        ways = (
            (cost, 0.0),
            (replace(cost, encrypt_s=second["encrypt_prepared"]), second["prepare"].value),
        )
        for who, (each, prepare) in zip(WAYS, ways, strict=True):
            work = replace(work_of(each, train.value), prepare_s=prepare)
            whole = typical(simulate(work, LINK.links(COHORT)))
            told = {
                "encryption": each.encrypt_s,
                "decryption": each.decrypt_s,
                CRITICAL: each.encrypt_s + each.decrypt_s,
                TOTAL: projected(whole.total_s),
            }
            if prepare:
                told[AHEAD] = second["prepare"]
                told[SAVED] = second["encrypt"] - second["encrypt_prepared"]
            out += [Entry(where, who, "ours", what, "s", number) for what, number in told.items()]
        out.append(Entry(where, WAYS[1], "paper", SAVED, "s", published(SAVED_S[model])))
        out.append(Entry(where, f"{WAYS[1]}, at most", "paper", CRITICAL, "s", published(LEFT_S)))
    notes = (
        "From float32 to an upload, and from the sum to float32. Here an upload's masks are "
        "computed while a client waits or trains; those that open a sum are not, because whose "
        "sum it will be is known late. The paper's text suggests both.",
        SETTING,
        "The paper (Sec. 6.6) saves 1.2 s of ResNet-20, where its Table 2 takes 0.40 s to "
        "encrypt and decrypt 262,144 values with nothing computed ahead; and it leaves 0.1 s at "
        "most, where its Sec. 6.2 tells 0.8 s, computing ahead too. Fig. 13 is a picture "
        "without numbers.",
    )
    chart = dots(out, (CRITICAL, AHEAD, SAVED), log=True)
    title = "FLASHE with and without masks that are computed ahead"
    return [Result("flashe-figure-13", "FLASHE, Figure 13", title, tuple(out), chart, notes)]


SECTION = Section("flashe-figure-13", "FLASHE", steps, report, ("Figure 13",))
