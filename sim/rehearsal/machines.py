"""The processes of a loopback deployment: a SuperLink, SuperNodes, the commands that speak to them.

All traffic of SuperNodes and commands passes a relay that writes it down; see `wiretap`. Each
SuperNode connects to its site's gate, and the gate to the relay; where times are measured, directly
to the SuperLink.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

from flhe.errors import FlheError
from flhe_app.environment import answers, environment, free_port
from flhe_app.outcome import Tail
from flhe_app.processes import Children, describe_exit, script, stop_tagged
from flhe_app.superlink import Value, pairs, start_superlink
from flhe_lab.rehearsal.logs import Logs
from flhe_lab.rehearsal.trust import NAME, Trust
from flhe_lab.rehearsal.wiretap import wiretap

COMMAND_S = 60.0
CHUNK = 8192
"""Least bytes of Flower's chunks of arrays: a small model crosses their borders."""

_TAKEN = "SuperNode ID: "
"""What a SuperNode prints when it is let in."""


@dataclass(slots=True)
class SuperNode:
    """One site's SuperNode: what runs now, how often it was started, what it has printed since then.

    `taken`: whether the SuperLink has let it in since its last start.
    """

    name: str
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    log: Tail | None = None
    taken: bool = False

    @property
    def ended(self) -> bool:
        """Whether it does not run."""
        return self.process is None or self.process.poll() is not None


