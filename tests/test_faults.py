"""The lists of faults and limits say what is so: tests exist, every code is there, guards stand."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from flhe.wire import codes
from flhe_lab.server_audit.attacks import EXPERIMENTS
from tests.guards import GUARDS, ROOT, Guard

DOC = ROOT / "docs" / "faults.md"
LIMITS = ROOT / "docs" / "limits.md"
EXPERIMENT = re.compile(r"\*([^*]+)\*")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
CODE = re.compile(r"\b1\d{3}\b")
ALL = {code for code in range(1000, 2000) if codes.find(code)}


class Row(NamedTuple):
    what: str
    answer: str
    tests: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(head: str, page: Path = DOC) -> list[list[str]]:
    """Rows of all tables whose first column is headed so."""
    out, inside = list[list[str]](), False
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells(line)[0] == head:
            inside = True
        elif inside and not line.startswith("|---"):
            out.append(cells(line))
    return out


ROWS = [Row(*row) for row in table("what happens")]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Names of the tests in a file, those of classes too."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def test_each_fault_is_there_once() -> None:
    assert len(ROWS) > 100
    assert len({row.what for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:60])
def test_each_fault_has_tests_that_exist(row: Row) -> None:
    named = TEST.findall(row.tests)
    assert named
    assert not TEST.sub("", row.tests).strip(", ")
    for file, name in named:
        assert name.startswith("test_")
        assert name in names_in(file), f"{file} has no {name}"


@pytest.mark.parametrize("row", table("the server can", LIMITS), ids=lambda row: row[0][:60])
def test_each_limit_is_shown_by_tests_and_experiments_that_exist(row: list[str]) -> None:
    _, _, shown = row
    measured, tested = EXPERIMENT.findall(shown), TEST.findall(shown)
    assert tested
    assert set(measured) <= {each.name for each in EXPERIMENTS}
    assert not TEST.sub("", EXPERIMENT.sub("", shown)).strip(", ")
    for file, name in tested:
        assert name in names_in(file), f"{file} has no {name}"


def test_every_code_answers_some_fault() -> None:
    assert {int(code) for row in ROWS for code in CODE.findall(row.answer)} == ALL


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.row[:60])
def test_each_guard_is_where_it_is_said_to_be(guard: Guard) -> None:
    assert guard.source.count(guard.text) == 1
    ast.parse(guard.removed)
    assert guard.removed != guard.source
    [row] = [row for row in ROWS if row.what == guard.row]
    named = {f"{file}::{name}" for file, name in TEST.findall(row.tests)}
    assert {test.split("[", 1)[0] for test in guard.tests} <= named


def test_enough_guards_of_all_kinds() -> None:
    assert len(GUARDS) >= 14
    assert len({guard.row for guard in GUARDS}) == len(GUARDS)
    text = DOC.read_text(encoding="utf-8")
    kinds = [part for part in text.split("\n## ")[1:] if any(g.row in part for g in GUARDS)]
    assert len(kinds) >= 11
