"""A deployed federation on this machine: a SuperLink, real SuperNodes and one run, over HTTP.

Flower's settings, ports, processes and files are private to it and gone after it, as in `flhe run`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from flhe.apps import launch
from flhe.apps.processes import Children, describe_exit, script
from flhe.errors import FlheError
from flhe.sim.bench.synthetic import write_app

TICK_S = 0.01
"""Seconds between two calls of `tick`."""

LOOK_S = 0.2
"""Seconds between two looks at processes and events."""

STARTS = 3
"""How often a process is started whose port another program took first."""

SILENT = f"flower-superlink did not answer within {launch.SUPERLINK_S:g} s"

Event = dict[str, Any]


class Deployment:
    """One run of the synthetic app on deployed nodes.

    Parameters
    ----------
    nodes : int
        SuperNodes; each starts a process of its own for each message.
    config : mapping
        Run config of the app.
    timeout : float
        Seconds for it all.
    """

    def __init__(self, nodes: int, config: Mapping[str, int | float], timeout: float) -> None:
        self._nodes = nodes
        self._config = config
        self._timeout = timeout
        self._deadline = 0.0

    def run(self, heard: Callable[[Event], None], tick: Callable[[], None]) -> None:
        """Run it to its end; nothing of it is left when this returns or raises.

        Parameters
        ----------
        heard : callable
            Receives each event of the app's report.
        tick : callable
            Called every TICK_S seconds meanwhile.

        Raises
        ------
        FlheError
            The run failed, a process of it ended, or time is up.
        """
        self._deadline = time.monotonic() + self._timeout
        with tempfile.TemporaryDirectory(
            prefix="flhe-", dir=launch.short_tmp(), ignore_cleanup_errors=True
        ) as name:
            scratch = Path(name)
            self._log = scratch / "flower.log"
            self._log.touch(mode=0o600)
            write_app(scratch / "app")
            children = Children(launch.environment(scratch / "home", scratch), scratch)
            try:
                self._follow(children, scratch, heard, tick)
            finally:
                children.stop()

    def _follow(
        self,
        children: Children,
        scratch: Path,
        heard: Callable[[Event], None],
        tick: Callable[[], None],
    ) -> None:
        port, superlink = start_superlink(children, self._log, scratch) or self._fail(SILENT)
        nodes = [
            _SuperNode(self._supernode(port, i, scratch), children, self._log, scratch)
            for i in range(self._nodes)
        ]
        report = scratch / "report.jsonl"
        command = [script("flwr"), "run", str(scratch / "app"), "flhe", "--stream"]
        command += ["--run-config", _pairs({**self._config, "report": str(report)})]
        stream = children.start(command, log=self._log, cwd=scratch)
        tail = launch.Tail(report)
        ended = float("inf")
        while True:
            until = time.monotonic() + LOOK_S
            while time.monotonic() < until:
                tick()
                time.sleep(TICK_S)
            for line in tail.lines():
                event: Event = json.loads(line)
                heard(event)
                if event["event"] == "done":
                    return
                if event["event"] == "failed":
                    self._fail(event["error"])
            now = time.monotonic()
            if superlink.poll() is not None:
                self._fail(f"flower-superlink {describe_exit(superlink.returncode)}")
            for node in nodes:
                node.watch()
            if stream.poll() is not None:
                ended = min(ended, now)
            if now - ended > launch.STREAM_S:
                self._fail("the ServerApp ended before it was done")
            if now > self._deadline:
                self._fail(f"it took longer than {self._timeout:g} s")

    def _supernode(self, superlink: int, index: int, scratch: Path) -> list[str]:
        """The command that starts a SuperNode, but for its port."""
        config: dict[str, str | int | float] = {
            "partition-id": index,
            "num-partitions": self._nodes,
            "flhe-home": str(scratch / f"node-{index}"),
            "flhe-trust": "first-use",
        }
        command = [script("flower-supernode"), "--insecure", "--superlink"]
        command += [f"127.0.0.1:{superlink}", "--node-config", _pairs(config)]
        return [*command, "--host", "127.0.0.1", "--port"]

    def _fail(self, reason: str) -> NoReturn:
        why = launch.last_exception(self._log)
        raise FlheError(f"the deployed run failed: {reason}" + (f" ({why})" if why else ""))


def start_superlink(
    children: Children, log: Path, scratch: Path, *options: str
) -> tuple[int, subprocess.Popen[bytes]] | None:
    """Start one, and point Flower's configuration in `scratch` to it; None where it does not answer."""
    for _ in range(STARTS):
        port = launch.free_port()
        command = [script("flower-superlink"), "--insecure", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--disable-runtime-dependency-installation", *options]
        superlink = children.start(command, log=log, cwd=scratch)
        limit = time.monotonic() + launch.SUPERLINK_S
        while superlink.poll() is None and time.monotonic() < limit:
            if launch.answers(port):
                config = launch.FLOWER_CONFIG.format(port=port)
                (scratch / "config.toml").write_text(config, encoding="utf-8")
                return port, superlink
            time.sleep(LOOK_S)
        if superlink.poll() is None:
            break
    return None


def _pairs(config: Mapping[str, str | int | float]) -> str:
    """A config as Flower's commands take it."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


class _SuperNode:
    """A SuperNode; started again on another port if it ends, a few times."""

    def __init__(
        self, command: Sequence[str], children: Children, log: Path, scratch: Path
    ) -> None:
        self._command, self._children = command, children
        self._log, self._scratch = log, scratch
        self._left = STARTS
        self._start()

    def _start(self) -> None:
        command = [*self._command, str(launch.free_port())]
        self._process = self._children.start(command, log=self._log, cwd=self._scratch)
        self._left -= 1

    def watch(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is None:
            return
        if not self._left:
            what = describe_exit(self._process.returncode)
            raise FlheError(f"the deployed run failed: a flower-supernode {what}")
        self._start()
