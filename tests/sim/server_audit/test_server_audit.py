"""What a server learns of one site: the experiments run, and give what is documented and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flhe.cli import app as cli
from flhe.errors import ConfigError
from flhe_lab.server_audit import report
from flhe_lab.server_audit.attacks import EXPERIMENTS, Outcome
from flhe_lab.server_audit.estimates import cosine, denominator, difference, downhill
from flhe_lab.server_audit.report import KNOWN, OURS, QUICK, READS, Audit
from flhe_lab.server_audit.script import Seen
from flhe_lab.server_audit.task import VICTIM, Floats, Setting, Site

PAGE = Path(__file__).parents[3] / "docs" / "what_a_server_learns.md"
AGAIN = "run `flhe audit-server docs/what_a_server_learns.md`, and see what KNOWN says"
HIDDEN = tuple(name for name in OURS if name != READS)
"""Columns of ours in which the server reads nothing."""


def of_data(data: dict[str, Any]) -> Audit:
    """The audit that `to_data` wrote."""
    outcomes = {
        (cell["system"], cell["experiment"]): tuple(
            Outcome(**{**each, "refusals": tuple(each["refusals"])}) for each in cell["outcomes"]
        )
        for cell in data["cells"]
    }
    return Audit(Setting(**data["setting"]), data["repeats"], outcomes)


@pytest.fixture(scope="module")
def found() -> Audit:
    """The quick form, as it comes out today."""
    return report.audit(QUICK, 1)


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """The data behind the page."""
    data: dict[str, Any] = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    return data


# --- what comes of the real code ---


def test_no_attack_gives_more_than_listening_unless_it_is_documented(found: Audit) -> None:
    assert found.exceeding() <= KNOWN.keys(), "a site tells more than it did"


@pytest.mark.parametrize("system", HIDDEN)
def test_where_members_read_no_update_is_approached(found: Audit, system: str) -> None:
    for each in EXPERIMENTS:
        figure = found.cosine(system, each.name)
        assert figure is None or abs(figure) < found.chance, each.name


@pytest.mark.parametrize("system", OURS)
def test_sites_refuse_by_code(found: Audit, system: str) -> None:
    for name, code in {"plain training": "flhe/policy", "a sum of one": "flhe/quorum"}.items():
        [outcome] = found.outcomes[system, name]
        assert code in outcome.refusals


def test_one_sum_of_a_chosen_model_is_read_and_no_second_set(found: Audit) -> None:
    """Sites answer the first model; they sign no set without the victim, and evaluate no other one."""
    [outcome] = found.outcomes[READS, "chosen models"]
    assert {"flhe/reuse", "flhe/claimed"} <= set(outcome.refusals)


def test_the_attacks_work_where_nothing_stops_them(found: Audit) -> None:
    """Or their failing elsewhere would say nothing."""
    stopped = {"listens", "plain training", "kept out, then alone"}
    for each in EXPERIMENTS:
        figure, counts = found.cosine("SecAgg+", each.name), found.counts("SecAgg+", each.name)
        if figure is not None and each.name not in stopped:
            assert figure > (0.9 if each.name == "chosen models" else 0.999), each.name
        assert found.cosine("FedAvg", each.name) in (None, pytest.approx(1.0))
        assert counts is None or counts > 0  # common divisors may hide the others
    assert 0.3 < (found.cosine("SecAgg+", "listens") or 0.0) < 0.9
    [outcome] = found.outcomes["SecAgg+", "a contract for one site"]
    assert outcome.why


# --- the page ---


def test_the_page_says_what_was_found(kept: dict[str, Any]) -> None:
    audit = of_data(kept)
    made = kept["made_by"]
    page = report.page(audit, made["command"], made["flwr"])
    assert page == PAGE.read_text(encoding="utf-8"), AGAIN
    assert audit.exceeding() == KNOWN.keys(), AGAIN
    assert (audit.setting, audit.repeats) == (report.FULL, report.REPEATS)
    rest = {name: kept[name] for name in ("made_by", "setting", "repeats", "cells")}
    again = json.loads(json.dumps(report.to_data(audit, kept["made_by"]["command"])))
    assert again["cells"] == rest["cells"]


def test_more_than_listening_is_noticed(kept: dict[str, Any]) -> None:
    audit = of_data(kept)
    key = ("FLASHE", "two sums")
    assert key not in audit.exceeding()
    for outcome in (Outcome(0.5), Outcome(counts=1)):
        worse = replace(audit, outcomes={**audit.outcomes, key: (outcome,) * audit.repeats})
        assert key in worse.exceeding()
        assert "**" in report.cell(worse, *key)


def test_the_command_writes_page_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    asked = []

    def audit(setting: Setting, repeats: int, progress: Any) -> Audit:
        asked.append((setting, repeats))
        progress(1, 1, "all")
        return of_data(kept)

    monkeypatch.setattr(report, "audit", audit)
    out = tmp_path / "found.md"
    done = CliRunner().invoke(cli, ["audit-server", str(out), "--quick"])
    assert done.exit_code == 0, done.output
    assert asked == [(QUICK, 1)]
    assert f"flhe audit-server {out} --quick" in out.read_text()
    assert json.loads(out.with_suffix(".json").read_text())["cells"] == kept["cells"]
    for bad in (tmp_path / "found.txt", tmp_path / "none" / "found.md"):
        with pytest.raises(ConfigError):
            report.run(bad)


# --- what the server computes ---


def test_cosines() -> None:
    truth = np.array([3.0, 4.0])
    assert cosine(2 * truth, truth) == pytest.approx(1.0)
    assert cosine(np.array([-4.0, 3.0]), truth) == pytest.approx(0.0)
    assert cosine(None, truth) == cosine(np.zeros(2), truth) == 0.0


def test_what_is_in_one_sum_alone() -> None:
    more, less = Seen(np.array([2.0, 1.0]), 30.0), Seen(np.array([1.0, 1.0]), 10.0)
    found = difference(more, less)
    assert found is not None
    np.testing.assert_allclose(found, [50.0, 20.0])
    assert difference(more, Seen()) is None


def test_losses_of_chosen_models_give_the_gradient() -> None:
    slope = np.linspace(-1, 1, 20)
    found = downhill(lambda model: float(slope @ model), np.zeros(20))
    assert cosine(found, -slope) > 0.9999
    asked: list[Floats] = []
    assert downhill(lambda model: asked.append(model) or 0.25, np.zeros(20)) is None  # type: ignore[func-returns-value]
    assert len(asked) < 20
    assert downhill(lambda model: None, np.zeros(20)) is None


def test_counts_out_of_fractions() -> None:
    for fractions, count in (
        ([7 / 12, 5 / 12], 12),
        ([6 / 12, 4 / 12], 6),  # the least that can be
        ([], None),
        ([0.1234567], None),
    ):
        assert denominator(fractions, 800) == count
    assert denominator([0.333], 100, off=0.0005) == 3


def test_sites_differ_and_train_alike_each_time() -> None:
    setting = Setting()
    assert len(set(setting.counts())) == setting.sites
    np.testing.assert_array_equal(setting.update(VICTIM), setting.update(VICTIM))
    before = setting.arrays(setting.first())
    site = Site(setting, 1)
    assert site.evaluate(site.train(before, 0.5))["loss"] < site.evaluate(before)["loss"]
    own = Site(setting, setting.sites)
    assert own.examples == 1
    np.testing.assert_array_equal(own.train(before, 0.5)["w"], before["w"])
