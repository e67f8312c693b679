"""The site's reference, which is generated, has every public name; `.ci/run` builds the site."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from functools import cache
from typing import Any

import pytest

from flhe.node.policy import settings
from flhe_app.settings import Settings
from tests.source import ROOT, modules

SPEC = importlib.util.spec_from_file_location(
    "generate_reference", ROOT / "docs" / "generate_reference.py"
)
PACKAGES = ("strategies", "mods", "coding", "schemes", "testing", "dpsgd", "analytics", "errors")


@cache
def pages() -> dict[str, str]:
    assert SPEC is not None
    assert SPEC.loader is not None
    module: Any = importlib.util.module_from_spec(SPEC)
    sys.modules[SPEC.name] = module  # dataclasses look there
    SPEC.loader.exec_module(module)
    found: dict[str, str] = module.pages()
    return found


def public(package: str) -> set[str]:
    """Names of `__all__`; without one, what all modules define but kernels, which are compiled."""
    listed = getattr(importlib.import_module(package), "__all__", None)
    if listed is not None:
        return set(listed)
    return {
        node.name
        for module, tree in modules().items()
        if f"{module}.".startswith(f"{package}.") and not module.endswith("kernels")
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }


@pytest.mark.parametrize("package", [f"flhe.{name}" for name in PACKAGES])
def test_the_api_has_every_public_name(package: str) -> None:
    headings = re.findall(r"^###? (\w+)$", pages()[f"api/{package}.md"], re.MULTILINE)
    assert len(headings) >= len(public(package)) > 0
    assert public(package) <= set(headings)


def test_the_api_has_what_documents_and_examples_import() -> None:
    headings = set(re.findall(r"^###? (\w+)$", "".join(pages().values()), re.MULTILINE))
    folders = (ROOT / "docs", ROOT / "examples")
    files = [
        path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".md", ".py")
    ]
    imported = {
        name
        for path in [ROOT / "README.md", *files]
        for names in re.findall(
            r"^from flhe(?:\.\w+)* import ([\w, ]+)$", path.read_text(), re.MULTILINE
        )
        for name in names.split(" as ")[0].split(", ")
    }
    assert len(imported) > 30
    others = {"analytics", "records", "Table", "Q"}  # modules, a type, a number
    assert imported <= headings | others


def test_configs_have_every_key() -> None:
    keys = re.findall(r"^\| `([a-z-]+)`", pages()["node-config.md"], re.MULTILINE)
    assert sorted(keys) == sorted(settings())
    keys = re.findall(r"^\| `([a-z-]+)`", pages()["run-config.md"], re.MULTILINE)
    assert keys == [name.replace("_", "-") for name in Settings.__dataclass_fields__]


def test_every_record_is_on_the_page_of_formats() -> None:
    text = pages()["file-formats.md"]
    declared = {
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any("FORM = " in ast.unparse(part) for part in node.body)
    }
    assert len(declared) > 30
    assert declared == set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert "| `signature` | 64 bytes |" in text.split("### Answer\n")[1].split("###")[0]
    assert text.count("\n| field | value |") > 0.9 * len(declared)


def test_docstrings_become_markdown() -> None:
    text = pages()["api/flhe.strategies.md"]
    assert "- `scheme`: Scheme" in text
    assert not re.search(r"^-{4,}$", "".join(text.split("```")[::2]), re.MULTILINE)
