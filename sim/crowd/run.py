"""One federation of virtual clients on Flower's simulation engine, watched from outside.

A SuperLink with a simulation runtime, and one run of the app of `crowd.app` on it, as `flwr run` does:
ServerApp, message store and Ray's driver in one process, the clients in as many Ray actors as there
are processors.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from flhe.errors import FlheError
from flhe_app.environment import cpus, environment
from flhe_lab.crowd.app import FILES
from flhe_lab.crowd.deployment import Event, LocalRun
from flhe_lab.crowd.found import Asked, Found

MEMORY_S = 1.0
"""Seconds between two looks at memory: summing it up takes some ms a process."""

SAID = 1000
"""Characters of a failure that are shown: Ray's name every process of the machine."""

Step = Callable[[int, str], None]
"""(answers so far in this phase, what is going on) -> None."""


class RayRun(LocalRun):
    """One run, from the SuperLink's start to the end of everything.

    Parameters
    ----------
    asked : Asked
        The federation.
    timeout : float
        Seconds for it all.
    step : callable, optional
        Told what is going on.
    """

    app = FILES
    options = ("--simulation",)

    def __init__(self, asked: Asked, timeout: float, step: Step = lambda *_: None) -> None:
        config = {
            "values": asked.values,
            "nodes": asked.clients,
            "rounds": asked.rounds,
            "drops": asked.drops,
            "timeout": timeout,
        }
        super().__init__(config, timeout)
        self.what = f"{asked.clients} clients on Ray"
        self._asked, self._step = asked, step
        self._found = Found(asked)
        self._looked = 0.0

    def run(self) -> Found:
        """Run it.

        Raises
        ------
        FlheError
            It failed, a sum was not the sum, or time is up.
        """
        began = time.monotonic()
        self._step(0, "starting Flower")
        self.follow(self._hear, lambda: None)
        self._found.wall_s = time.monotonic() - began
        return self._found

    def _environment(self) -> dict[str, str]:
        (self._scratch / "clocks").mkdir()
        self._config = {**self._config, "clocks": str(self._scratch / "clocks")}
        return environment(self._scratch, self._scratch) | {
            "FLHE_HOME": str(self._scratch / "nodes"),
            "RAY_worker_niceness": "0",  # or whatever else runs here would be in the times
        }

    def _words(self) -> list[str]:
        return ["--federation-config", _federation(self._asked.clients)]

    def _ended(self) -> None:
        self._found.read_clocks(self._scratch / "clocks")

    def _hear(self, event: Event) -> None:
        """Take in one event of the app's report."""
        found, kind = self._found, event["event"]
        if kind == "idle":
            found.idle_bytes = event["resident"]
        elif kind == "phase":
            number = event["round"]
            where = f"round {number}, {event['phase']}" if number else event["phase"]
            self._step(event["answers"], f"{self._asked.clients} clients: {where}")
        elif kind == "round":
            found.rounds_s.append(event["round_s"])
            found.survivors.append(event["survivors"])
        elif kind == "done":
            found.server_bytes = max(found.server_bytes, event["peak"])
            found.phases, found.error = event["phases"], event["error"]
            found.masking_bytes = event["masking_bytes"]

    def _look(self, superlink: int) -> None:
        """Add up what the processes hold, now and then."""
        now = time.monotonic()
        if now - self._looked >= MEMORY_S:
            self._looked = now
            self._found.tree_bytes = max(self._found.tree_bytes, sum(_held(superlink)))

    def fail(self, reason: str) -> NoReturn:
        """Raise FlheError with what the log says of it, shortened."""
        try:
            super().fail(reason)
        except FlheError as error:
            raise FlheError(textwrap.shorten(str(error), SAID)) from None


def _federation(clients: int) -> str:
    """Flower's settings of the engine: an actor for each processor."""
    return (
        f"num-supernodes={clients} client-resources-num-cpus=1 "
        f"init-args-num-cpus={min(clients, cpus())}"
    )


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
