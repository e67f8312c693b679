"""`flhe bench memory`: what a federation holds in memory, beyond what its processes hold when idle.

Two measurements. The ServerApp's own process in a deployment, over HTTP, with few nodes and with many:
it should not grow with them. And a federation inside one process, server, clients and wire together,
with a large model. Idle is after imports and before there is a model; the peak is of the whole run, up
to the sealed checkpoint at its end.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.packages import install_hint
from flhe.strategies.resident import resident
from flhe_lab.bench import Progress, machine

FEW = 3
"""Nodes of the smaller deployment: a group has no fewer."""

CLIENTS = 3
"""Clients of the federation inside one process."""

TIMEOUT_S = 1800.0
"""Longest time for one measurement."""

NODE_BYTES = 200 << 20
"""What a SuperNode holds, with the process that starts its clients, when idle."""

VALUE_BYTES = 40
"""What a working client holds for each value of the model, all copies together."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One measurement.

    Parameters
    ----------
    what : str
        "server" for the ServerApp of a deployment, "process" for a federation inside one.
    nodes, values, rounds : int
        Its size.
    idle_bytes, peak_bytes : int
        Resident size of the process: before there is a model, and at most.
    seconds : float
        How long the run took, with starting its processes.
    """

    what: str
    nodes: int
    values: int
    rounds: int
    idle_bytes: int
    peak_bytes: int
    seconds: float

    @property
    def above_idle(self) -> int:
        """What the run needed, in bytes."""
        return self.peak_bytes - self.idle_bytes

    @property
    def models(self) -> float:
        """The same in copies of the model, at 4 bytes a value."""
        return self.above_idle / (4 * self.values)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "above_idle_bytes": self.above_idle, "models": self.models}


Step = Callable[[str], None]
"""What is going on now -> None."""


def memory(
    values: int = 10_000_000,
    nodes: int = 20,
    rounds: int = 2,
    *,
    progress: Progress | None = None,
) -> list[Memory]:
    """All of it: deployments of FEW nodes and of `nodes`, then one process with ten times the values.

    Raises
    ------
    ConfigError
        Sizes that cannot be measured here, or the [apps] extra is missing.
    FlheError
        A run failed.
    """
    if values < 1 or rounds < 1 or nodes <= FEW:
        raise ConfigError(
            f"memory needs --values 1, --repeats 1 and --cohort {FEW + 1} at least, got {values}, "
            f"{rounds}, {nodes}"
        )
    check(nodes, values)
    steps = itertools.count()

    def step(what: str) -> None:
        if progress is not None:
            progress(next(steps), 2 * (rounds + 1) + 1, what)

    return [
        server_memory(FEW, values, rounds, step=lambda what: step(f"{FEW} nodes: {what}")),
        server_memory(nodes, values, rounds, step=lambda what: step(f"{nodes} nodes: {what}")),
        process_memory(10 * values, rounds=rounds, step=lambda what: step(f"one process: {what}")),
    ]


def check(nodes: int, values: int) -> None:
    """Refuse what cannot start here, or does not fit: ConfigError."""
    if missing := [name for name in ("flwr", "psutil") if find_spec(name) is None]:
        raise ConfigError(
            f"memory needs the [apps] extra, missing: {', '.join(missing)}; "
            f"install it: {install_hint('apps')}"
        )
    import psutil

    need = nodes * (NODE_BYTES + VALUE_BYTES * values)
    there = psutil.virtual_memory().available
    if need > there:
        raise ConfigError(
            f"{nodes} deployed nodes with {values:,} values may take {need / 1e9:.0f} GB of memory, "
            f"{there / 1e9:.0f} GB are free: lower --cohort or --values"
        )


def server_memory(
    nodes: int,
    values: int,
    rounds: int = 2,
    *,
    timeout: float = TIMEOUT_S,
    step: Step = lambda _: None,
) -> Memory:
    """The ServerApp's process in a deployment of `nodes` SuperNodes.

    Raises
    ------
    FlheError
        The run failed, or took longer than `timeout` seconds.
    """
    from flhe_lab.crowd.deployment import Deployment, Event

    began = time.monotonic()
    pid = idle = peak = 0

    def heard(event: Event) -> None:
        nonlocal pid, idle, peak
        if event["event"] == "idle":
            pid, idle = event["pid"], event["resident"]
        elif event["event"] == "done":
            peak = max(peak, event["peak"])
        elif event["event"] == "round":
            step(f"round {event['round']} is over")

    def tick() -> None:
        nonlocal peak
        if pid:
            with suppress(ProcessLookupError):  # it has ended
                peak = max(peak, resident("VmHWM", pid))

    step("starting")
    config = {"values": values, "nodes": nodes, "rounds": rounds, "timeout": timeout}
    Deployment(nodes, config, timeout).run(heard, tick)
    return Memory("server", nodes, values, rounds, idle, peak, time.monotonic() - began)


def process_memory(
    values: int,
    clients: int = CLIENTS,
    rounds: int = 2,
    *,
    timeout: float = TIMEOUT_S,
    step: Step = lambda _: None,
) -> Memory:
    """A federation inside one process, which is a new one: a peak is of a whole process.

    Raises
    ------
    FlheError
        It failed, or took longer than `timeout` seconds.
    """
    from flhe_app import launch
    from flhe_app.processes import describe_exit

    began = time.monotonic()
    step("at work")
    with tempfile.TemporaryDirectory(
        prefix="flhe-", dir=launch.short_tmp(), ignore_cleanup_errors=True
    ) as name:
        scratch = Path(name)
        environment = launch.environment(scratch / "home", scratch)
        command = [sys.executable, "-m", "flhe_lab.bench.one_process", str(values)]
        command += [str(clients), str(rounds), str(scratch)]
        try:
            done = subprocess.run(  # noqa: S603  our own module
                command,
                cwd=scratch,
                env=environment,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FlheError(f"the federation in one process took more than {timeout:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").split("\n")
        why = next(filter(None, reversed(lines)), describe_exit(done.returncode))
        raise FlheError(f"the federation in one process failed: {why}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = time.monotonic() - began
    return Memory("process", clients, values, rounds, found["idle"], found["peak"], seconds)


def growth(rows: Sequence[Memory]) -> float | None:
    """What the last deployment needed above idle to what the first needed; None of fewer than two."""
    servers = [row for row in rows if row.what == "server"]
    return servers[-1].above_idle / servers[0].above_idle if len(servers) > 1 else None


def table(rows: Sequence[Memory]) -> Table:
    """One line a measurement; deployments beside the first of them."""
    ratio = growth(rows)
    out = Table(
        title="memory of one process",
        caption="models: above idle, in copies of the model at 4 bytes a value"
        + ("" if ratio is None else f"; the ServerApp with most nodes: {ratio:.2f}x the first"),
    )
    for heading in ("", "nodes", "values", "idle", "peak", "above idle", "models"):
        out.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for row in rows:
        out.add_row(
            "ServerApp" if row.what == "server" else "one process",
            str(row.nodes),
            f"{row.values / 1e6:g} M",
            *(f"{n / 1e6:,.0f} MB" for n in (row.idle_bytes, row.peak_bytes, row.above_idle)),
            f"{row.models:.1f}",
        )
    return out


def to_data(rows: Sequence[Memory]) -> dict[str, Any]:
    """Machine and rows, as JSON values."""
    return {
        "machine": machine(),
        "memory": [row.to_json() for row in rows],
        "growth": growth(rows),
    }
