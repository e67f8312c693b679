"""Packages beyond flhe's own: what needs them, and that what is missing is named in one line."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pytest

from flhe import packages
from flhe.errors import ConfigError
from flhe.math.bigint import gmpy
from flhe.packages import Role
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.registry import SCHEMES
from flhe.schemes.seal_blocks import tenseal

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("name", SCHEMES.own)
def test_a_schemes_extra_brings_what_it_needs_and_nothing_more(name: str) -> None:
    needs = SCHEMES.named(name).needs
    assert set(needs.server) <= set(needs.node)
    for extra in {packages.EXTRA_OF[package] for package in needs.node}:
        assert {re.split("[^a-z0-9]", each)[0] for each in EXTRAS[extra]} == set(needs.node)


@pytest.mark.parametrize(
    ("scheme", "package", "roles", "load"),
    [(FedmlHe(), "tenseal", ("node",), tenseal), (BatchCrypt(), "gmpy2", ("node", "server"), gmpy)],
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    scheme: Scheme, package: str, roles: tuple[Role, ...], load: Any, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    says = rf"'{scheme.name}' needs {package}, .*pip install '{package}>="
    for role in get_args(Role):
        assert scheme.needs.missing(role) == ((package,) if role in roles else ())
        for kind in SCHEMES.all():
            if package not in kind.needs.missing(role):
                kind().check_packages(role)
    for role in roles:
        with pytest.raises(ConfigError, match=says):
            scheme.check_packages(role)
    with pytest.raises(ConfigError, match=f"needs {package}"):
        load()


def test_a_package_that_nobody_knows_is_named() -> None:
    mine = packages.Needs(node=("no_such_package",))
    with pytest.raises(ConfigError, match="install no_such_package into the environment of flhe"):
        mine.check("mine")
    mine.check("mine", "server")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_hint_names_requirements_of_the_extra(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {re.split("[^A-Za-z0-9-]", each)[0] for each in EXTRAS[extra]}
    found = packages.requirements(extra)
    assert {re.split("[^A-Za-z0-9-]", each)[0] for each in found} == names
    assert packages.install_hint(extra).count("'") == 2 * len(found)
    assert packages.install_hint("apps", "torch").endswith("pip install 'torch>=2.6'")
    for there, command in ((object(), "pip"), (None, "uv pip")):
        monkeypatch.setattr(packages, "find_spec", lambda _, there=there: there)
        assert packages.install_hint(extra).startswith(command)

    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)  # flhe was never installed

    monkeypatch.setattr(packages.metadata, "requires", requires)
    assert f"[{extra}] extra" in packages.install_hint(extra)


def test_nobody_is_told_to_install_a_name_that_is_not_ours() -> None:
    """The package index may serve anything under it."""
    folders = ("flhe", "strategies", "sim", "apps", "deploy", "docs", "tests")
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "pyproject.toml"]
    texts += [path for name in folders for path in (ROOT / name).rglob("*.py")]
    texts += (ROOT / "docs").rglob("*.md")
    advised = re.compile(r"""pip install (-\S+ )*['"\\]*flhe(?![-\w.]*\.whl)""")
    offenders = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts
        for found in advised.finditer(path.read_text(encoding="utf-8"))
        if not path.samefile(__file__)
    ]
    assert offenders == []


# --- commands ---

WITHOUT = """
import sys
for name in {names}:
    sys.modules[name] = None  # as if it were not installed
from flhe.cli import app
app({arguments})
"""


@pytest.mark.parametrize(
    "command", ["run", "audit --quick", "tables", "bench --peers --values 1000 --repeats 1"]
)
def test_commands_name_what_is_missing(command: str, tmp_path: Path) -> None:
    code = WITHOUT.format(names=sorted(packages.EXTRA_OF), arguments=command.split())
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


def test_what_no_extra_installs_is_left_to_others() -> None:
    packages.require("this test", "apps", ("json",))
    assert (
        packages.explain(ModuleNotFoundError("No module named 'x'", name="x"), "`flhe run`") == ""
    )
    submodule = ModuleNotFoundError("No module named 'torch.func'", name="torch.func")
    assert "needs torch, " in packages.explain(submodule, "`flhe run`")


@pytest.mark.parametrize(
    ("installed", "newer"), [("1.42.3", False), ("1.9.0", False), ("1.43.0", True), ("2.0", True)]
)
def test_a_flower_that_nobody_has_tried_is_named(
    installed: str, newer: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packages.metadata, "version", lambda _: installed)
    packages.warn_untested_flower.cache_clear()
    packages.warn_untested_flower()
    assert [installed in record.message for record in caplog.records] == [True] * newer
    packages.warn_untested_flower.cache_clear()


def test_what_is_promised_of_flower_is_what_is_tried() -> None:
    """The range's lowest is the first of noxfile.py's, and the lock's the last."""
    known: dict[str, Any] = {}
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = ast.literal_eval(node.value)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flwr>={known['FLOWERS'][0]},<2" in project["dependencies"]
    assert known["FLOWERS"][-1] == packages.NEWEST_FLOWER
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    [version] = [each["version"] for each in locked if each["name"] == "flwr"]
    assert version.startswith(f"{packages.NEWEST_FLOWER}.")
    assert [f"Programming Language :: Python :: {p}" for p in known["PYTHONS"]] == [
        each for each in project["classifiers"] if "Python ::" in each
    ]
