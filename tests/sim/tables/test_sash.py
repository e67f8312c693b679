"""SASH's figures: who is where, that ratios are of one run, and that little is measured as much is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flhe_lab.bench.secure_sums import FLOWERS, SECAGG, Setting
from flhe_lab.crowd.found import Asked, Found
from flhe_lab.tables import sash_times, scale
from flhe_lab.tables.result import Result
from flhe_lab.tables.sash_times import FLOWER, OURS, ratio_of, ratio_step
from flhe_lab.tables.section import Plan, Section

PLANS = [Plan(quick=True), Plan(quick=False)]


def made_up(plan: Plan) -> dict[str, Any]:
    """Everybody where they take part: SASH a second and a second, SecAgg ten, Flower's a hundred."""
    seconds = {"SASH": 1.0, "SASH+": 2.0, "SecAgg": 10.0, "SecAgg+": 5.0, FLOWERS.name: 100.0}
    found: dict[str, Any] = {}
    for section in sash_times.SECTIONS:
        for step in section.steps(plan):
            found[step.key] = {
                name: {"client": s, "server": s, "sampled": name == FLOWERS.name and plan.quick}
                for name, s in seconds.items()
            }
    found["sash-bytes"] = {
        str(n): {"upload": 4_000_000, "agreement": 120_000}
        for n in (sash_times.FEW, sash_times.INFLATED)
    }
    return found


def results(plan: Plan) -> dict[str, Result]:
    found = made_up(plan)
    return {r.name: r for s in sash_times.SECTIONS for r in s.report(plan, found)}


@pytest.mark.parametrize("plan", PLANS)
def test_every_figure_is_there_with_everybody(plan: Plan) -> None:
    found = results(plan)
    assert set(found) == {
        "sash-figure-3a", "sash-figure-3b", "sash-figure-3c",
        "sash-figure-4a", "sash-figure-4b", "sash-inflation",
    }  # fmt: skip
    for name, result in found.items():
        who = {e.who for e in result.entries if e.group != "paper"}
        if name.startswith("sash-figure-3"):
            assert who == {"SASH", OURS[SECAGG.name], FLOWER}
        elif name.startswith("sash-figure-4"):
            assert who == {*OURS.values(), FLOWER}
    published = [e for r in found.values() for e in r.entries if e.number.mark == "published"]
    assert sorted(e.number.value for e in published) == [2.06, 20.0]


@pytest.mark.parametrize("plan", PLANS)
def test_ratios_are_of_one_run_and_keep_its_mark(plan: Plan) -> None:
    found = made_up(plan)
    found[ratio_step(plan).key][SECAGG.name]["server"] = 30.0
    assert ratio_of(plan, found, SECAGG.name).value == (10 + 30) / 2
    assert ratio_of(plan, found, SECAGG.name).mark == "measured"
    assert ratio_of(plan, found).value == 100
    assert ratio_of(plan, found).mark == ("sampled" if plan.quick else "measured")
    for section in sash_times.SECTIONS:
        for result in section.report(plan, found):
            for e in result.entries:
                if e.what == "client + server, to SASH" and e.who == "SASH":
                    assert e.number.value == 1.0


def test_the_sum_is_of_client_and_server() -> None:
    entries = results(Plan(quick=False))["sash-figure-3a"].entries
    for row in {e.row for e in entries}:
        ours = {e.what: e.number.value for e in entries if (e.row, e.who) == (row, "SASH")}
        assert ours["client + server"] == ours["client"] + ours["server"]


def test_settings_are_the_papers() -> None:
    plan = Plan(quick=False)
    assert {s.clients for s in sash_times.over_values(plan)} == {500}
    assert {(s.values, s.dropout) for s in sash_times.over_clients(plan)} == {(100_000, 0.1)}
    assert Setting(50, 100_000, 0.3) in sash_times.over_dropout(50, plan)
    # The headline's run is a point of the figure, and measured once.
    keys = [step.key for step in sash_times.SECTIONS[0].steps(plan)]
    assert ratio_step(plan).key in keys


