"""Nothing but its own folder, the registry and an alias knows a scheme by name: all else asks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from flhe.schemes.registry import SCHEMES
from tests.source import ROOT

FOLDERS = ("flhe", "strategies", "apps")
"""Not the lab, which compares systems by their names."""
THERE = ("flhe/schemes/", "strategies/aliases.py", "strategies/__init__.py")
"""Where schemes are named: their own folders and the registry, their aliases, what a user imports."""
LABELS = {("flhe/keys/agreement/joint.py", "eshe-own")}
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
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            if where.startswith(THERE) or "build" in Path(where).parts:
                continue
            for line, text in named(ast.parse(path.read_text())):
                if pattern.search(text) and (where, text) not in LABELS:
                    found.append(f"{where}:{line}: {text}")
    assert not found, "\n".join(found)


def test_it_would_be_seen() -> None:
    code = (
        'from flhe.schemes.sash.scheme import Sash\nif s == "fedml-he":\n    Esafl(keys="dealt")\n'
    )
    seen = {text for _, text in named(ast.parse(code)) if words().search(text)}
    assert seen == {"flhe.schemes.sash.scheme", "fedml-he", "Esafl"}
