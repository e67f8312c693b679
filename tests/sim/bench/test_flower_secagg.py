"""Flower's SecAgg+ in one process: right, as installed, and its projection near what it projects."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np
import pytest

from flhe.errors import ConfigError, FlheError
from flhe_lab.bench import flower_secagg
from flhe_lab.bench.flower_parts import FIRST, Round
from flhe_lab.bench.flower_secagg import FlowerSecAgg, Projection

WORKFLOW = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"

SETTINGS = [
    Round(5, 100, 5, 3),
    Round(5, 100, 5, 3, 2),
    Round(6, 100, 3, 2),
    Round(9, 40, 7, 4, 1),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_mean_is_the_mean(setting: Round) -> None:
    """Of whoever stayed; checked by `server` too, which raises when it is not."""
    done = FlowerSecAgg(setting)
    stayed = [n for n in range(FIRST, FIRST + setting.clients) if n not in setting.gone]
    assert len(stayed) == setting.clients - setting.dropouts
    mean = np.mean([setting.update(node) for node in stayed], axis=0)
    assert done._strategy.found == pytest.approx(mean, abs=2 * 16 / 2**22)
    assert setting.mean() == pytest.approx(mean, abs=1e-7)
    assert done.server()["server"] > 0
    assert done.server()["server"] > 0, "the state is not used up"
    assert len({done.client()["client"] for _ in range(len(stayed))}) == len(stayed)


def test_a_wrong_mean_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    done = FlowerSecAgg(SETTINGS[0])
    monkeypatch.setattr(Round, "mean", lambda self: np.zeros(self.values))
    with pytest.raises(FlheError, match="mean is off by"):
        done.server()


def test_it_calls_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage of mod and workflow, and nothing in their place."""
    # By name: the package has a function of the same name as the module.
    mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    workflow = importlib.import_module(WORKFLOW)
    called: list[str] = []

    def note(module: Any, name: str) -> None:
        real = getattr(module, name)

        def noted(*args: Any) -> Any:
            called.append(name)
            return real(*args)

        monkeypatch.setattr(module, name, noted)

    for name in ("_setup", "_share_keys", "_collect_masked_vectors", "_unmask"):
        note(mod, name)
    for name in ("combine_shares", "pseudo_rand_gen", "dequantize"):
        note(workflow, name)
    FlowerSecAgg(Round(4, 10, 4, 2, 1))
    counts = {name: called.count(name) for name in set(called)}
    assert counts == {
        "_setup": 4,
        "_share_keys": 4,
        "_collect_masked_vectors": 3,
        "_unmask": 3,
        "combine_shares": 4,
        "pseudo_rand_gen": 3 + 3,
        "dequantize": 1,
    }


def test_a_projection_does_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are noise; what they are times of is not. By counting masks and shares instead."""
    workflow: Any = importlib.import_module(WORKFLOW)
    setting = Round(8, 50, 8, 4, 2)
    cost = 0.0

    def costly(real: Any, of: Any) -> Any:
        def work(*args: Any) -> Any:
            nonlocal cost
            cost += of(*args)
            return real(*args)

        return work

    shares = costly(workflow.combine_shares, lambda given: len(given) ** 2 * len(given[0]))
    monkeypatch.setattr(workflow, "combine_shares", shares)
    masks = costly(workflow.pseudo_rand_gen, lambda *_: 1000)
    monkeypatch.setattr(workflow, "pseudo_rand_gen", masks)
    monkeypatch.setattr(flower_secagg.time, "perf_counter", lambda: cost)
    whole, projected = (sides(setting).server()["server"] for sides in (FlowerSecAgg, Projection))
    assert whole == pytest.approx(projected)
    assert whole > 6 * 1000 + 2 * 7 * 1000


def test_a_projection_has_a_real_client() -> None:
    projected = Projection(Round(30, 200, 11, 6, 5))
    assert projected.projected
    assert not FlowerSecAgg.projected
    assert projected.client()["client"] > 0


def test_it_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        FlowerSecAgg(Round(3, 10, 3, 2))
    assert not [r for r in caplog.records if r.name.startswith("flwr")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((2, 10, 2, 2), "at least 3"),
        ((5, 0, 5, 3), "at least 3"),
        ((5, 10, 6, 3), "num_shares=6"),
        ((9, 10, 4, 3), "odd or all"),
        ((5, 10, 5, 5), "threshold=5"),
        ((5, 10, 5, 1), "threshold=1"),
        ((5, 10, 5, 3, 3), "dropouts=3"),
    ],
)
def test_rounds_that_cannot_be(arguments: tuple[int, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Round(*arguments)