def test_quick_is_a_fraction_and_keeps_every_figure() -> None:
    def weight(plan: Plan) -> float:
        steps = {step.key: step for s in sash_times.SECTIONS for step in s.steps(plan)}
        return sum(step.weight for step in steps.values())

    quick, full = (weight(plan) for plan in PLANS)
    assert quick < full / 10
    assert not {s.key for s in sash_times.SECTIONS[0].steps(PLANS[0])} & {
        s.key for s in sash_times.SECTIONS[0].steps(PLANS[1])
    }


def test_a_point_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sash_times, "HEADLINE", Setting(10, 500, 0.3))
    plan = Plan(quick=True)
    step = ratio_step(plan)
    data = json.loads(json.dumps(step.work(lambda _what: None)))
    assert set(data) == {"SASH", "SecAgg", FLOWERS.name}  # all are neighbours of all
    assert data[FLOWERS.name]["sampled"]
    assert not data["SASH"]["sampled"]
    assert ratio_of(plan, {step.key: data}).value > 1


def test_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sash_times, "INFLATED", 70)
    plan = Plan(quick=True)
    section = sash_times.SECTIONS[-1]
    (step,) = section.steps(plan)
    data = json.loads(json.dumps(step.work(lambda _what: None)))
    (result,) = section.report(plan, {step.key: data})
    factors = {(e.row[:3], e.group): e.number for e in result.entries if e.unit == "x"}
    assert factors["50 ", "ours"].mark == "counted"
    # 49 shares of 2048 elements, both ways; beyond 64 clients they are packed.
    assert 2 * 49 * 2048 * 8 < data["50"]["agreement"] < 1.01 * 2 * 49 * (2048 * 8 + 70)
    assert data["70"]["agreement"] < data["50"]["agreement"] / 10
    for n in ("50", "70"):
        moved = data[n]["upload"] + data[n]["agreement"]
        assert factors[f"{n} ", "ours"].value == pytest.approx(moved / 2e6)
    assert factors["70 ", "paper"].value == 2.06


# --- scale ---


def crowd(asked: Asked) -> Found:
    phase = {
        "round": asked.rounds,
        "server_s": 0.1 * asked.clients,
        "grid_s": 0.1,
        "up_bytes_total": 1000 * asked.clients,
        "down_bytes_total": 10 * asked.clients**2,
    }
    return Found(
        asked,
        rounds_s=[1.0 * asked.clients] * asked.rounds,
        client_cpu_s={"round": 0.01, "share": 0.001 * asked.clients},
        phases=[phase, {**phase, "round": 0}],
        server_bytes=400_000_000,
        actor_bytes=200_000_000,
        tree_bytes=900_000_000,
    )


def scaled(plan: Plan, section: Section = scale.SECTIONS[0]) -> Result:
    from dataclasses import asdict

    steps = section.steps(plan)
    found = {
        step.key: json.loads(json.dumps(asdict(crowd(one))))
        for step, one in zip(steps, scale.asked(plan), strict=True)
    }
    assert len(found) == len(steps)
    (result,) = section.report(plan, found)
    return result


def test_ten_times_as_many_are_projected() -> None:
    result = scaled(Plan(quick=False))
    beyond = [e for e in result.entries if e.number.mark == "projected"]
    assert {e.row for e in beyond} == {"2,000 clients"}
    assert {e.who for e in beyond} == {"SASH"}  # one point of SASH+ makes no law
    seconds = next(e for e in beyond if e.what == "server, round")
    assert seconds.number.value == pytest.approx(200)
    nbytes = [e for e in result.entries if e.unit == "kB" and e.number.mark != "projected"]
    assert {e.number.mark for e in nbytes} == {"counted"}
    assert "linear, off by 0% at most" in result.notes[1]


def test_a_quick_run_projects_nothing() -> None:
    result = scaled(Plan(quick=True))
    assert result.marks() == {"measured", "counted"}
    assert len(result.notes) == 1
