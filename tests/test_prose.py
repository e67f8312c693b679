"""Pages and docstrings hold to what a program can check of plain English, with fewer exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose

NAMED = {
    path.relative_to(prose.ROOT).as_posix(): path for path in [*prose.pages(), *prose.sources()]
}


@pytest.mark.parametrize("name", sorted(NAMED.keys() - prose.allowed()))
def test_it_holds(name: str) -> None:
    assert not prose.faults_of(NAMED[name])


def test_what_holds_is_no_exception() -> None:
    """Run `python -m tests.prose --allow` after mending a file; never to add one."""
    assert prose.allowed() <= NAMED.keys()
    assert [name for name in sorted(prose.allowed()) if not prose.faults_of(NAMED[name])] == []


def test_the_checker_finds_what_it_should() -> None:
    page = f"# T\n\nWhat a server sees of a site is short. {'word ' * 41}\n\n| a b c | `x`. |\n"
    long, often, clause = prose.faults_of_page(page)
    assert (long[:8], often[:3], clause[:7]) == ("41 words", "one", "'What '")
    good = "The server adds updates (Sec. 3). Does it? What does it add to them, and when?"
    assert prose.faults_of_page(good) == []
    assert list(prose.sentences("See Sec. 4 of it. Then [go on](x.md).")) == [
        "See Sec. 4 of it.",
        "Then go on.",
    ]
    bad = 'def f():\n    """Whether it holds."""\n'
    assert prose.faults_of_source(bad) == ["Whether it holds."]
    assert prose.faults_of_source(bad.replace("Whether it", "Return whether it")) == []


def test_the_readme_is_short() -> None:
    assert len(Path(prose.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
