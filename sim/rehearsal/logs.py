"""Logs of a loopback deployment: removed where all went well, kept where something failed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from flhe.answer import notes
from flhe_app.outcome import last_exception
from flhe_app.signals import Stopped, signals

Say = Callable[[str], None]


class Logs:
    """A directory with a log for each process, and what else explains a failure.

    `folder` is there; `failed` says whether they must be kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed = False

    def path(self, name: str) -> Path:
        """Path of the log `name`; made, for this user alone, where it is missing."""
        path = self.folder / f"{name}.log"
        path.touch(mode=0o600)
        return path

    def why(self, *names: str) -> str:
        """Where each of these logs is, and its last exception: the end of an error's text."""
        found = []
        for name in names:
            path = self.path(name)
            why = last_exception(path)
            found.append(f"{path}" + (f" ends with {why}" if why else ""))
        return f"; see {', '.join(found)}"


@contextmanager
def kept_logs(scratch: Path, say: Say) -> Iterator[Logs]:
    """A new directory for logs; it stays after an error, or where `failed` is set, and is then named.

    `scratch` has the deployment's files; `say` is told where the logs are.
    """
    logs = Logs(Path(tempfile.mkdtemp(prefix="flhe-loopback-logs-")))
    try:
        yield logs
    except Exception:
        logs.failed = True
        raise
    finally:
        if logs.failed:
            # What nodes and runs noted of themselves, before it is removed.
            for path in (*scratch.glob("homes/*/errors.log"), *scratch.glob("run-*/report*.jsonl")):
                shutil.copyfile(path, logs.folder / f"{path.parent.name}-{path.name}")
            say(f"logs are kept in {logs.folder}")
        else:
            shutil.rmtree(logs.folder, ignore_errors=True)


@contextmanager
def telling() -> Iterator[Say]:
    """Gives what notes each step and its time; a signal ends the command, with its own exit code."""
    began = time.monotonic()

    def say(text: str) -> None:
        line = f"[{time.monotonic() - began:5.0f} s] {text}"
        notes().print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        with signals():
            yield say
    except Stopped as stopped:
        raise typer.Exit(128 + stopped.number) from None
