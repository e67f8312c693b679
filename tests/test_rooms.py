"""The rooms of the library: imports go down, never round, and the page that draws them is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.source import ROOT, imported_modules, imports, modules, of

PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_LINES = 500
LONGER = {
    "flhe/keys/agreement/masking.py",
    "flhe/node/node.py",
    "flhe/training/session.py",
}
"""Files that are still to be cut; no other one may join them."""
MOST_LINES_OF_PAGE = 250


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
    assert long <= LONGER


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES_OF_PAGE
