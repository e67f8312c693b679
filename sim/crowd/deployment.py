"""Flower's own processes on this machine for one run of an app, followed by what the app reports.

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

from flhe.errors import FlheError
from flhe_app.environment import FLOWER_CONFIG, answers, environment, free_port, short_tmp
from flhe_app.flower_run import STREAM_S, SUPERLINK_S
from flhe_app.outcome import Tail, last_exception
from flhe_app.processes import Children, describe_exit, script
from flhe_lab.bench.synthetic import APP, write_app

TICK_S = 0.01
"""Seconds between two calls of `tick`."""

LOOK_S = 0.2
"""Seconds between two looks at processes and events."""

STARTS = 3
"""How often a process is started whose port another program took first."""

Event = dict[str, Any]
Value = str | int | float | bool


class LocalRun:
    """One run of an app under a SuperLink; what there is beside that, subclasses say.

    Parameters
    ----------
    config : mapping
        Run config of the app, which writes events into the file that `report` names.
    timeout : float
        Seconds for it all.
    """

    app: Mapping[str, str] = APP
    """Files of the Flower app."""
    options: tuple[str, ...] = ()
    """Of the SuperLink."""
    what = "the deployed run"

    def __init__(self, config: Mapping[str, Value], timeout: float) -> None:
        self._config = config
        self._timeout = timeout

    def follow(self, heard: Callable[[Event], None], tick: Callable[[], None]) -> None:
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
            prefix="flhe-", dir=short_tmp(), ignore_cleanup_errors=True
        ) as name:
            self._scratch = Path(name)
            self._log = self._scratch / "flower.log"
            self._log.touch(mode=0o600)
            write_app(self._scratch / "app", self.app)
            self._children = Children(self._environment(), self._scratch)
            try:
                self._watch(heard, tick)
                self._ended()
            finally:
                self._children.stop()  # which removes `scratch` too

    def _environment(self) -> dict[str, str]:
        return environment(self._scratch / "home", self._scratch)

    def _begin(self, port: int) -> None:
        """Start what else there is, once the SuperLink answers on `port`."""

    def _look(self, superlink: int) -> None:
        """See that all goes on; `superlink` is its process."""

    def _ended(self) -> None:
        """The app is done; its files are still there."""

    def _words(self) -> list[str]:
        """Options of `flwr run` beside the config."""
        return []

    def _watch(self, heard: Callable[[Event], None], tick: Callable[[], None]) -> None:
        log, scratch = self._log, self._scratch
        began = start_superlink(self._children, log, scratch, "--insecure", *self.options)
        if began is None:
            self.fail(f"flower-superlink did not answer within {SUPERLINK_S:g} s")
        port, superlink = began
        (scratch / "config.toml").write_text(FLOWER_CONFIG.format(port=port), encoding="utf-8")
        self._begin(port)
        report = scratch / "report.jsonl"
        command = [script("flwr"), "run", str(scratch / "app"), "flhe", "--stream", *self._words()]
        command += ["--run-config", pairs({**self._config, "report": str(report)})]
        stream = self._children.start(command, log=log, cwd=scratch)
        tail, ended = Tail(report), float("inf")
        while True:
            until = time.monotonic() + LOOK_S
            while time.monotonic() < until:
                tick()
                time.sleep(TICK_S)
            for line in tail.lines():
                event: Event = json.loads(line)
                if event["event"] == "failed":
                    self.fail(event["error"])
                heard(event)
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

    def fail(self, reason: str) -> NoReturn:
        """Raise FlheError with what the log says of it."""
        why = last_exception(self._log)
        raise FlheError(f"{self.what} failed: {reason}" + (f" ({why})" if why else ""))


class Deployment(LocalRun):
    """One run of the synthetic app on deployed nodes, over HTTP.

    Parameters
    ----------
    nodes : int
        SuperNodes; each starts a process of its own for each message.
    config, timeout
        As for any run.
    """

    def __init__(self, nodes: int, config: Mapping[str, Value], timeout: float) -> None:
        super().__init__(config, timeout)
        self._count = nodes
        self._nodes: list[_SuperNode] = []

    run = LocalRun.follow

    def _begin(self, port: int) -> None:
        self._nodes = [
            _SuperNode(self._command(port, i), self._children, self._log, self._scratch)
            for i in range(self._count)
        ]

    def _look(self, superlink: int) -> None:
        for node in self._nodes:
            node.watch()

    def _command(self, superlink: int, index: int) -> list[str]:
        """The command that starts a SuperNode, but for its port."""
        config: dict[str, Value] = {
            "partition-id": index,
            "num-partitions": self._count,
            "flhe-home": str(self._scratch / f"node-{index}"),
            "flhe-trust": "first-use",
        }
        command = [script("flower-supernode"), "--insecure", "--superlink"]
        command += [f"127.0.0.1:{superlink}", "--node-config", pairs(config)]
        return [*command, "--host", "127.0.0.1", "--port"]


def start_superlink(
    children: Children,
    log: Path,
    scratch: Path,
    *options: str,
    answers: Callable[[int], bool] = answers,
    patience: float = 1.0,
) -> tuple[int, subprocess.Popen[bytes]] | None:
    """Start one; returns its port and process, or None where it does not answer in time.

    Parameters
    ----------
    children, log, scratch
        Whose child it is, where it prints, where it runs.
    *options : str
        How it is secured, and what else it is told.
    answers : callable
        Port -> whether it answers.
    patience : float
        What the longest wait, SUPERLINK_S seconds, is multiplied by.
    """
    for _ in range(STARTS):
        port = free_port()
        command = [script("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation", *options]
        superlink = children.start(command, log=log, cwd=scratch)
        limit = time.monotonic() + SUPERLINK_S * patience
        while superlink.poll() is None and time.monotonic() < limit:
            if answers(port):
                return port, superlink
            time.sleep(LOOK_S)
        if superlink.poll() is None:
            break
    return None


def pairs(config: Mapping[str, Value]) -> str:
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
        command = [*self._command, str(free_port())]
        self._process = self._children.start(command, log=self._log, cwd=self._scratch)
        self._left -= 1

    def watch(self) -> None:
        """Start it again if it has ended; FlheError if it has too often."""
        if self._process.poll() is None:
            return
        if not self._left:
            what = describe_exit(self._process.returncode)
            raise FlheError(f"the deployed run failed: a flower-supernode {what}")
        self._start()
