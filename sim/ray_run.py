"""One federation of virtual clients on Flower's simulation engine, watched from outside.

A SuperLink with a simulation runtime, and one run of the app of `ray_app` on it, as `flwr run` does:
ServerApp, message store and Ray's driver in one process, the clients in as many Ray actors as there
are processors. Settings, ports, processes and files are private to it and gone after it.
"""

from __future__ import annotations

import json
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flhe.apps import launch
from flhe.apps.environment import cpus
from flhe.errors import FlheError
from flhe.sim.bench.synthetic import write_app
from flhe.sim.ray_app import FILES
from flhe.sim.ray_found import Asked, Found

if TYPE_CHECKING:
    from flhe.apps.processes import Children

LOOK_S = 0.2
"""Seconds between two looks at processes and events."""

MEMORY_S = 1.0
"""Seconds between two looks at memory: summing it up takes some ms a process."""

SAID = 1000
"""Characters of a failure that are shown: Ray's name every process of the machine."""

Step = Callable[[int, str], None]
"""(answers so far in this phase, what is going on) -> None."""


class RayRun:
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

    def __init__(self, asked: Asked, timeout: float, step: Step = lambda *_: None) -> None:
        self._asked, self._timeout, self._step = asked, timeout, step
        self._found = Found(asked)
        self._looked = 0.0
        self._done = False

    def run(self) -> Found:
        """Run it.

        Raises
        ------
        FlheError
            It failed, a sum was not the sum, or time is up.
        """
        from flhe.apps.processes import Children

        began = time.monotonic()
        self._deadline = began + self._timeout
        with tempfile.TemporaryDirectory(
            prefix="flhe-", dir=launch.short_tmp(), ignore_cleanup_errors=True
        ) as name:
            scratch = Path(name)
            self._log = scratch / "flower.log"
            self._log.touch(mode=0o600)
            (scratch / "clocks").mkdir()
            write_app(scratch / "app", FILES)
            env = launch.environment(scratch, scratch) | {
                "FLHE_HOME": str(scratch / "nodes"),
                "RAY_worker_niceness": "0",  # or whatever else runs here would be in the times
            }
            children = Children(env, scratch)
            try:
                self._follow(children, scratch)
                self._found.read_clocks(scratch / "clocks")
            finally:
                children.stop()  # which removes `scratch` too
            self._found.wall_s = time.monotonic() - began
        return self._found

    def _follow(self, children: Children, scratch: Path) -> None:
        """Return when the app says that it is done."""
        from flhe.apps.processes import describe_exit, script
        from flhe.sim.deployment import SILENT, start_superlink

        self._step(0, "starting Flower")
        began = start_superlink(children, self._log, scratch, "--simulation")
        _, superlink = began or self._fail(SILENT)
        asked, report = self._asked, scratch / "report.jsonl"
        config = {
            "values": asked.values,
            "nodes": asked.clients,
            "rounds": asked.rounds,
            "neighbours": asked.neighbours,
            "drops": asked.drops,
            "timeout": self._timeout,
            "report": str(report),
            "clocks": str(scratch / "clocks"),
        }
        command = [script("flwr"), "run", str(scratch / "app"), "flhe", "--stream"]
        command += ["--federation-config", _federation(asked.clients)]
        command += ["--run-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        stream = children.start(command, log=self._log, cwd=scratch)
        tail = launch.Tail(report)
        ended = float("inf")
        while True:
            time.sleep(LOOK_S)
            for line in tail.lines():
                self._hear(json.loads(line))
            if self._done:
                return
            self._look(superlink.pid)
            now = time.monotonic()
            if superlink.poll() is not None:
                self._fail(f"flower-superlink {describe_exit(superlink.returncode)}")
            if stream.poll() is not None:
                ended = min(ended, now)
            if now - ended > launch.STREAM_S:
                self._fail("the ServerApp ended before it was done")
            if now > self._deadline:
                self._fail(f"it took longer than {self._timeout:g} s")

    def _hear(self, event: dict[str, Any]) -> None:
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
            self._done = True
        elif kind == "failed":
            self._fail(event["error"])

    def _look(self, superlink: int) -> None:
        """Add up what the processes hold, now and then."""
        now = time.monotonic()
        if now - self._looked >= MEMORY_S:
            self._looked = now
            self._found.tree_bytes = max(self._found.tree_bytes, sum(_held(superlink)))

    def _fail(self, reason: str) -> NoReturn:
        why = launch.last_exception(self._log)
        said = reason + (f" ({why})" if why else "")
        raise FlheError(
            f"{self._asked.clients} clients on Ray failed: {textwrap.shorten(said, SAID)}"
        )


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
