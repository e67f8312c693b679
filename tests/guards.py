"""Guards of `guards.toml`, taken out one at a time: the tests of a fault must fail then.

Run by name, `python -m tests.guards [PART OF A ROW]...`; it takes some minutes, and works on a copy of
the project. That each guard's text is still in its file is checked by `test_faults.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("flhe", "strategies", "sim", "apps", "tests", "docs", "pyproject.toml", "README.md")
LINKED = ("strategies", "sim", "apps")
"""Packages that are beside `flhe` and imported from inside of it."""

LIMIT_S = 300.0
"""Seconds that the tests of one guard may take."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A line or two without which a fault goes unnoticed."""

    row: str
    """The fault, as docs/faults.md says what happens."""
    file: str
    text: str
    """It, as it stands there once."""
    tests: tuple[str, ...]
    """Tests that must fail when it is gone, below `tests/`."""
    without: str = "if False:"
    """What stands there then."""

    @property
    def source(self) -> str:
        return (ROOT / self.file).read_text(encoding="utf-8")

    @property
    def removed(self) -> str:
        return self.source.replace(self.text, self.without)


def _read() -> tuple[Guard, ...]:
    rows = tomllib.loads((ROOT / "tests/guards.toml").read_text(encoding="utf-8"))["guard"]
    return tuple(Guard(**{**row, "tests": tuple(row["tests"])}) for row in rows)


GUARDS = _read()
"""Those of tests/guards.toml."""


def copy_to(place: Path) -> None:
    """Copy the project, so that the copy is what is imported there."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            skipped = shutil.ignore_patterns(*LINKED) if name == "flhe" else None
            shutil.copytree(source, place / name, ignore=skipped)
        else:
            shutil.copy2(source, place / name)
    for name in LINKED:
        (place / "flhe" / name).symlink_to(Path("..") / name)
    asked = "import flhe, flhe.strategies; print(flhe.__file__, flhe.strategies.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=place, check=True, capture_output=True, text=True
    )
    for file in done.stdout.split():
        if not Path(file).is_relative_to(place):
            raise SystemExit(f"the copy is not what is imported, but {file}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tests said in the copy: pytest's exit code, and what one of them failed with."""

    code: int
    said: str
    seconds: float


def pytest_in(place: Path, *words: str, limit: float = LIMIT_S) -> tuple[int, list[str]]:
    """Run pytest in the copy: its exit code, and the lines that it says; -1 at the time limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit}
    try:
        done = subprocess.run(command, check=False, cwd=place, env=env, **how)
    except subprocess.TimeoutExpired:
        return -1, [f"no end after {limit:g} s"]
    return done.returncode, done.stdout.splitlines() or [done.stderr[-200:]]


def run(place: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests in the copy."""
    began = time.monotonic()
    code, lines = pytest_in(place, *(f"tests/{test}" for test in tests))
    failures = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return Outcome(code, (failures or lines[-1:])[0], time.monotonic() - began)


def try_without(place: Path, guard: Guard) -> Outcome:
    """Run a guard's tests in the copy while it is gone there."""
    path = place / guard.file
    source = path.read_text(encoding="utf-8")
    if source.count(guard.text) != 1:
        raise SystemExit(f"{guard.file}: the guard's text is not there once: {guard.text!r}")
    path.write_text(guard.without.join(source.split(guard.text)), encoding="utf-8")
    try:
        return run(place, guard.tests)
    finally:
        path.write_text(source, encoding="utf-8")


def main(parts: list[str]) -> int:
    """Try all guards, or those whose row has one of `parts` in it; how many go unnoticed."""
    guards = [g for g in GUARDS if not parts or any(part in g.row for part in parts)]
    with tempfile.TemporaryDirectory(prefix="flhe-guards-") as folder:
        place = Path(folder).resolve()
        copy_to(place)
        whole = run(place, tuple(dict.fromkeys(test for g in guards for test in g.tests)))
        print(f"all guards there: {whole.said} ({whole.seconds:.0f} s)", flush=True)
        if whole.code != 0:
            return 1
        unnoticed = 0
        for number, guard in enumerate(guards, 1):
            outcome = try_without(place, guard)
            noticed = outcome.code == 1
            unnoticed += not noticed
            word = "noticed" if noticed else "UNNOTICED"
            print(
                f"{number:2}/{len(guards)} {word:9} {outcome.seconds:4.0f} s  {guard.row[:60]:60}  "
                f"{guard.file}: {guard.text.strip()[:50]!r}: {outcome.said[:90]}",
                flush=True,
            )
    print(f"{len(guards) - unnoticed} of {len(guards)} guards are missed when they are gone")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
