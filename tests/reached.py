"""Which tests reach which lines of the library, and only the tests somebody chose: a plugin of pytest.

Loaded by name, `-p tests.reached`, by `tests/mutate.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[1]
RECORD = "FLHE_REACHED_INTO"
"""Environment variable: the folder that takes what tests reach."""
SELECT = "FLHE_REACHED_ONLY"
"""Environment variable: a file that names the tests to be run."""
CALLS = 20
"""Of a function, in one test: what it reaches in later ones is not looked at, since looking is slow."""


def kept_as(module: str) -> str:
    """Name of the file for what the tests of a module reach: another one once it has changed."""
    content = hashlib.sha256((ROOT / module).read_bytes()).hexdigest()
    return f"{module.replace('/', '.')}.{content[:8]}.json"


class Recorder:
    """Which test reaches which line, how long each takes, which fail: a file for each module of tests.

    What a test's fixtures reach counts for its whole module, since they may be shared.
    """

    def __init__(self, into: str) -> None:
        self.into = Path(into)
        self.module = ""
        self.now = ""
        self.calls: Counter[CodeType] = Counter()
        self.wanted: dict[str, str | None] = {}
        self.clear()

    def clear(self) -> None:
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def trace(self, frame: Any, event: str, arg: object) -> Any:
        """Trace function of `sys.settrace`."""
        path = frame.f_code.co_filename
        if path not in self.wanted:
            inside = Path(os.path.realpath(path)).as_posix().removeprefix(f"{ROOT.as_posix()}/")
            self.wanted[path] = inside if inside.startswith(("flhe/", "strategies/")) else None
        file = self.wanted[path]
        self.calls[frame.f_code] += 1
        if file is None or self.calls[frame.f_code] > CALLS:
            return None
        lines = self.lines.setdefault(file, {})

        def line(frame: Any, event: str, arg: object) -> Any:
            lines.setdefault(frame.f_lineno, set()).add(self.now)
            return line

        return line(frame, event, arg)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """What fixtures do is the module's."""
        module = item.nodeid.split("::")[0]
        if module != self.module:
            self.keep()
            self.module = module
        threading.settrace(self.trace)
        return (yield from self.watched(item, module))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """What the test does is its own."""
        return (yield from self.watched(item, item.nodeid))

    def watched(self, item: pytest.Item, name: str) -> Generator[None]:
        """Keep what is reached, and how long a core is busy with it."""
        self.now = name
        self.calls.clear()
        sys.settrace(self.trace)
        began = sum(os.times()[:4])
        try:
            return (yield)
        except pytest.skip.Exception:
            raise
        except BaseException:
            self.failed.add(item.nodeid)
            raise
        finally:
            sys.settrace(None)
            before = self.seconds.get(item.nodeid, 0.0)
            self.seconds[item.nodeid] = round(before + sum(os.times()[:4]) - began, 2)

    def pytest_sessionfinish(self) -> None:
        self.keep()

    def keep(self) -> None:
        """Write what a module's tests reach: lines as numbers of names."""
        if not self.module:
            return
        names = sorted(
            {name for of in self.lines.values() for tests in of.values() for name in tests}
        )
        number = {name: at for at, name in enumerate(names)}
        said = {
            "names": names,
            "lines": {
                file: {line: sorted(number[name] for name in tests) for line, tests in of.items()}
                for file, of in self.lines.items()
            },
            "seconds": {test: s for test, s in self.seconds.items() if test not in self.failed},
            "failed": sorted(self.failed),
        }
        (self.into / kept_as(self.module)).write_text(json.dumps(said), encoding="utf-8")
        self.clear()


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
        chosen = json.loads(Path(os.environ[SELECT]).read_text(encoding="utf-8"))
        place = {name: at for at, name in enumerate(chosen)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])
