"""The package: what is in it, what importing it loads, and who may import Flower."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.source import FOLDERS, imports, modules, of

HEAVY = ("flwr", "torch", "numba", "tenseal", "gmpy2")


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in FOLDERS.values():
        for module in folder.rglob("*.py"):
            if "build" not in module.parts:
                assert (module.parent / "__init__.py").exists(), f"{module} is in no package"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


LIGHT = {
    "flhe": HEAVY,
    "flhe.schemes.flashe.scheme": HEAVY,
    "flhe.training.session": HEAVY,
    "flhe.coding.chain": HEAVY,
    "flhe.node.policy": HEAVY,
}


@pytest.mark.parametrize("module", LIGHT)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run(code))}
    assert "flhe" in loaded
    assert loaded.isdisjoint(LIGHT[module])


ALLOWED = ("flhe.mods", "flhe.strategies", "flhe.testing", "flhe.provision.flower_config")


def test_only_adapters_import_flower() -> None:
    offenders = {
        name
        for name, tree in modules().items()
        for imported in imports(tree)
        if of(imported, "flwr") and not of(name, *ALLOWED)
    }
    assert offenders == set()
    assert any(of(i, "flwr") for tree in modules().values() for i in imports(tree)), (
        "nothing was scanned"
    )


def test_mods_and_strategies_use_flowers_public_modules() -> None:
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    offenders = {
        (name, imported)
        for name, tree in modules().items()
        for imported in imports(tree)
        if of(imported, "flwr")
        and of(name, "flhe.mods", "flhe.strategies")
        and not of(imported, *public)
    }
    assert offenders == set()


def test_numba_is_imported_by_the_kernels_alone() -> None:
    users = {
        name
        for name, tree in modules().items()
        for imported in imports(tree)
        if of(imported, "numba")
    }
    assert users
    assert all(name.endswith("kernels") for name in users)


def test_no_weak_randomness_and_no_pickle() -> None:
    """Under flhe and strategies: keys, masks and rounding come from a CSPRNG, messages from CBOR."""
    forbidden = ("random", "numpy.random", "pickle", "marshal", "shelve", "dill", "cloudpickle")
    offenders = set()
    for name, tree in modules().items():
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
