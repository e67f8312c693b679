"""A plugin of pytest that collects once, then tries mutants one by one, each in a fork of its own.

Loaded by name, `-p tests.forked`, by `tests/mutate.py`, which says over a pipe what a mutant is. In the
fork, code of the mutated file takes the place of that of its functions; nothing is imported anew, and
what is run on import stays as it was.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import resource
import signal
import time
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

PIPES = "FLHE_FORKED_PIPES"
"""Environment variable: file descriptors to read jobs from and to write outcomes to."""
LIMITS = {signal.SIGXCPU, signal.SIGKILL}
"""What ends a fork that is busy for too long."""


class Server:
    """Runs tests on mutants.

    A job is a JSON object: `file`, whose present text is the mutant's, `tests` in order, `limit_s` of a
    core. The outcome is the first test that failed, "" if none did, or null at the limit.
    """

    def __init__(self, pipes: str) -> None:
        reading, writing = map(int, pipes.split(","))
        self.jobs, self.outcomes = os.fdopen(reading), os.fdopen(writing, "w")
        self.said = Path("said").resolve()
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """One fork a job."""
        items = {item.nodeid: item for item in session.items}
        functions = [one for one in gc.get_objects() if type(one) is FunctionType]
        gc.collect()
        gc.freeze()  # or every fork would copy all of it
        for line in self.jobs:
            job = json.loads(line)
            self.said.unlink(missing_ok=True)
            if (child := os.fork()) == 0:
                try:
                    put_in(job["file"], functions)
                    self.said.write_text(self.tried(job, items), encoding="utf-8")
                finally:
                    os._exit(0)
            outcome: str | None = "died"
            if not _ended(child, 6 * job["limit_s"]):
                outcome = None
            elif self.said.exists():
                outcome = self.said.read_text(encoding="utf-8")
            self.outcomes.write(json.dumps(outcome) + "\n")
            self.outcomes.flush()
        return True

    def tried(self, job: dict[str, Any], items: dict[str, pytest.Item]) -> str:
        """In the fork: the first test that fails, "" if none does."""
        os.setsid()
        limit = int(job["limit_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 9))
        chosen = [items[test] for test in job["tests"] if test in items]
        for item, after in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                break
        return self.failed


def _ended(child: int, limit_s: float) -> bool:
    """Wait for a fork, end all that it started, and say whether it came to its end by itself."""
    began, done, status = time.monotonic(), 0, 0
    while not done and time.monotonic() - began < limit_s:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    return bool(done) and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) in LIMITS)


def put_in(file: str, functions: list[FunctionType]) -> None:
    """Give the functions of a file the code that its present text has."""
    path = os.path.realpath(file)
    whole = compile(Path(file).read_bytes(), file, "exec")
    new = {(code.co_qualname, code.co_firstlineno): code for code in _outer(whole)}
    for function in functions:
        old = function.__code__
        name = old.co_qualname, old.co_firstlineno
        if name in new and os.path.realpath(old.co_filename) == path:
            function.__code__ = new[name]


def _outer(code: CodeType) -> list[CodeType]:
    """Code of functions of a module and its classes, not of those within functions."""
    out = []
    for one in code.co_consts:
        if isinstance(one, CodeType):
            out += [one] if one.co_flags & inspect.CO_NEWLOCALS else _outer(one)
    return out


def pytest_configure(config: pytest.Config) -> None:
    """Serve, where there are pipes."""
    if PIPES in os.environ:
        config.pluginmanager.register(Server(os.environ.pop(PIPES)))
