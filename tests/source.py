"""The source as trees: which modules there are, and what each imports."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator
from functools import cache

ROOT = pathlib.Path(__file__).parents[1]

FOLDERS = {
    "flhe": ROOT / "flhe",
    "flhe.strategies": ROOT / "strategies",
    "flhe_app": ROOT / "apps",
    "flhe_lab": ROOT / "sim",
}
"""Import name -> folder."""

LIBRARY = ("flhe", "flhe.strategies")


@cache
def modules(*names: str) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree, of every module of some of FOLDERS; of the library unless said."""
    found = {}
    for name in names or LIBRARY:
        for path in sorted(FOLDERS[name].rglob("*.py")):
            parts = path.relative_to(FOLDERS[name]).with_suffix("").parts
            if parts != ("setup",) and "build" not in parts:
                dotted = ".".join((name, *parts)).removesuffix(".__init__")
                found[dotted] = ast.parse(path.read_text(), str(path))
    return found


@cache
def imports(tree: ast.AST, *, types: bool = True) -> tuple[str, ...]:
    """Everything that a module imports, wherever it does; without `types` not for types alone."""
    return tuple(_imports(tree, types))


def _imports(tree: ast.AST, types: bool) -> Iterator[str]:
    for node in _nodes(tree, types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def _nodes(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _nodes(node, types)


def imported_modules(name: str, known: dict[str, ast.Module], *, types: bool = True) -> set[str]:
    """Modules of `known` that a module of it imports."""
    found = set()
    for imported in imports(known[name], types=types):
        parts = imported.split(".")
        ways = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        found.add(next((way for way in ways if way in known), name))
    return found - {name}


def of(name: str, *packages: str) -> bool:
    """Whether a module is one of some packages, or in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
