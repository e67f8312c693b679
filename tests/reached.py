"""Which tests reach which lines of the library, and only the tests somebody chose: a plugin of pytest.

Loaded by name, `-p tests.reached`, by `tests/mutate.py`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[1]
RECORD = "FLHE_REACHED_INTO"
"""Environment variable: the file that takes what a run reached."""
SELECT = "FLHE_REACHED_ONLY"
"""Environment variable: a file that names the tests to be run."""


class Recorder:
    """As a plugin of pytest: which test reaches which line, how long each takes, which fail.

    What a test's fixtures reach counts for its whole module, since they may be shared.
    """

    def __init__(self, into: str) -> None:
        self.into = Path(into)
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.now = ""
        self.wanted: dict[str, str | None] = {}

    def trace(self, frame: Any, event: str, arg: object) -> Any:
        """Trace function of `sys.settrace`."""
        path = frame.f_code.co_filename
        if path not in self.wanted:
            inside = Path(os.path.realpath(path)).as_posix().removeprefix(f"{ROOT.as_posix()}/")
            self.wanted[path] = inside if inside.startswith(("flhe/", "strategies/")) else None
        file = self.wanted[path]
        if file is None:
            return None
        lines = self.lines.setdefault(file, {})

        def line(frame: Any, event: str, arg: object) -> Any:
            lines.setdefault(frame.f_lineno, set()).add(self.now)
            return line

        return line(frame, event, arg)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """What fixtures do is the module's."""
        self.now = item.nodeid.split("::")[0]
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """What the test does is its own."""
        self.now = item.nodeid
        sys.settrace(self.trace)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the time."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.outcome == "failed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Keep all of it."""
        sys.settrace(None)
        lines = {f: {n: sorted(t) for n, t in of.items()} for f, of in self.lines.items()}
        seconds = {test: s for test, s in self.seconds.items() if test not in self.failed}
        said = {"lines": lines, "seconds": seconds, "failed": sorted(self.failed)}
        self.into.write_text(json.dumps(said), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis has the same examples in every run, and shrinks none."""
    phases = (Phase.explicit, Phase.generate)
    base = settings.get_profile("flhe")
    settings.register_profile("mutate", base, derandomize=True, database=None, phases=phases)
    settings.load_profile("mutate")
    if RECORD in os.environ:
        config.pluginmanager.register(Recorder(os.environ[RECORD]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tests chosen for a mutant."""
    if SELECT in os.environ:
        chosen = set(json.loads(Path(os.environ[SELECT]).read_text(encoding="utf-8")))
        items[:] = [item for item in items if item.nodeid in chosen]