class Machines:
    """The SuperLink and its SuperNodes.

    Their files are in `scratch`, removed when `up` is left. The relay listens on the port `relay`; time
    limits are multiplied by `patience`. Flower cuts arrays into `chunk` bytes, 0 for its own size. With
    `direct` there are neither gates nor relay: the SuperLink itself listens on the port `relay`.
    `gates` has each site's port and process; the relay writes into `captured`.
    """

    def __init__(
        self,
        trust: Trust,
        scratch: Path,
        relay: int,
        logs: Logs,
        patience: float = 1.0,
        chunk: int = CHUNK,
        *,
        direct: bool = False,
    ) -> None:
        self._trust, self._scratch, self.relay = trust, scratch, relay
        self._chunk, self._direct = chunk, direct
        self.logs, self._patience = logs, patience
        self.nodes = {name: SuperNode(name) for name in trust.sites}
        self.captured = scratch / "captured"
        self.gates: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    @contextmanager
    def up(self, hub: str) -> Iterator[None]:
        """The SuperLink runs and knows the SuperNodes' keys; all is gone at the end.

        It takes apps from the hub whose URL is `hub`.
        """
        env = environment(self._scratch / "unused", self._scratch)
        if self._chunk:
            env["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"] = str(self._chunk)
        env["FLWR_SUPERGRID_API_URL"] = hub
        self._children = Children(env, self._scratch)
        try:
            port, tls = self._start_superlink(), self._trust.tls
            with nullcontext() if self._direct else wiretap(tls, port, self.captured, self.relay):
                shutil.copy(self._trust.desk / "config.toml", self._scratch)
                self._register()
                yield
        finally:
            self._children.stop()

    def end(self) -> None:
        """End SuperNodes and SuperLink; what they wrote stays until `up` is left."""
        stop_tagged(self._children.tag)

    def _start_superlink(self) -> int:
        tls = self._trust.tls

        def fail(reason: str) -> NoReturn:
            why = self.logs.why("superlink")
            raise FlheError(f"{reason}; --patience gives it more{why}")

        port, self._superlink = start_superlink(
            self._children,
            self.logs.path("superlink"),
            fail,
            *self._trust.superlink,
            answers=lambda port: answers(port, tls.client_context()),
            patience=self._patience,
            at=self.relay if self._direct else 0,
        )
        return port

    def _register(self) -> None:
        def one(name: str) -> None:
            if not self.flwr(*self._trust.register[name], log=f"flwr-register-{name}").get(
                "success"
            ):
                why = self.logs.why(f"flwr-register-{name}", "superlink")
                raise FlheError(f"`flwr supernode register` failed for {name}{why}")

        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(one, self.nodes))

    def start(self, name: str) -> None:
        """Start a site's SuperNode, and its gate if there are gates, unless that runs."""
        node = self.nodes[name]
        if self._direct:
            command = self._trust.supernode(name, f"127.0.0.1:{self.relay}", free_port())
        else:
            if name not in self.gates:
                self.start_gate(name)
            gate = f"127.0.0.1:{self.gates[name][0]}"
            command = self._trust.start(name, gate, free_port())
        node.log, node.taken = Tail(self.logs.path(name), new=True), False
        node.process = self._children.start(command, self.logs.path(name))
        node.starts += 1

    def start_gate(self, name: str) -> None:
        """Start a site's gate, and wait until it listens."""
        port = free_port()
        command = self._trust.gate(name, f"127.0.0.1:{port}")
        process = self._children.start(command, self.logs.path(f"gate-{name}"))
        self.gates[name] = port, process
        until = time.monotonic() + COMMAND_S * self._patience
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise FlheError(
                    f"the gate of {name} does not listen{self.logs.why(f'gate-{name}')}"
                )
            time.sleep(0.1)

    def taken(self, name: str) -> bool:
        """Whether the SuperLink has let a site's SuperNode in, since it was started last."""
        node = self.nodes[name]
        assert node.log is not None
        node.taken = node.taken or any(_TAKEN in line for line in node.log.lines())
        return node.taken

    def kill(self, name: str) -> None:
        """SIGKILL to a SuperNode, its group and all below it, as when a machine loses power."""
        process = self.nodes[name].process
        assert process is not None
        with suppress(psutil.Error):
            below = psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for child in below:
                with suppress(psutil.Error):
                    child.kill()
            psutil.wait_procs(below, timeout=COMMAND_S * self._patience)
        with self._bounded(f"the killed SuperNode of {name}", name) as seconds:
            process.wait(seconds)

    def check(self, away: str = "") -> None:
        """Refuse to go on where a process has ended; `away` names a SuperNode that may.

        Raises FlheError: which, and why.
        """
        running = [("flower-superlink", self._superlink, "superlink")]
        for name, (_, gate) in self.gates.items():
            running.append((f"the gate of {name}", gate, f"gate-{name}"))
        for name, node in self.nodes.items():
            if node.process is not None and name != away:
                running.append((f"the SuperNode of {name}", node.process, name))
        for what, process, log in running:
            if process.poll() is not None:
                raise FlheError(f"{what} {describe_exit(process.returncode)}{self.logs.why(log)}")

    def flwr(self, *words: str, log: str) -> dict[str, Any]:
        """What a `flwr` command says, as JSON; nothing where it failed.

        Raises FlheError: it did not end in time: how long it was waited for, and its log, which is
        called `log`.
        """
        command, path = [script("flwr"), *words, "--format", "json"], self.logs.path(log)
        before = path.stat().st_size if path.exists() else 0
        with self._bounded(f"`flwr {' '.join(words[:2])}`", log) as seconds:
            status = self._children.start(command, path).wait(seconds)
        said = path.read_bytes()[before:].decode("utf-8", "replace")
        found: dict[str, Any] = {}
        with suppress(ValueError):
            found = {} if status else json.loads(said[said.index("{") : said.rindex("}") + 1])
        return found

    def submit(self, name: str, words: Sequence[str]) -> int:
        """Start a run, called `name` in logs; returns its id. FlheError where it did not start."""
        log = f"flwr-run-{name}"
        told = self.flwr(*words, log=log)
        if "run-id" not in told:
            raise FlheError(f"`flwr run` did not start {name}{self.logs.why(log, 'superlink')}")
        return int(told["run-id"])

    @contextmanager
    def _bounded(self, what: str, log: str) -> Iterator[float]:
        """Gives the seconds in which something must end; FlheError if it does not."""
        seconds = COMMAND_S * self._patience
        try:
            yield seconds
        except subprocess.TimeoutExpired:
            raise FlheError(
                f"waited {seconds:g} s for {what} to end; --patience gives it more"
                f"{self.logs.why(log)}"
            ) from None


def run_words(app: str, config: Mapping[str, Value]) -> tuple[str, ...]:
    """The words of `flwr` that start a run of an app."""
    return ("run", app, NAME, "--run-config", pairs(config))


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
