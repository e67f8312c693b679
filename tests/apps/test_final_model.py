"""The final model: it is saved wherever the run was started from, and the log says where."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError
from flhe_app.server_app import placed
from flhe_app.settings import Settings
from tests.apps.federation import serve

RUN = 7


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data; the server app itself runs in a directory that is gone."""
    data, gone = tmp_path / "data", tmp_path / "gone"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.delenv("FLHE_HOME", raising=False)
    gone.mkdir()
    monkeypatch.chdir(gone)
    return data / "flhe"


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("flashe", "run-7.flhe"), ("sash", "run-7.npz")],
)
def test_a_run_of_flower_saves_its_model_and_says_where(
    scheme: str,
    name: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(scheme, nodes=3, num_rounds=1)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(settings, home / "nodes", {"flhe-server-reads": scheme == "sash"})
    model = home / "models" / name
    assert model.stat().st_mode & 0o777 == 0o600
    assert model.parent.stat().st_mode & 0o777 == 0o700
    said = [record.getMessage() for record in caplog.records]
    if model.suffix == ".npz":
        assert f"Model: {model}" in said
        assert len(np.load(model).files) > 1
        return
    assert f"Sealed model: {model}" in said
    (line,) = [line for line in said if line.startswith("Open it: ")]
    command = line.removeprefix("Open it: flhe ").partition(" (")[0].split()
    assert command[:2] == ["open", str(model)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(np.load("model.npz").files) > 1


def test_what_the_run_config_names_is_absolute(home: Path) -> None:
    assert placed(Settings(sealed_model="m"), RUN).sealed_model == str(Path.cwd() / "m")
    named = placed(Settings(sealed_model=f"{home.parent}.flhe"), RUN)
    assert named.sealed_model == f"{home.parent}.flhe"
    assert not home.exists()


def test_a_place_that_cannot_be_written_is_refused_before_training(
    home: Path, tmp_path: Path
) -> None:
    for bad in ("no/such/model", str(tmp_path)):
        with pytest.raises(ConfigError, match="name a file in a directory that exists"):
            placed(Settings(sealed_model=bad), RUN)
    home.parent.touch()
    with pytest.raises(ConfigError, match="set sealed-model to a file in a directory of yours"):
        placed(Settings(), RUN)
