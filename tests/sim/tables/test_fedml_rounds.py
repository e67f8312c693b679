"""FedML-HE's figures of rounds, its map and its shared key: what is in them, and by which laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flhe_lab.bench.fedml_models import MB
from flhe_lab.tables import fedml_map, fedml_measure, fedml_rounds, fedml_threshold, phase_costs
from flhe_lab.tables.chart import draw
from flhe_lab.tables.fedml_measure import OURS, PLAIN, SHARES, TENSEAL
from flhe_lab.tables.fedml_published import RESNET_50, TABLE_5, TOP_K
from flhe_lab.tables.fedml_rounds import SECTIONS
from flhe_lab.tables.fedml_threshold import SINGLE, THRESHOLD
from flhe_lab.tables.result import Result
from flhe_lab.tables.runner import steps_of
from tests.sim.tables.made_up import QUICK
from tests.sim.tables.made_up import quietly as say

pytest.importorskip("tenseal")
pytest.importorskip("torchvision")


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """All of what is drawn; turns, keys and the map are measured on little, training is made up."""
    found: dict[str, Any] = {}
    for made in steps_of(SECTIONS, QUICK):
        if made.key.startswith("fedml-turns"):
            values = 2_000
            found[made.key] = fedml_measure._measure(values, SHARES, QUICK, say)
        elif made.key.startswith("fedml-reduced"):
            found[made.key] = fedml_measure._measure_reduced(20_000, 1_600, QUICK, say)
        elif made.key.startswith("training"):
            found[made.key] = {"seconds_per_image": 0.25}
        elif made.key.startswith("costs"):
            cohort = int(made.key.split("-")[2])
            found[made.key] = phase_costs.measure(500, min(cohort, 4), fedml_rounds.CROWD, 1, say)
        elif made.key.startswith("fedml-threshold"):
            found[made.key] = fedml_threshold.measure(300, 1, say)
        else:
            found[made.key] = made.work(say)
    found = json.loads(json.dumps(found))
    return {r.name: r for section in SECTIONS for r in section.report(QUICK, found)}


def of(result: Result, what: str) -> dict[tuple[str, str], float]:
    """(row, who) -> value of one quantity, of what is not the paper's."""
    entries = (e for e in result.entries if e.what == what and e.group != "paper")
    return {(e.row, e.who): e.number.value for e in entries}


def test_nobody_is_missing(results: dict[str, Result]) -> None:
    names = ("table-5", "figure-5", "figure-8", "figure-12", "figure-14a", "figure-14b")
    assert set(results) == {f"fedml-{name}" for name in names}


def test_a_cycle_is_its_parts_and_all_with_a_link_is_projected(results: dict[str, Result]) -> None:
    figure = results["fedml-figure-8"]
    parts = ("training", "encryption", "transfer", "aggregation", "decryption")
    cycle = of(figure, "cycle")
    assert len(cycle) == 6
    for at, whole in cycle.items():
        assert sum(of(figure, part)[at] for part in parts) == pytest.approx(whole)
    for row in ("FedML-HE", "TenSEAL"):
        assert cycle[row, "all"] > cycle[row, "plain"]
        assert of(figure, "training")[row, "all"] == 0.25 * fedml_rounds.EPOCH
    for e in figure.entries:
        projected = e.what in ("transfer", "cycle", "beside training")
        assert e.number.mark == ("projected" if projected else "sampled")


def test_plain_transfer_is_that_of_its_bytes(results: dict[str, Result]) -> None:
    moved = of(results["fedml-figure-8"], "transfer")["FedML-HE", "plain"]
    assert moved == pytest.approx(2 * 4 * RESNET_50.values / 200e6, rel=1e-6)


def test_a_faster_network_moves_faster(results: dict[str, Result]) -> None:
    moved = of(results["fedml-figure-14b"], "communication")
    for who in (PLAIN, OURS, TENSEAL):
        each = [moved[row, who] for row in fedml_rounds.NETWORKS.values()]
        assert each == sorted(each)
        assert each[-1] / each[0] == pytest.approx(5000 / 15.6)
    others = of(results["fedml-figure-14b"], "others")
    assert len({others[row, OURS] for row in fedml_rounds.NETWORKS.values()}) == 1


def test_the_server_adds_everybodys(results: dict[str, Result]) -> None:
    figure = results["fedml-figure-14a"]
    _, cohorts = fedml_rounds._crowd(QUICK)
    assert {e.x for e in figure.entries} == set(map(float, cohorts))
    assert {e.number.mark for e in figure.entries} == {"sampled"}
    added = of(figure, "aggregation")
    assert added["50 clients", OURS] > added["3 clients", OURS]


def test_fewer_values_are_fewer_bytes(results: dict[str, Result]) -> None:
    table = results["fedml-table-5"]
    whole, fewer = of(table, "upload, all values"), of(table, "upload, fewer")
    assert len(fewer) == 4
    for at, size in fewer.items():
        assert size < whole[at]
    told = [
        e.number.value for e in table.entries if e.group == "paper" and e.what == "upload, fewer"
    ]
    assert told == [row.nbytes / MB for row in TABLE_5]
    assert (TABLE_5[0].values, TABLE_5[1].values) == (TOP_K, 294_912)


def test_a_shared_key_opens_the_same_mean_by_one_more_message(results: dict[str, Result]) -> None:
    entries = results["fedml-figure-12"].entries
    answers = [e.who for e in entries if e.what == "answer"]
    assert answers == [THRESHOLD]
    found = fedml_threshold.measure(300, 1, say)
    assert max(row["error"] for row in found.values()) < 1 / 2**15  # no more than rounding
    assert found[THRESHOLD]["up"] > found[SINGLE]["up"] > 0
    assert 0 < found[THRESHOLD]["answer"] < found[THRESHOLD]["up"]


def test_the_map_has_every_parameter_and_is_drawn(
    results: dict[str, Result], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    figure = results["fedml-figure-5"]
    counts = of(figure, "parameters")
    assert sum(counts.values()) == 15_826
    assert [row for row, _ in counts] == list(fedml_map.LAYERS)
    parts = of(figure, "part of the whole")
    assert sum(parts.values()) == pytest.approx(100)
    tops = of(figure, "in the top tenth")
    shares = sum(tops[at] * counts[at] for at in counts) / sum(counts.values())
    assert shares == pytest.approx(10, abs=0.02)
    assert max(of(figure, "largest").values()) == 1
    draw(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_training_is_of_the_model_that_the_paper_has() -> None:
    found = fedml_rounds.train_resnet(2, 1, 32)
    assert found["parameters"] == RESNET_50.values
    assert found["seconds_per_image"] > 0
