"""Times of secure aggregation: who takes part, what is checked, what is written."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flhe.errors import ConfigError, FlheError
from flhe.keys.canonical import loads
from flhe.keys.messages import Envelope
from flhe.sim import sash_aggregation, secure_aggregation
from flhe.sim.aggregation_contenders import (
    LEGACY,
    SECAGG,
    SECAGG_PLUS,
    Contender,
    Maker,
    Pairwise,
    Setting,
)
from flhe.sim.bench import Times
from flhe.sim.secure_aggregation import Point, measure, sweeps, to_data
from flhe.sim.variants.secagg import pairwise


class Fake:
    """A contender of known times."""

    def __init__(self, projected: bool = False) -> None:
        self.projected = projected
        self.calls = 0

    def client(self) -> float:
        self.calls += 1
        return 100.0 if self.calls == 1 else float(self.calls)

    def server(self) -> float:
        return 1000.0 * self.calls


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("degree", [None, 6])
def test_the_sum_is_the_sum(dropout: float, degree: int | None) -> None:
    """`server` raises when it is not: see below."""
    pair = Pairwise(Setting(8, 300, dropout), degree)
    assert pair.plan.graph.complete is (degree is None)
    assert min(pair.client(), pair.server(), pair.server()) > 0
    pair._expected = pair._expected + 1
    with pytest.raises(FlheError, match="not the sum"):
        pair.server()


def test_made_up_members_answer_as_real_ones_would() -> None:
    """Rank 0's answer by its real steps is the one that was made up for it."""
    pair = Pairwise(Setting(7, 20, 0.2), 4)
    plan, epoch, identity = pair.plan, pair._epoch, pair._identities[0]
    near = plan.graph.neighbours(0)
    first, _ = pairwise.advertise(identity, epoch, plan)
    second, _ = pairwise.share(first, [pair._keys[r] for r in near])
    masked, _ = pairwise.mask(second, pair._boxes, np.zeros(20, np.uint32))
    signed, _ = pairwise.consist(masked, pair.setting.senders, pair._statements)
    answer = pairwise.unmask(signed, pair._sets)
    read = [
        loads(Envelope.from_bytes(a, 1 << 16).payload, 1 << 16, "answer")
        for a in (answer, pair._answers[0])
    ]
    assert read[0][:2] == read[1][:2]
    own = 32 * plan.graph.around(0).index(0)
    drop = [data[:own] + data[own + 32 :] for _, _, data in read]
    assert drop[0] == drop[1]  # but for its own share, of a seed drawn anew


def test_settings() -> None:
    setting = Setting(10, 5, 0.3)
    assert (setting.dropouts, setting.gone) == (3, {3, 6, 9})
    assert setting.senders == (0, 1, 2, 4, 5, 7, 8)
    assert np.array_equal(setting.update(3), setting.update(3))
    assert not np.array_equal(setting.update(3), setting.update(4))
    for clients in (3, 7, 50, 500):
        for dropout in (0.0, 0.1, 0.3, 1 / 3):
            each = Setting(clients, 1, dropout)
            assert len(each.gone) == each.dropouts
            assert 0 not in each.gone
            assert each.gone <= set(range(clients))
    for bad in ((2, 1, 0.0), (3, 0, 0.0), (3, 1, 0.5), (9, 1, 0.9), (3, 1, -0.3)):
        with pytest.raises(ConfigError, match="at least 3 clients"):
            Setting(*bad)


def test_who_has_a_point() -> None:
    assert SECAGG_PLUS.make(Setting(101, 10)) is None
    small = SECAGG.make(Setting(5, 10))
    assert small is not None
    assert not small.projected
    legacy = [LEGACY.make(Setting(n, 10)) for n in (5, 51)]
    assert [each is not None and each.projected for each in legacy] == [False, True]


def test_turns() -> None:
    made: Counter[str] = Counter()
    fakes: dict[str, Fake] = {}

    def make(name: str, projected: bool) -> Maker:
        def fresh(setting: Setting) -> Contender | None:
            made[name] += 1
            fakes[name] = Fake(projected)
            return fakes[name] if setting.clients > 3 else None

        return Maker(name, fresh, max_repeats=1 if projected else 2)

    makers = [make("one", False), make("two", True)]
    told: list[tuple[int, int, str]] = []
    points = measure(
        Setting(4, 1), makers, repeats=4, progress=lambda *a: told.append(a), done=(3, 7)
    )
    one, two = points
    assert (one.client_s, one.repeats) == (Times(2.0, 2.5), 2)  # the first turn's 100 is left out
    assert one.server_s == Times(2000.0, 2500.0)
    assert (two.client_s, two.repeats, two.projected) == (Times(100.0, 100.0), 1, True)
    assert all(t[:2] == (3, 7) for t in told)
    assert not measure(Setting(3, 1), makers, repeats=1)
    with pytest.raises(ConfigError, match="repeats=0"):
        measure(Setting(4, 1), makers, repeats=0)


def test_the_papers_settings() -> None:
    by_clients, many, few = sweeps(False)
    assert [s.clients for s in by_clients.settings][-1] == 500
    assert {s.dropout for s in by_clients.settings} == {0.1}
    assert [s.dropout for s in many.settings] == [0.0, 0.1, 0.2, 0.3]
    assert {(s.clients, s.values) for s in few.settings} == {(50, 100_000)}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    pytest.importorskip("matplotlib")
    makers = (SECAGG, Maker("other", lambda _: Fake(projected=True)))
    monkeypatch.setattr(sash_aggregation, "ALL", makers)
    app = typer.Typer()
    app.command()(secure_aggregation.command)
    path = tmp_path / "times.png"
    done = CliRunner().invoke(app, [str(path), "--quick", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")
    found = json.loads(path.with_suffix(".json").read_text())
    assert (found["format"], found["version"]) == ("flhe secure aggregation times", 1)
    assert [s["axis"] for s in found["sweeps"]] == ["clients", "dropout", "dropout"]
    points = found["sweeps"][1]["points"]
    assert [(p["contender"], p["projected"], p["dropouts"]) for p in points] == [
        ("SecAgg", False, 0),
        ("other", True, 0),
        ("SecAgg", False, 6),
        ("other", True, 6),
    ]
    assert points[0]["setting"] == {"clients": 20, "values": 1000, "dropout": 0.0}
    assert "~2e+03" in done.output
    refused = CliRunner().invoke(app, [str(tmp_path / "times.pdf"), "--quick"])
    assert refused.exit_code == 1
    assert "a figure is a .png" in refused.output


def test_the_table_fits_a_terminal() -> None:
    panels = sweeps(True)
    times = Times(0.001234, 0.0123456)
    found = {
        setting: [Point("SecAgg+ of Flower", setting, times, Times(481.35, 481.35), 1, True)]
        for panel in panels
        for setting in panel.settings
    }
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(secure_aggregation.table(panels, found))
    text = console.export_text()
    assert "~481" in text
    assert "0.0123" in text
    assert "…" not in text
    assert len(to_data(panels, found, "x")["sweeps"]) == 3
