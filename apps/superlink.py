"""Start a SuperLink on this machine, on a free port."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from flhe_app.environment import FLOWER_CONFIG, answers, cpus, free_port
from flhe_app.processes import Children, describe_exit, script

SUPERLINK_S = 300.0
"""Maximum wait for its answer."""
LOOK_S = 0.2
"""Seconds between two looks."""
STARTS = 3
"""Maximum number of starts if another program takes its port first."""

Value = str | int | float | bool
Process = subprocess.Popen[bytes]


def start_superlink(
    children: Children,
    log: Path,
    fail: Callable[[str], NoReturn],
    *options: str,
    answers: Callable[[int], bool] = answers,
    patience: float = 1.0,
    tick: Callable[[], None] = lambda: time.sleep(LOOK_S),
    at: int = 0,
) -> tuple[int, Process]:
    """Start one; return its port, `at` or a free one, and its process.

    `fail` raises, with the reason, if it does not answer in time or has ended. `answers` checks for
    an answer on a port, `tick` waits a moment, and `patience` multiplies SUPERLINK_S.
    """
    for _ in range(STARTS):
        port = at or free_port()
        command = [script("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation", *options]
        superlink = children.start(command, log)
        limit = time.monotonic() + SUPERLINK_S * patience
        while superlink.poll() is None and time.monotonic() < limit:
            if answers(port):
                return port, superlink
            tick()
        if superlink.poll() is None or superlink.returncode < 0:  # too slow, or killed
            break
    return fail(
        f"waited {SUPERLINK_S * patience:g} s for flower-superlink to answer"
        if superlink.poll() is None
        else f"flower-superlink {describe_exit(superlink.returncode)} at its start"
    )


def start_simulation(
    children: Children,
    log: Path,
    app: Path,
    nodes: int,
    config: str,
    fail: Callable[[str], NoReturn],
    tick: Callable[[], None] = lambda: time.sleep(LOOK_S),
) -> tuple[Process, Process]:
    """Run a directory's app on a SuperLink with simulated nodes, an actor for each processor.

    Returns the SuperLink, and `flwr run`, which stays to stream the log. Flower's home is where they
    run; `config` are pairs, or names a TOML file; the rest as for `start_superlink`.
    """
    port, superlink = start_superlink(children, log, fail, "--insecure", "--simulation", tick=tick)
    home = children.scratch / "config.toml"
    home.write_text(FLOWER_CONFIG.format(port=port), encoding="utf-8")
    actors = min(nodes, cpus())
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={actors}"
    command = [script("flwr"), "run", str(app), "flhe", "--stream"]
    command += ["--federation-config", federation, "--run-config", config]
    return superlink, children.start(command, log)


def pairs(config: Mapping[str, Value], between: str = " ") -> str:
    """Return a config for Flower's commands; line by line it is TOML."""
    return between.join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in config.items())
