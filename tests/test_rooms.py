"""The rooms of the library: imports go down, never round, and the page that draws them is right."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from flhe.schemes.registry import SCHEMES
from tests.source import FOLDERS, ROOT, imported_modules, imports, modules, of

PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_LINES = 500


def room_of(module: str) -> str:
    """The folder below flhe that a module lies in; for one beside them, its own name."""
    return module.removeprefix("flhe").lstrip(".").partition(".")[0] or "flhe"


def arrows(known: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Room -> rooms that it imports from."""
    found: dict[str, set[str]] = {}
    for module in known:
        here = room_of(module)
        rooms = {room_of(target) for target in imported_modules(module, dict(known))}
        found.setdefault(here, set()).update(rooms - {here, "flhe"})
    return found


def reduced(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that no longer way stands for."""

    def reach(start: str) -> set[str]:
        below = set(graph.get(start, ()))
        for room in list(below):
            below |= reach(room)
        return below

    return {
        (room, target)
        for room, targets in graph.items()
        for target in targets
        if not any(target in reach(other) for other in targets - {target})
    }


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    graph = {name: imported_modules(name, known, types=False) for name in known}
    for name in known:  # a package names what it shows; those are below it
        if any(module.startswith(f"{name}.") for module in known):
            graph[name] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_no_room_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter(arrows(modules())).prepare()
    except CycleError as error:
        pytest.fail(f"rooms import each other: {' -> '.join(error.args[1])}")


def test_the_page_draws_the_rooms_as_they_are() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)$", PAGE, re.MULTILINE))
    assert drawn == reduced(arrows(modules()))


def test_the_library_imports_neither_app_nor_lab() -> None:
    foreign = {
        (name, target)
        for name, tree in modules().items()
        for target in imports(tree)
        if of(target, "flhe_app", "flhe_lab")
    }
    assert foreign == set()


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT))
        for folder in ("flhe", "strategies", "sim", "apps")
        for path in (ROOT / folder).rglob("*.py")
        if "build" not in path.parts and len(path.read_text().splitlines()) > MOST_LINES
    }
    assert not long


# --- the package, and what importing it loads ---

HEAVY = ("flwr", "torch", "numba", "tenseal", "gmpy2")


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in FOLDERS.values():
        for module in folder.rglob("*.py"):
            if "build" not in module.parts:
                assert (module.parent / "__init__.py").exists(), f"{module} is in no package"


LIGHT = ("schemes.flashe.scheme", "training.session", "coding.chain", "node.policy")


def test_importing_loads_nothing_heavy() -> None:
    names = ", ".join(f"flhe.{name}" for name in LIGHT)
    code = f"import json, sys, {names}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "flhe" in loaded
    assert loaded.isdisjoint(HEAVY)


ALLOWED = (
    "flhe.mods",
    "flhe.gate",
    "flhe.strategies",
    "flhe.testing",
    "flhe.dpsgd",
    "flhe.analytics.ask",
)
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")


def importers(*packages: str) -> set[tuple[str, str]]:
    """Modules of the library that import something of those packages, and what."""
    known = modules().items()
    return {(name, i) for name, tree in known for i in imports(tree) if of(i, *packages)}


def test_only_adapters_import_flower_and_all_but_one_its_public_modules_alone() -> None:
    """`flhe.testing` and the gate need Flower's wire format, which has no public entry."""
    found = importers("flwr")
    assert found
    assert {name for name, _ in found if not of(name, *ALLOWED)} == set()
    private = {name for name, i in found if not of(i, *PUBLIC) and not of(name, "flhe.gate")}
    assert private == {"flhe.testing"}


def test_nobody_waits_inside_a_part_of_numba_for_the_whole() -> None:
    """A thread that imports a part first holds its lock while another one imports numba: both fail."""
    for path in (ROOT / "flhe").rglob("*.py"):
        names = [
            each.module if isinstance(each, ast.ImportFrom) else each.names[0].name
            for each in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(each, ast.Import | ast.ImportFrom)
        ]
        parts = [at for at, name in enumerate(names) if name and name.startswith("numba.")]
        assert not parts or "numba" in names[: parts[0]], path


def test_numba_is_imported_by_the_kernels_alone() -> None:
    users = {name for name, _ in importers("numba")}
    assert users
    assert all(name.endswith("kernels") for name in users)


def test_no_weak_randomness_and_no_pickle() -> None:
    """Under flhe and strategies: keys, masks and rounding come from a CSPRNG, messages from CBOR."""
    forbidden = ("random", "numpy.random", "pickle", "marshal", "shelve", "dill", "cloudpickle")
    offenders = importers(*forbidden)
    for name, tree in modules().items():
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


# --- nothing but its own folder, the registry and an alias knows a scheme by name: all else asks it ---


ASKING = ("flhe", "flhe.strategies", "flhe_app")
"""Not the lab, which compares systems by their names."""
THERE = ("flhe.schemes", "flhe.strategies.aliases")
"""Where schemes are named: their own folders and the registry, and their aliases."""
LABELS = {("flhe.keys.agreement.joint", "eshe-own")}
"""Labels of derived keys: they are part of the format, and as old as their scheme."""


def words() -> re.Pattern[str]:
    """Names on the wire, of classes and of folders, and of a system's parts in its paper."""
    known = {"eshe"}
    for kind in SCHEMES.all():
        known |= {kind.name, kind.__name__}
        if kind.__module__.startswith("flhe."):
            known.add(kind.__module__.split(".")[2])
    return re.compile(f"(?i)(?<![a-z])({'|'.join(sorted(known))})")


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names and texts of a module, but for what only explains it."""
    explains = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in explains:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
                yield getattr(node, "lineno", 0), text
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.ImportFrom(module=str(text)):
                yield node.lineno, text


def test_nobody_else_asks_which_scheme_it_is() -> None:
    pattern = words()
    found = [
        f"{module}:{line}: {text}"
        for module, tree in modules(*ASKING).items()
        if module != "flhe.strategies" and not of(module, *THERE)  # which a user imports
        for line, text in named(tree)
        if pattern.search(text) and (module, text) not in LABELS
        if not text.startswith("flhe ")  # an example in the help of a command
    ]
    assert not found, "\n".join(found)
