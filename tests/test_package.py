"""The package: what is in it, what importing it loads, and who may import Flower."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
HEAVY = ("flwr", "torch", "numba", "tenseal", "gmpy2")


def folders() -> dict[str, pathlib.Path]:
    """Package name -> folder, for every folder of the source tree that is a package."""
    mapped = {str(ROOT / folder): name for name, folder in SETUPTOOLS["package-dir"].items()}
    found = {}
    for top in (ROOT / "flhe", *map(pathlib.Path, mapped)):
        base = mapped.get(str(top), "flhe")
        for init in sorted(top.rglob("__init__.py")):
            parts = init.parent.relative_to(top).parts
            found[".".join((base, *parts))] = init.parent
    return found


def test_packages_are_the_folders_that_are_packages() -> None:
    listed = SETUPTOOLS["packages"]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(folders())


def test_every_folder_with_modules_is_a_package() -> None:
    known = set(folders().values())
    for top in ("flhe", *SETUPTOOLS["package-dir"].values()):
        for module in (ROOT / top).rglob("*.py"):
            assert module.parent in known, f"{module.relative_to(ROOT)} is in no package"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_importing_flhe_is_fast() -> None:
    code = (
        "import time; start = time.perf_counter(); import flhe; print(time.perf_counter() - start)"
    )
    assert min(float(run(code)) for _ in range(5)) < 0.3


LIGHT = {
    "flhe": HEAVY,
    "flhe.schemes.flashe": HEAVY,
    "flhe.rounds.session": HEAVY,
    "flhe.coding.chain": HEAVY,
    "flhe.policy": HEAVY,
}


@pytest.mark.parametrize("module", LIGHT)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run(code))}
    assert "flhe" in loaded
    assert loaded.isdisjoint(LIGHT[module])


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Dotted name and syntax tree of every module of the library."""
    for package, folder in folders().items():
        for path in sorted(folder.glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            yield name, ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    """Everything that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def of(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


ALLOWED = (
    "flhe.apps",
    "flhe.mods",
    "flhe.records",
    "flhe.sim",
    "flhe.strategies",
    "flhe.testing",
)


def test_only_adapters_import_flower() -> None:
    offenders = {
        name
        for name, tree in modules()
        for imported in imports(tree)
        if of(imported, "flwr") and not of(name, *ALLOWED)
    }
    assert offenders == set()
    assert any(of(i, "flwr") for _, tree in modules() for i in imports(tree)), "nothing was scanned"


def test_mods_and_strategies_use_flowers_public_modules() -> None:
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    offenders = {
        (name, imported)
        for name, tree in modules()
        for imported in imports(tree)
        if of(imported, "flwr")
        and of(name, "flhe.mods", "flhe.strategies", "flhe.records")
        and not of(imported, *public)
    }
    assert offenders == set()


KERNELS = (
    "",
    "ckks_",
    "coefficient_",
    "coordinate_",
    "field_",
    "laplace_",
    "limb_",
    "mask_",
    "power_",
    "prime_",
    "ring_",
    "sampling_",
    "select_",
    "shamir_",
    "slot_",
    "sparse_",
    "tag_",
)


def test_numba_is_imported_by_the_kernels_alone() -> None:
    users = {
        name
        for name, tree in modules()
        for imported in imports(tree)
        if of(imported, "numba") and not of(name, "flhe.sim")
    }
    kinds = (
        "",
        "coordinate_",
        "field_",
        "laplace_",
        "mask_",
        "power_",
        "select_",
        "slot_",
        "sparse_",
    )
    assert users == {f"flhe.math.{kind}kernels" for kind in kinds}


def test_no_weak_randomness_and_no_pickle() -> None:
    """Under flhe and strategies: keys, masks and rounding come from a CSPRNG, messages from CBOR."""
    forbidden = ("random", "numpy.random", "pickle", "marshal", "shelve", "dill", "cloudpickle")
    offenders = set()
    for name, tree in modules():
        if of(name, "flhe.apps", "flhe.sim"):
            continue
        offenders |= {(name, i) for i in imports(tree) if of(i, *forbidden)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "random"
                and isinstance(node.value, ast.Name)
                and node.value.id in ("np", "numpy")
            ):
                offenders.add((name, "np.random"))
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is False, name
    assert offenders == set()
