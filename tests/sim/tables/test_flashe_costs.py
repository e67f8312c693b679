"""FLASHE's Table 2: everybody is in it, numbers keep their marks, samples stand for wholes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flhe.errors import FlheError
from flhe_lab.bench import Setting
from flhe_lab.bench.schemes import plain as plain_fedavg
from flhe_lab.bench.sparse import sparse
from flhe_lab.tables import flashe_costs, turns
from flhe_lab.tables.flashe_paper import COHORT, PLAIN_BYTES, TABLE_2
from flhe_lab.tables.flashe_peers import SAMPLE, SHARE, plain_tenth, tenseal_values
from flhe_lab.tables.marked import weakest
from flhe_lab.tables.phase_costs import FLASHE
from flhe_lab.tables.result import to_csv, to_markdown
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import PLANS, quietly, result


def made_up(plan: Plan) -> dict[str, Any]:
    """What steps would leave: seconds by place in the list."""
    found: dict[str, Any] = {}
    for step in flashe_costs.steps(plan):
        found[step.key] = {
            name: {
                "encrypt": [0.1 * i, "measured"],
                "add": [0.01 * i, "sampled"],
                "decrypt": [0.2 * i, "measured"],
                "bytes": [1024 * i, "counted"],
            }
            for i, name in enumerate(flashe_costs.NAMES, 1)
        }
    return found


@PLANS
def test_table_2_has_everybody_at_every_size(plan: Plan) -> None:
    table = result("flashe-table-2", plan, made_up(plan))
    sizes = flashe_costs.SIZES[:2] if plan.quick else flashe_costs.SIZES
    rows = list(dict.fromkeys(e.row for e in table.entries))
    assert rows == [f"{values:,} values" for values in sizes]
    for row, values in zip(rows, sizes, strict=True):
        here = [e for e in table.entries if e.row == row]
        ours = {e.who for e in here if e.group != "paper"}
        assert ours == {*flashe_costs.NAMES, "plain, float32"}
        papers = {e.who for e in here if e.group == "paper"}
        assert papers == {line.method for line in TABLE_2 if line.values == values} | {"plaintext"}
    added = next(e for e in table.entries if e.who == FLASHE and e.what == "addition of 10")
    assert added.number.value == pytest.approx(9 * 0.01 * len(flashe_costs.NAMES))
    assert added.number.mark == "sampled"
    assert "published" in to_csv(table)
    assert "*paper:* CKKS+bat" in to_markdown(table)


def test_the_papers_own_sizes_are_what_its_parameters_make() -> None:
    """512 bytes a Paillier ciphertext, 20 bits a plain value: what the notes say of Table 2."""
    for line in TABLE_2:
        if line.method == "Pai":
            assert line.size / line.values == 512
        if line.method == "FLASHE":
            assert line.size == PLAIN_BYTES[line.values]
            assert 8 * line.size / line.values == pytest.approx(20, rel=1e-3)


@pytest.mark.parametrize("bfv", [True, False])
def test_a_value_a_ciphertext_is_a_sample_of_the_whole(bfv: bool) -> None:
    setting = Setting(10 * SAMPLE, COHORT)
    updates = setting.updates()
    peer, plain = tenseal_values(setting, updates, bfv=bfv), plain_fedavg(setting, updates)
    found = turns.timed({"peer": peer, "plain": plain}, 1, quietly, sampled=["peer"])
    cost = turns.costs(found, {"peer": "peer"})
    assert weakest(cost["peer"].encrypt_s.mark, cost["peer"].upload_bytes.mark) == "sampled"
    assert cost["plain"].encrypt_s.mark == "measured"
    assert (cost["peer"].group, cost["plain"].group) == ("peer", "ours")
    least = 2 * 4096 * 8 if bfv else 2 * 8192 * 8  # two polynomials, one word a coefficient or more
    assert cost["peer"].upload_bytes.value > setting.values * least
    assert cost["plain"].upload_bytes.value == 4 * setting.values


def test_a_wrong_mean_is_refused() -> None:
    setting = Setting(50, COHORT)
    plain = replace(plain_fedavg(setting, setting.updates()), error=lambda: 1.0)
    with pytest.raises(FlheError, match="its mean is off"):
        turns.timed({"plain": plain}, 1, quietly)


def test_a_tenth_in_clear_is_the_mean_of_the_largest() -> None:
    setting = Setting(3000, COHORT)
    updates = setting.updates()
    (plain, tenth), flashe = plain_tenth(setting, updates), sparse(setting, updates, SHARE)
    touched = np.zeros(3000, bool)
    for update in updates:
        largest = np.argsort(-np.abs(update))[:300]
        touched[largest] = True
    for made, least in ((plain, 1e-7), (flashe, 1e-3)):
        made.turn()
        error = made.checked()
        assert error is not None
        assert error < least
    assert tenth.union == touched.sum()
    assert tenth.sent == round(SHARE * 3000)
    assert plain.known_sizes()[0] == 4 * 300 + tenth.support_bytes
    (up, down), (other, most) = flashe.known_sizes(), plain.known_sizes()
    assert up < other
    assert 20 * tenth.union / 8 < down < most + COHORT * 300
