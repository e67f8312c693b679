"""FLASHE's Figures 12 and 13: masks and seconds over dropout, and masks that are made ahead."""

from __future__ import annotations

from typing import Any

import pytest

from flhe.errors import ReuseError
from flhe.schemes.flashe.masking import expected
from flhe.schemes.sealed import Sealed
from flhe_lab.bench import Setting
from flhe_lab.bench.mask_counts import CLIENTS
from flhe_lab.bench.schemes import flashe, nbytes
from flhe_lab.tables import flashe_dropouts, flashe_masks
from flhe_lab.tables.flashe_dropouts import RATES, crossing
from flhe_lab.tables.flashe_masks import SECTIONS
from flhe_lab.tables.flashe_paper import MODELS
from flhe_lab.tables.learned import NAMES, VALUES
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import PLANS


def made_up(plan: Plan) -> dict[str, Any]:
    """What steps would leave, were a mask of a step's values two seconds."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        for step in section.steps(plan):
            if step.key.startswith("training"):
                found[step.key] = {"seconds_per_batch": 0.2, "batch": 128, "parameters": 1}
            elif step.key.startswith("flashe-ahead"):
                names = ("encrypt", "prepare", "encrypt_prepared", "add", "decrypt")
                seconds = dict(zip(names, (0.5, 0.375, 0.125, 0.0, 0.25), strict=True))
                found[step.key] = {**seconds, "bytes": 1_000_000}
            else:
                found[step.key] = [point(n, rate) for n in CLIENTS for rate in RATES]
    return found


def point(clients: int, rate: float) -> dict[str, Any]:
    masks = {mode: expected(mode, clients, rate) for mode in ("double", "single")}
    seconds = {mode: 2 * count for mode, count in masks.items()}
    return {"clients": clients, "dropout": rate, "seconds": seconds, "masks": masks}


def test_masks_and_seconds_are_measured_at_each_rate() -> None:
    told: list[str] = []
    points = flashe_dropouts.measure(500, 1, told.append, clients=(4, 9), rates=(0.0, 0.5))
    assert [(p["clients"], p["dropout"]) for p in points] == [
        (4, 0.0),
        (4, 0.5),
        (9, 0.0),
        (9, 5 / 9),
    ]
    assert len(told) == 4
    for found in points:
        assert all(seconds > 0 for seconds in found["seconds"].values())
    assert points[0]["masks"] == {"double": 4, "single": 5}
    assert points[2]["masks"] == {"double": 4, "single": 10}


def test_lines_cross_where_they_do_and_noise_moves_that_little() -> None:
    rates = (0.0, 0.1, 0.2, 0.3, 0.4)
    assert crossing(rates, (1, 2, 3, 4, 5), (4, 4, 4, 4, 4)) == pytest.approx(0.3)
    assert crossing(rates, (1, 2, 3, 4, 5), (3.5, 3.5, 3.5, 3.5, 3.5)) == pytest.approx(0.25)
    assert crossing(rates, (1, 9, 3, 4, 5), (4, 4, 4, 4.5, 4)) == pytest.approx(0.3 + 0.1 / 3)
    assert crossing(rates, (1, 1, 1, 1, 1), (2, 2, 2, 2, 2)) is None
    assert crossing(rates, (2, 2, 2, 2, 2), (1, 1, 1, 1, 1)) is None


@PLANS
def test_figure_12_has_both_maskings_of_all_models_at_all_rates(plan: Plan) -> None:
    lines, crossovers = flashe_masks.SECTIONS[0].report(plan, made_up(plan))
    whats = {e.what for e in lines.entries}
    assert whats == {*map(flashe_masks.time_of, MODELS), flashe_masks.MASKS}
    assert len(lines.entries) == len(whats) * 2 * len(CLIENTS) * len(RATES)
    assert {e.x for e in lines.entries} == set(RATES)
    timed = {e.number.mark for e in lines.entries if e.what != flashe_masks.MASKS}
    assert timed == ({"sampled"} if plan.quick else {"measured"})
    # Seconds being masks here, they cross where masks do, up to straight lines between tenths.
    at = {(e.row, e.who): e.number.value for e in crossovers.entries if e.what == flashe_masks.AT}
    for count in CLIENTS:
        where = f"{count} clients"
        theorem = at[where, "masks, Theorem 2"]
        assert at[where, "masks, counted"] == pytest.approx(theorem, abs=0.01)
        assert at[where, "seconds, CNN"] == at[where, "masks, counted"]
    assert at["80 clients", "text"] == 0.4
    gaps = {(e.row, e.who): e.number.value for e in crossovers.entries if e.unit}
    for model in MODELS:
        factor = VALUES[model] / flashe_masks.SAMPLE if plan.quick else 1
        for count in CLIENTS:
            gap = gaps[f"{count} clients", f"seconds, {NAMES[model]}"]
            assert gap == pytest.approx(2 * factor * (count + 1 - 4))


def test_masks_that_were_made_ahead_are_used_and_only_once() -> None:
    setting = Setting(700, 3)
    made = flashe(setting, setting.updates(), ahead=True)
    made.phases["prepare"]()
    sealed = made.phases["encrypt_prepared"]()
    with pytest.raises(ReuseError):
        made.phases["encrypt_prepared"]()
    assert isinstance(sealed, Sealed)
    assert nbytes(sealed) == made.upload_bytes
