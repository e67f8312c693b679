"""Every example, and flhe's own app, keeps to what Flower and its Hub ask of an app."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build
from packaging.requirements import Requirement

from tests.source import ROOT

EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").iterdir()) if path.is_dir()}
MOST = {"boosted-trees": 250}
"""Lines of Python, where there may be more than 120: the example holds a booster."""
each = pytest.mark.parametrize("name", EXAMPLES)


@cache
def project(path: Path) -> dict[str, Any]:
    return tomllib.loads((path / "pyproject.toml").read_text())


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower's
@pytest.mark.parametrize("path", [*EXAMPLES.values(), ROOT / "apps"], ids=lambda path: path.name)
def test_flower_builds_a_bundle_of_format_1_with_its_licence(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # Flower adds the app to it
    build(path)
    assert "recommended" not in capsys.readouterr().out
    [bundle] = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as files:
        assert files.read("LICENSE").decode() == (ROOT / "LICENSE").read_text()
    said = project(path)["tool"]["flwr"]["app"]
    assert (said["publisher"], said["fab-format-version"]) == ("flhe", 1)
    # A `flwr` that is declared is not fetched when the app starts, and nothing else is declared.
    assert project(path)["project"]["dependencies"] == ["flwr>=1.38,<2"]
    assert said["flwr-version-target"] in Requirement("flwr>=1.38,<2").specifier
    assert project(path)["tool"]["uv"]["exclude-dependencies"] == ["flwr"]


@each
def test_the_layout_is_that_of_flowers_examples(name: str) -> None:
    path = EXAMPLES[name]
    components = project(path)["tool"]["flwr"]["app"]["components"]
    package = components["serverapp"].partition(".")[0]
    assert components == {
        "serverapp": f"{package}.server_app:app",
        "clientapp": f"{package}.client_app:app",
    }
    there = {module.name for module in (path / package).glob("*.py")}
    assert {"__init__.py", "client_app.py", "server_app.py", "task.py"} <= there
    assert project(path)["project"]["name"] == f"flhe-{name}"


@each
def test_the_readme_begins_with_tags_and_says_how_the_example_is_run(name: str) -> None:
    text = (EXAMPLES[name] / "README.md").read_text()
    front = re.match(r"---\n(.*?)\n---\n\n# ", text, re.DOTALL)
    assert front
    keys = dict(line.split(": ", 1) for line in front[1].splitlines())
    assert list(keys) == ["tags", "dataset", "framework"]
    assert all(re.fullmatch(r"\[[^,\[\]]+(, [^,\[\]]+)*\]", value) for value in keys.values())
    assert f"flwr run examples/{name} --stream" in text
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (EXAMPLES[name] / link).is_file(), link
    for module in re.findall(r"`([a-z]+/[a-z_]+\.py)`", text):
        assert (EXAMPLES[name] / module).is_file(), module


def test_the_index_names_every_example_and_how_many_lines_it_has() -> None:
    rows = re.findall(
        r"^\| \[(\S+)\]\((\S+)/README.md\) \| .+ \| (\d+) \|$",
        (ROOT / "examples" / "README.md").read_text(),
        re.MULTILINE,
    )
    counted = {
        name: sum(len(module.read_text().splitlines()) for module in path.rglob("*.py"))
        for name, path in EXAMPLES.items()
    }
    assert {name: int(lines) for name, _, lines in rows} == counted
    assert all(name == folder for name, folder, _ in rows)
    assert all(lines < MOST.get(name, 120) for name, lines in counted.items())
