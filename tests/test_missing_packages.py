"""Commands without the packages that they need: one line says what is missing, and how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe.packages import EXTRA_OF, explain, install_hint, require

WITHOUT = """
import sys
for name in {names}:
    sys.modules[name] = None  # as if it were not installed
from flhe.cli import app
app({arguments})
"""


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "run --scheme plain",
        "audit --quick",
        "tables",
        "bench memory --values 1000",
        "bench paillier --values 8 --repeats 1",
        "bench batchcrypt --values 1000 --repeats 1",
        "bench fedml-he --values 1000 --repeats 1",
        "bench --peers --values 1000 --repeats 1",
    ],
)
def test_commands_name_what_is_missing(command: str, tmp_path: Path) -> None:
    code = WITHOUT.format(names=sorted(EXTRA_OF), arguments=command.split())
    env = {key: value for key, value in os.environ.items() if key != "FLHE_DEBUG"}
    env["XDG_DATA_HOME"] = str(tmp_path / "data")
    done = subprocess.run(  # noqa: PLW1510 (its exit status is what is tested)
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.returncode == 1
    (line,) = filter(None, done.stderr.splitlines())  # a bar leaves an empty one
    assert line.startswith("flhe: ")
    assert "pip install " in line
    assert "ModuleNotFoundError" not in line


@pytest.mark.parametrize("module", ["torch", "matplotlib", "sklearn"])
def test_an_audit_starts_with_all_it_needs(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(app, ["audit", "--quick"])
    assert result.exit_code == 1
    assert result.output == (
        f"flhe: `flhe audit` needs the [apps] extra, missing: {module}; "
        f"install it: {install_hint('apps')}\n"
    )


def test_what_no_extra_installs_is_left_to_others() -> None:
    require("this test", "apps", ("json",))
    assert explain(ModuleNotFoundError("No module named 'x'", name="x"), "`flhe run`") == ""
    submodule = ModuleNotFoundError("No module named 'torch.func'", name="torch.func")
    assert "needs torch, " in explain(submodule, "`flhe run`")
