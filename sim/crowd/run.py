"""One federation of virtual clients on Flower's simulation engine, watched from outside.

A SuperLink with a simulation runtime, and one run of the app of `crowd.app` on it, as `flwr run` does:
ServerApp, message store and Ray's driver in one process, the clients in as many Ray actors as there
are processors.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flhe.errors import FlheError
from flhe_app.environment import environment, temporary
from flhe_app.flower_run import STREAM_S
from flhe_app.outcome import Tail, last_exception
from flhe_app.processes import Children, describe_exit
from flhe_app.superlink import LOOK_S, Value, pairs, start_simulation
from flhe_lab.bench.synthetic import write_app
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.crowd import app as crowd_app
from flhe_lab.crowd.found import Asked, Found

MEMORY_S = 1.0
"""Seconds between two looks at memory: summing it up takes some ms a process."""

SAID = 1000
"""Characters of a failure that are shown: Ray's name every process of the machine."""


class RayRun:
    """One run, from the SuperLink's start to the end of everything.

    Flower's settings, ports, processes and files are private to it and gone after it, as in `flhe run`.

    `timeout` is in seconds, for it all; `step` is told the rounds so far, all of them, and of what.
    """

    def __init__(self, asked: Asked, timeout: float, step: Progress = silent) -> None:
        self._asked, self._timeout, self._step = asked, timeout, step
        self._found = Found(asked)
        self._looked = 0.0

    def run(self) -> Found:
        """Run it.

        Raises FlheError: it failed, a process of it ended, a sum was not the sum, or time is up.
        """
        began = time.monotonic()
        self._deadline = began + self._timeout
        self._step(0, self._asked.rounds, f"{self._asked.clients} clients")
        with temporary() as scratch:
            self._log = scratch / "flower.log"
            self._log.touch(mode=0o600)
            write_app(scratch / "app", "flhe-crowd", crowd_app.__name__, self._config(scratch))
            (scratch / "clocks").mkdir()
            children = Children(environment(scratch / "nodes", scratch), scratch)
            try:
                self._watch(scratch, children)
                self._found.read_clocks(scratch / "clocks")
            finally:
                children.stop()  # which removes `scratch` too
        self._found.wall_s = time.monotonic() - began
        return self._found

    def _config(self, scratch: Path) -> dict[str, Value]:
        return {
            "scheme": "sash",
            "values": self._asked.values,
            "nodes": self._asked.clients,
            "rounds": self._asked.rounds,
            "drops": self._asked.drops,
            "timeout": self._timeout,
            "clocks": str(scratch / "clocks"),
            "report": str(scratch / "report.jsonl"),
        }

    def _watch(self, scratch: Path, children: Children) -> None:
        app, clients, config = scratch / "app", self._asked.clients, pairs(self._config(scratch))
        superlink, stream = start_simulation(children, self._log, app, clients, config, self.fail)
        tail, ended = Tail(scratch / "report.jsonl"), float("inf")
        while True:
            time.sleep(LOOK_S)
            for line in tail.lines():
                event: dict[str, Any] = json.loads(line)
                if event["event"] == "failed":
                    self.fail(event["error"])
                self._hear(event)
                if event["event"] == "done":
                    return
            if superlink.poll() is not None:
                self.fail(f"flower-superlink {describe_exit(superlink.returncode)}")
            self._look(superlink.pid)
            now = time.monotonic()
            if stream.poll() is not None:
                ended = min(ended, now)
            if now - ended > STREAM_S:
                self.fail("the ServerApp ended before it was done")
            if now > self._deadline:
                self.fail(f"it took longer than {self._timeout:g} s")

    def _hear(self, event: dict[str, Any]) -> None:
        found, kind, asked = self._found, event["event"], self._asked
        if kind == "round":
            found.rounds_s.append(event["round_s"])
            found.survivors.append(event["survivors"])
            self._step(len(found.rounds_s), asked.rounds, f"{asked.clients} clients")
        elif kind == "done":
            found.server_bytes = max(found.server_bytes, event["peak"])
            found.phases, found.error = event["phases"], event["error"]

    def _look(self, superlink: int) -> None:
        """Add up what the processes hold, now and then."""
        now = time.monotonic()
        if now - self._looked >= MEMORY_S:
            self._looked = now
            self._found.tree_bytes = max(self._found.tree_bytes, sum(_held(superlink)))

    def fail(self, reason: str) -> NoReturn:
        """Raise FlheError with what the log says of it, shortened."""
        why = last_exception(self._log)
        text = f"{self._asked.clients} clients on Ray failed: {reason}" + (
            f" ({why})" if why else ""
        )
        raise FlheError(textwrap.shorten(text, SAID))


def _held(pid: int) -> Iterator[int]:
    """Bytes that a process and each one below it hold, shared pages in proportion."""
    import psutil

    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        tree: Sequence[Any] = [parent, *parent.children(recursive=True)]
        for process in tree:
            with suppress(psutil.Error):
                info = process.memory_full_info()
                yield int(getattr(info, "pss", info.uss))
