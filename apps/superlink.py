"""Starting a SuperLink on this machine, on a port that nobody else takes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flhe_app.environment import answers, free_port
from flhe_app.processes import Children, script

SUPERLINK_S = 60.0
"""Longest wait for it to answer."""
LOOK_S = 0.2
"""Seconds between two looks."""
STARTS = 3
"""How often it is started where another program took its port first."""

Value = str | int | float | bool


def start_superlink(
    children: Children,
    log: Path,
    scratch: Path,
    *options: str,
    answers: Callable[[int], bool] = answers,
    patience: float = 1.0,
    tick: Callable[[], None] = lambda: time.sleep(LOOK_S),
) -> tuple[int, subprocess.Popen[bytes]]:
    """Start one; returns its port, 0 where it does not answer in time or has ended, and its process.

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
    tick : callable
        Waits a moment.
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
            tick()
        if superlink.poll() is None or superlink.returncode < 0:  # too slow, or killed
            break
    return 0, superlink


def pairs(config: Mapping[str, Value]) -> str:
    """A config as Flower's commands take it."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
