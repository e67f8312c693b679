"""What is published: `.ci/run` builds it and has twine check it; here is what twine does not see."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.source import ROOT

PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())
    for name in (".", "apps", "sim")
}
ROOMS = {"flhe": ".", "strategies": ".", "apps": "apps", "sim": "sim"}
NAMES = {"strategies": "flhe.strategies", "apps": "flhe_app", "sim": "flhe_lab"}


def test_versions_agree() -> None:
    (version,) = {each["project"]["version"] for each in PROJECTS.values()}
    newest = re.findall(r"^## (\S+), ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == version
    for page in ("install", "deploy"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert set(re.findall(r"flhe\w*-(\d[\d.]*)-py3", text)) == {version}


def test_licenses_agree() -> None:
    copies = [*(ROOT / "examples").glob("*/LICENSE"), ROOT / "apps/LICENSE", ROOT / "sim/LICENSE"]
    assert {each.read_bytes() for each in copies} == {(ROOT / "LICENSE").read_bytes()}


@pytest.mark.parametrize("room", ROOMS)
def test_files_that_are_no_code_are_in_the_wheel(room: str) -> None:
    data = PROJECTS[ROOMS[room]]["tool"]["setuptools"]["package-data"]
    kept = [path for path in (ROOT / room).rglob("*.*") if path.suffix not in ("", ".py", ".pyc")]
    for path in kept:
        if re.search(r"/build/|\.egg-info|__pycache__", path.as_posix()):
            continue
        parts = path.parent.relative_to(ROOT / room).parts
        patterns = data.get(".".join((NAMES.get(room, room), *parts)), [])
        of_the_build = not parts and path.name in ("README.md", "pyproject.toml")
        assert of_the_build or any(fnmatch(path.name, each) for each in patterns), path


@pytest.mark.parametrize("source", ["", "https://host.example/owner/flhe"])
def test_links_of_the_readme_hold_on_an_index(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "urls" not in PROJECTS["."]["project"]  # once it is known, the address stands there
    if source:
        text += f'\n[project.urls]\nSource = "{source}"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {}
    fake = SimpleNamespace(setup=given.update, find_packages=lambda **_: [])
    monkeypatch.setitem(sys.modules, "setuptools", fake)
    runpy.run_path(str(ROOT / "setup.py"))
    links = re.findall(r"\]\(([^)]*)\)", given["long_description"])
    assert len(links) >= (len(re.findall(r"\]\(", readme)) if source else 1)
    for link in links:
        assert link.startswith("https://")
        if source and link.startswith(source):
            path = re.sub(r"/(blob|raw)/v[\d.]+/|#.*", "", link.removeprefix(source))
            assert (ROOT / path).is_file(), link
