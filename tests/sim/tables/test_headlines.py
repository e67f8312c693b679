"""The headlines: what is divided by what, which way it must lie, and that a miss is said."""

from __future__ import annotations

from typing import Any

import pytest

from flhe_lab.bench.secure_sums import FLOWERS, SASH, SECAGG
from flhe_lab.tables import headlines, phase_costs
from flhe_lab.tables.learned import training_step
from flhe_lab.tables.sash_times import ratio_step
from flhe_lab.tables.section import Plan

PLANS = [Plan(quick=True), Plan(quick=False)]
BYTES = {
    phase_costs.PLAIN: 4.0,
    phase_costs.FLASHE: 2.5,
    phase_costs.ESAFL: 3.9,
    phase_costs.ESAFL_NARROW: 2.6,
    phase_costs.PHE_BATCHED: 5.0,
    phase_costs.BFV_PAPER: 64.0,
    phase_costs.BFV: 8.0,
    phase_costs.CKKS_PAPER: 106.0,
    phase_costs.CKKS: 32.0,
    phase_costs.FEDML: 6.9,
    phase_costs.FEDML_TENTH: 2.9,
    phase_costs.FEDML_CLEAR: 2.2,
}


def cost(seconds: float, nbytes: float) -> dict[str, Any]:
    phases: dict[str, Any] = {p: [seconds, "measured"] for p in ("encrypt", "add", "decrypt")}
    return phases | {"bytes": [nbytes, "counted"], "note": None, "error": 0.0}


def found(plan: Plan, *, sash_s: float = 0.01, seconds: float = 0.001) -> dict[str, Any]:
    """Everybody as fast as everybody else; bytes as they are."""
    points = {
        name: {"client": s, "server": s, "sampled": False}
        for name, s in ((SASH.name, sash_s), (SECAGG.name, 0.05), (FLOWERS.name, 5.0))
    }
    return {
        training_step("cnn", plan).key: {"seconds_per_batch": 0.2, "batch": 128, "parameters": 1},
        headlines.cnn_step(plan).key: {
            name: cost(seconds, 1.2e6 * BYTES[name]) for name in headlines.AT_CNN
        },
        headlines.selected_step(plan).key: {
            phase_costs.FEDML_CLEAR: cost(0.1, 2.2e7),
            phase_costs.FEDML: cost(1.0, 6.9e7),
            phase_costs.FEDML_TENTH: cost(0.2, 2.89e7),
        },
        ratio_step(plan).key: points,
    }


@pytest.mark.parametrize("plan", PLANS, ids=["quick", "full"])
def test_ratios_are_those_of_the_round_at_40_mbps(plan: Plan) -> None:
    lines = {line.row: line for line in headlines.headlines(plan, found(plan))}
    train = 5 * 0.2
    plain = train + 2 * 1.2e6 * 4 * 8 / 40e6
    flashe = train + 2 * 1.2e6 * 2.5 * 8 / 40e6
    bfv = train + 2 * 1.2e6 * 64 * 8 / 40e6
    assert lines["FLASHE's round to plain FedAvg's"].here.value == pytest.approx(
        flashe / plain, rel=0.01
    )
    row = f"a round with {phase_costs.BFV_PAPER} to FLASHE's"
    assert lines[row].here.value == pytest.approx(bfv / flashe, rel=0.02)
    assert lines["FLASHE's traffic to plain float32"].here.value == 0.625
    assert {lines[row].here.mark for row in lines if "round" in row} == {"projected"}
    beyond = [line for row, line in lines.items() if "beyond" in row]
    assert [line.here.value for line in beyond] == pytest.approx([10.0, 10.0])


def test_a_ratio_that_does_not_hold_says_so() -> None:
    plan = PLANS[0]
    for sash_s, said in ((0.01, "holds"), (1.0, "does NOT hold")):
        (result,) = headlines.SECTIONS[0].report(plan, found(plan, sash_s=sash_s))
        (line,) = (e for e in result.entries if "Flower" in e.row and e.group == "ours")
        assert line.who.endswith(said)
        assert line.number.value == pytest.approx(5.0 / sash_s)


def test_every_step_that_it_needs_is_asked_for() -> None:
    for plan in PLANS:
        asked = {step.key for step in headlines.SECTIONS[0].steps(plan)}
        assert asked == set(found(plan))
