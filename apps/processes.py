"""Child processes that never outlive the run that started them.

Flower and Ray start children of their own, some in new sessions, and a killed parent's children
move to another one. So each child carries a tag in its environment, inherited by all below it, and
the tag finds them again.

Run as a module, this is the watchdog of one run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from flhe.errors import FlheError
from flhe.packages import install_hint

TAG = "FLHE_RUN_TAG"
GRACE_S = 3.0


def tagged(tag: str) -> set[psutil.Process]:
    """Return every live process whose environment carries `tag`, and those below them.

    A process that renames itself, as Ray's do, overwrites its environment.
    """
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found |= {process, *process.children(recursive=True)}
    return found


def stop_tagged(tag: str, seen: Iterable[psutil.Process] = ()) -> None:
    """End every process that carries `tag`, and those of `seen` that still run.

    Each is asked first, then killed, with newborns, up to three times.
    """
    for ask in (True, False, False, False):
        processes = tagged(tag) | {process for process in seen if _runs(process)}
        if not processes:
            return
        for process in processes:
            with suppress(psutil.Error):
                process.terminate() if ask else process.kill()
        psutil.wait_procs(processes, timeout=GRACE_S)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Children:
    """Processes of one run.

    A watchdog ends them and removes `scratch` if this process dies first. Until then it keeps the
    descriptors of `hold` open, and with them their locks.
    """

    def __init__(self, env: Mapping[str, str], scratch: Path, hold: Sequence[int] = ()) -> None:
        self.tag = secrets.token_hex(16)
        self.scratch, self._env, self._hold = scratch, {**env, TAG: self.tag}, hold
        self._seen: set[psutil.Process] = set()
        self._started: list[subprocess.Popen[bytes]] = []
        self._watchdog = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "flhe_app.processes", self.tag, str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=hold,
        )

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start `command` in `scratch`; append its output to `log`, and shield it from Ctrl-C."""
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.scratch,
                env=self._env,
                start_new_session=True,
                pass_fds=self._hold,
            )
        self._started.append(process)
        return process

    def runs_below(self, pid: int, name: str) -> bool:
        """Return whether a command runs below `pid`; remember all processes there."""
        names: list[str] = []
        with suppress(psutil.Error):
            below = psutil.Process(pid).children(recursive=True)
            self._seen.update(below)
            for process in filter(_runs, below):
                with suppress(psutil.Error):
                    names += [Path(argument).name for argument in process.cmdline()[:2]]
        return name in names

    def stop(self) -> None:
        """End all started processes, the watchdog last."""
        stop_tagged(self.tag, self._seen)
        for process in self._started:
            process.poll()  # or Python would warn that it runs
        try:
            self._watchdog.communicate(timeout=GRACE_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()


def describe_exit(returncode: int) -> str:
    """Return how a process ended."""
    return f"was killed by signal {-returncode}" if returncode < 0 else f"exited with {returncode}"


def script(name: str) -> str:
    """Return the path of a command installed beside this Python, activated or not."""
    path = Path(sys.executable).parent / name  # not resolved: a venv's python is a link
    if not path.exists():
        raise FlheError(f"{name} is not beside {sys.executable}: {install_hint('apps')}")
    return str(path)


def watch(tag: str, scratch: str) -> None:
    """Wait for the parent to end, then stop every process with `tag` and remove `scratch`.

    Standard input is a pipe that only the parent holds: it closes when the parent ends in any way.
    """
    sys.stdin.read()
    stop_tagged(tag)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    watch(*sys.argv[1:])
