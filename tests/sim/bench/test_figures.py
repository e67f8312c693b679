"""Where figures go, and what their makers need."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe_lab.bench import figures


def test_data_lie_beside_the_figure(tmp_path: Path) -> None:
    beside = figures.save_data(tmp_path / "a.png", "flhe x", 3, {"rows": [1]})
    assert beside == tmp_path / "a.json"
    assert json.loads(beside.read_text()) == {"format": "flhe x", "version": 3, "rows": [1]}


def test_where_no_figure_can_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, says in (("a.pdf", "a figure is a .png"), ("no/a.png", "there is no directory")):
        with pytest.raises(ConfigError, match=says):
            figures.check(tmp_path / name)
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ConfigError, match=r"a\.json: cannot be written \(Is a directory\)"):
        figures.save_data(tmp_path / "a.png", "x", 1, {})
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ConfigError, match=r"b\.png: cannot be written"):
        figures.save(figures.new(1, 1), tmp_path / "b.png")
    real = builtins.__import__

    def none(name: str, *rest: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(ConfigError, match=r"pip install 'matplotlib>="):
        figures.check(tmp_path / "a.png")
