"""Differential privacy of `flhe run`: the codec, the client, the table and the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flhe.coding.base import Mechanism
from flhe.errors import ConfigError
from flhe_app.console import plot, round_table
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from tests.apps.test_console import event, plain, rounds, shown

RECORDS = Settings("flashe", algorithm="fedsgd", noise_multiplier=1.5, sampling=0.2)


def test_records_under_fedsgd_and_nodes_under_fedavg() -> None:
    assert RECORDS.codec(1).mechanism == Mechanism(1.5, 0.2)
    [noise] = RECORDS.codec(1).codecs
    assert noise.parameters()["divisor"] == (0.2 * task_named("digits").source.train_size).hex()
    nodes = replace(RECORDS, algorithm="fedavg", sampling=0.1, clip_norm=2.0)
    assert nodes.codec(1).mechanism == Mechanism(1.5, 1.0, of_members=True)
    assert nodes.codec(1).codecs[0].norm_bound == 2.0
    assert Settings().codec(100).mechanism is None


def test_the_table_and_the_picture_have_epsilon(tmp_path: Path) -> None:
    reports = [{**r, "epsilon": 0.25 * r["round"], "delta": 1e-5} for r in rounds(RECORDS)]
    said = shown(plain(120), round_table(RECORDS, reports, 1000))
    assert "Epsilon" in said
    assert "1.25" in said
    assert "Epsilon" not in shown(plain(120), round_table(Settings(), rounds(Settings()), 1000))
    infinite = [{**report, "epsilon": None} for report in reports]  # JSON has no infinity
    assert "∞" in shown(plain(120), round_table(RECORDS, infinite, 1000))
    assert "0.00124" in shown(
        plain(120), round_table(RECORDS, [{**reports[0], "epsilon": 0.001231}], 9)
    )
    for name in ("run.svg", "run.png"):
        plot(tmp_path / name, "digits", reports)
        assert (tmp_path / name).stat().st_size > 1000
    plot(tmp_path / "plain.svg", "digits", [event(1), event(2)])
    assert "epsilon" not in (tmp_path / "plain.svg").read_text()
    plot(tmp_path / "lost.svg", "digits", [event(1), event(2), event(3, None)])
    assert "75.0% after 2 rounds" in (tmp_path / "lost.svg").read_text()
    plot(tmp_path / "none.svg", "digits", [event(1, None)])
    with pytest.raises(ConfigError, match="the picture cannot be written"):
        plot(tmp_path / "run.txt", "digits", reports)
