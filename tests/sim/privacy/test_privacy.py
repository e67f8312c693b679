"""The comparison with Opacus: every way has the noise that it says, and the page what was found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn.utils import parameters_to_vector
from typer.testing import CliRunner

from flhe.cli import app as cli
from flhe.errors import ConfigError
from flhe_lab.privacy import report, ways
from flhe_lab.privacy.report import ONLY, OPACUS, OURS, WAYS, costs
from flhe_lab.privacy.ways import SITES, TASKS, Task

pytestmark = pytest.mark.sweep  # minutes of training


REAL = 2.0
STEP = TASKS[0]._replace(lr=1.0, steps=1)
RUNS = {
    (task.name, REAL, way): np.array([90.0, 92.0]) + i
    for task in TASKS
    for i, way in enumerate(WAYS)
    if ONLY.get(way, REAL) == REAL
}


@pytest.mark.parametrize(
    ("way", "variance"),
    [
        (ways.pooled, 1),
        (
            ways.federated,
            SITES / (SITES - SITES // 3),
        ),  # as many may collude, without a pinned roster
        (partial(ways.in_process, honest=SITES - 1), SITES / (SITES - 1)),
        (partial(ways.in_process, honest=SITES), 1),
        (partial(ways.in_process, honest=1), SITES),
    ],
)
def test_one_step_has_the_noise_that_it_should(
    way: Callable[..., nn.Module], variance: float
) -> None:
    multiplier = 300.0  # of which gradients are next to nothing
    before = parameters_to_vector(STEP.model(0).parameters())
    after = parameters_to_vector(way(STEP, STEP.data(0)[0], 0, multiplier).parameters())
    noise = (after - before).detach().numpy() * STEP.divisor / multiplier
    assert noise.size == 2410
    assert np.var(noise) == pytest.approx(variance, rel=6 * (2 / noise.size) ** 0.5)


@pytest.mark.parametrize("task", TASKS)
def test_what_all_ways_share(task: Task) -> None:
    (inputs, labels), (tests, _) = task.data(0)
    assert task.divisor == int(len(labels) * task.sampling)
    assert (inputs.shape[1], int(labels.max()) + 1) == (task.widths[0], task.widths[2])
    assert len(tests) / (len(tests) + len(inputs)) == pytest.approx(0.2, abs=0.01)
    same = [parameters_to_vector(task.model(1).parameters()) for _ in range(2)]
    assert same[0].equal(same[1])


def test_both_accountants_ask_for_about_the_same_noise() -> None:
    theirs, ours = ways.multipliers(TASKS[0], REAL)
    assert ours == pytest.approx(theirs, rel=0.01)


def test_noise_is_timed() -> None:
    found = costs(1_000, 1)
    assert [name.split()[0] for name, _, _ in found] == ["draw", "draw", "encode"]
    assert all(0 < least <= median for _, least, median in found)


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    known: dict[str, Any] = {"command": "flhe compare-privacy", "picture": "p.svg", "seeds": 2}
    text = report.page(RUNS, {REAL: (2.0, 2.1)}, [("draw", 0.1, 0.2)], values=10, **known)
    name = TASKS[0].name
    assert f"| {name} | 2 | 2.000 | 2.100 | 91.0 ± 1.0 | 92.0 ± 1.0 |" in text
    assert "| +1.0 ± 0.0 | yes |" in text
    assert "flhe is within in 2 of 2 rows." in text
    assert "| draw | 0.100 | 0.200 |" in text
    far = {**RUNS, (name, REAL, OURS): RUNS[name, REAL, OPACUS] - 1.5}
    text = report.page(far, {REAL: (2.0, 2.1)}, [], values=10, **known)
    assert "| -1.5 ± 0.0 | no |" in text
    report.draw(RUNS, tmp_path / "p.svg")
    assert "percentage points of Opacus" in " ".join((tmp_path / "p.svg").read_text().split())


def test_one_run_gives_a_percentage() -> None:
    assert 0 <= report.accuracy(STEP, OPACUS, 1.0, 1, 0) <= 100


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(report, "run", lambda out, advance, *, quick: asked.append((out, quick)))
    out = tmp_path / "found.md"
    done = CliRunner().invoke(cli, ["compare-privacy", str(out), "--quick"])
    assert (done.exit_code, asked) == (0, [(out, True)]), done.output
    monkeypatch.undo()
    with pytest.raises(ConfigError):
        report.run(tmp_path / "none" / "found.md", lambda *_: None)
