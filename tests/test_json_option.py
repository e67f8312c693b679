"""The option --json is one thing in every command: a file, or - for standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ConfigError
from flhe.json_option import STDOUT, console, write_json


def test_a_dash_writes_json_alone_to_standard_output() -> None:
    bench = ["bench", "plain", "--values", "1000", "--repeats", "1", "--json", "-"]
    result = CliRunner().invoke(app, bench)
    assert result.exit_code == 0
    assert {row["name"] for row in json.loads(result.stdout)["rows"]} >= {"plain"}
    assert "1,000 values" in result.stderr


def test_a_file_gets_what_standard_output_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    write_json(file, "[1]\n\n")
    write_json(STDOUT, "[1]\n\n")
    assert file.read_text() == capsys.readouterr().out == "[1]\n"
    assert console(STDOUT).stderr
    assert not console(file).stderr
    with pytest.raises(ConfigError, match=r"--json .*: cannot be written"):
        write_json(tmp_path / "nowhere" / "results.json", "[1]")
