"""`flhe run`: one federation, simulated on this machine by Flower, and a true exit code.

It wraps `flwr run` on the app. Flower's own settings, ports, processes and temporary files are
private to the run and gone after it; what stays is the run's directory: the nodes' keys, the
sealed model and, after a failure, the full log.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from flhe.apps.console import RoundDisplay, round_table
from flhe.apps.settings import Settings
from flhe.errors import ConfigError, FlheError

if TYPE_CHECKING:
    from flhe.apps.processes import Children

NEEDS = ("flwr", "flwr_datasets", "psutil", "ray", "sklearn", "torch", "torchvision")
"""What the [apps] extra brings, by import name."""

SUPERLINK_S = 60.0
"""Longest wait for the SuperLink to answer."""
SIMULATION_S = 120.0
"""Longest wait for the simulation's process to appear."""
SETTLE_S = 20.0
"""Longest wait for Flower to write down how a run ended."""
STREAM_S = 5.0
"""Longest wait for the last lines of the run's log."""
POLL_S = 0.2


_FLOWER_CONFIG = """\
[superlink]
default = "flhe"

[superlink.flhe]
address = "127.0.0.1:{port}"
insecure = true
"""


class Stopped(BaseException):
    """The user ended the run: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(slots=True)
class Outcome:
    """What a run left: its rounds, and where its model and keys are."""

    model_bytes: int = 0
    rounds: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    failure: str = ""
    sealed_model: str | None = None

    def read(self, event: dict[str, Any]) -> None:
        """Take in one event of the report."""
        kind = event.pop("event")
        if kind == "start":
            self.model_bytes = event["model_bytes"]
        elif kind == "round":
            self.rounds.append(event)
        elif kind == "done":
            self.done = True
            self.sealed_model = event["sealed_model"]
        elif kind == "failed":
            self.failure = event["error"]

    def to_json(self, settings: Settings) -> dict[str, Any]:
        """Return what `--json` writes."""
        return {
            "scheme": settings.scheme,
            "task": settings.task,
            "nodes": settings.nodes,
            "rounds": self.rounds,
            "final_accuracy": self.rounds[-1]["accuracy"] if self.rounds else None,
            "sealed_model": self.sealed_model,
        }


def run(
    settings: Settings,
    *,
    json_path: Path | None = None,
    timeout: float = 7200.0,
    verbose: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Train as `settings` says and return the outcome; raises FlheError when it did not finish.

    Raises Stopped after a signal, once everything is stopped.
    """
    console = console or Console()
    check(settings, json_path, timeout)
    with _signals(), _directories(settings) as (home, scratch):
        settings = _placed(settings, home, scratch)
        outcome = _Launch(
            settings,
            home=home,
            scratch=scratch,
            timeout=timeout,
            verbose=verbose,
            console=console,
        ).run()
        console.print(round_table(settings, outcome.rounds, outcome.model_bytes))
        _say_where(console, settings, home)
        if json_path:
            _write_json(json_path, outcome.to_json(settings))
    return outcome


def check(settings: Settings, json_path: Path | None, timeout: float) -> None:
    """Refuse before anything starts what could only fail later."""
    from flhe.apps.tasks import task_named

    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"`flhe run` needs the [apps] extra, missing: {', '.join(missing)}; "
            "install it: pip install 'flhe[apps]'"
        )
    if not timeout > 0:
        raise ConfigError(f"--timeout {timeout:g}: must be positive")
    if settings.task != "digits":
        if not settings.data_dir:
            raise ConfigError(
                f"task {settings.task!r} needs its data set: put it into a directory "
                "and name that with --data-dir"
            )
        if not Path(settings.data_dir).expanduser().is_dir():
            raise ConfigError(f"--data-dir {settings.data_dir}: no such directory")
    most = task_named(settings.task).train_size
    if settings.nodes > most:
        raise ConfigError(
            f"--nodes {settings.nodes}: task {settings.task!r} has {most} training examples, which "
            "is fewer than one a node"
        )
    for option, path in (("--json", json_path), ("--output", settings.sealed_model or None)):
        if path is None:
            continue
        target = Path(path).expanduser()
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise ConfigError(f"{option} {path}: name a file in a directory that exists")


class _Launch:
    """One run, from the SuperLink's start to its end."""

    def __init__(
        self,
        settings: Settings,
        *,
        home: Path,
        scratch: Path,
        timeout: float,
        verbose: bool,
        console: Console,
    ) -> None:
        self._settings = settings
        self._scratch = scratch
        self._log = home / "run.log"
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._verbose = verbose
        self._console = console
        self._env = _environment(home, scratch)
        self._outcome = Outcome()
        self._tails = (_Tail(scratch / "report.jsonl"), _Tail(self._log))

    def run(self) -> Outcome:
        from flhe.apps.processes import Children

        (self._scratch / "settings.toml").write_text(self._settings.to_toml(), encoding="utf-8")
        self._log.touch(mode=0o600)
        children = Children(self._env, self._scratch)
        try:
            with RoundDisplay(self._console, self._settings.num_rounds) as display:
                self._display = display
                display.say("starting Flower")
                superlink = self._start_superlink(children)
                stream = self._submit(children)
                self._follow(children, superlink, stream)
                self._settle(children, stream)
        finally:
            _ignore_signals()
            children.stop()
        return self._outcome

    def _start_superlink(self, children: Children) -> subprocess.Popen[bytes]:  # noqa: RET503
        from flhe.apps.processes import describe_exit, script

        for _ in range(3):  # another program may take the port between our look and Flower's
            port = _free_port()
            command = [script("flower-superlink"), "--insecure", "--simulation"]
            command += ["--disable-runtime-dependency-installation"]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            superlink = children.start(command, log=self._log, cwd=self._scratch)
            limit = time.monotonic() + SUPERLINK_S
            while superlink.poll() is None and time.monotonic() < limit:
                if _answers(port):
                    (self._scratch / "config.toml").write_text(
                        _FLOWER_CONFIG.format(port=port), encoding="utf-8"
                    )
                    return superlink
                self._tick()
            if superlink.poll() is None:
                self._fail(f"flower-superlink did not answer within {SUPERLINK_S:g} s")
            if superlink.returncode < 0:
                break
        self._fail(f"flower-superlink {describe_exit(superlink.returncode)} at its start")

    def _submit(self, children: Children) -> subprocess.Popen[bytes]:
        """Hand the app in; the process stays, to bring the run's log."""
        from flhe.apps.processes import script

        cpus = min(self._settings.nodes, _cpus())
        federation = (
            f"num-supernodes={self._settings.nodes} client-resources-num-cpus=1 "
            f"init-args-num-cpus={cpus}"
        )
        command = [script("flwr"), "run", str(Path(__file__).parent), "flhe", "--stream"]
        command += ["--federation-config", federation]
        command += ["--run-config", str(self._scratch / "settings.toml")]
        return children.start(command, log=self._log, cwd=self._scratch)

    def _follow(
        self,
        children: Children,
        superlink: subprocess.Popen[bytes],
        stream: subprocess.Popen[bytes],
    ) -> None:
        """Return when the simulation's process is gone; fail when Flower's own are first."""
        from flhe.apps.processes import describe_exit

        limit = time.monotonic() + SIMULATION_S
        known: set[str] = set()
        while True:
            self._tick()
            if superlink.poll() is not None:
                self._fail(f"flower-superlink {describe_exit(superlink.returncode)} during the run")
            running = children.commands_below(superlink.pid)
            known |= running
            if "flwr-simulation" in known:
                if "flwr-simulation" not in running:
                    return
            elif stream.poll():
                self._fail(f"`flwr run` {describe_exit(stream.returncode)}")
            elif "flower-superexec" in known - running:
                self._fail("flower-superexec ended before it started the simulation")
            elif time.monotonic() > limit:
                self._fail(f"Flower started no simulation within {SIMULATION_S:g} s")

    def _settle(self, children: Children, stream: subprocess.Popen[bytes]) -> None:
        """Ask Flower how the run ended: its own exit codes do not tell."""
        from flhe.apps.processes import script

        limit = time.monotonic() + (SETTLE_S if self._outcome.done else SETTLE_S / 2)
        command = [script("flwr"), "ls", "flhe", "--format", "json"]
        status, details = "", ""
        while not status.startswith("finished") and time.monotonic() < limit:
            status, details = _status(children.query(command, cwd=self._scratch, timeout=SETTLE_S))
            self._tick()
        limit = time.monotonic() + STREAM_S
        while stream.poll() is None and time.monotonic() < limit:
            self._tick()
        self._tick()
        complete = self._outcome.done and len(self._outcome.rounds) == self._settings.num_rounds
        if status == "finished:completed" and complete:
            return
        reason = self._outcome.failure or last_exception(self._log) or _one_line(details)
        if not reason:
            reason = (
                f"the simulation's process ended after {len(self._outcome.rounds)} of "
                f"{self._settings.num_rounds} rounds; Flower says {status or 'nothing'!r}"
            )
        self._fail(reason)

    def _tick(self) -> None:
        """Wait a moment; show what is new; keep to the deadline."""
        time.sleep(POLL_S)
        report, log = self._tails
        for line in report.lines():
            event = json.loads(line)
            kind = event["event"]
            self._outcome.read(event)
            if kind == "round":
                self._display.round(event)
            elif kind == "start":
                self._display.say(f"waiting for {self._settings.nodes} nodes")
            elif kind == "joined":
                self._display.say(f"training on {self._settings.nodes} nodes")
        if self._verbose:
            for line in log.lines():
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if time.monotonic() > self._deadline:
            self._fail(
                f"the run took longer than --timeout {self._timeout:g} s "
                f"({len(self._outcome.rounds)} of {self._settings.num_rounds} rounds done)"
            )

    def _fail(self, reason: str) -> NoReturn:
        raise FlheError(f"the run failed: {reason} (full log: {self._log})")


class _Tail:
    """Whole lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt|Replies))(: .*)?$")


def last_exception(log: Path) -> str:
    """Return the last line of `log` that names an exception, without its module; "" if none."""
    for line in reversed(log.read_text("utf-8", "replace").splitlines()):
        if match := _EXCEPTION.match(line.strip()):
            return match[1] + (match[2] or "")
    return ""


def _status(listing: str) -> tuple[str, str]:
    """Status and details of the only run in the output of `flwr ls --format json`."""
    try:
        latest = json.loads(listing[listing.index("{") :])["runs"][0]
        return str(latest["status"]), str(latest["status-details"])
    except (ValueError, LookupError):
        return "", ""


def _environment(home: Path, scratch: Path) -> dict[str, str]:
    """Environment of Flower and all below it: private, offline, quiet, one thread a node."""
    env = dict(os.environ)
    env.pop("RAY_ADDRESS", None)  # never join a cluster that happens to run here
    env |= {
        "FLHE_HOME": env.get("FLHE_HOME") or str(home / "nodes"),
        "FLWR_HOME": str(scratch),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(scratch),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
    }
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env.setdefault(name, "1")
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1", "localhost"]))
    return env


@contextmanager
def _directories(settings: Settings) -> Iterator[tuple[Path, Path]]:
    """Make the run's directory, which stays if it holds keys or a log, and a temporary one."""
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "flhe/runs"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=base))  # 0700
    except OSError as error:
        raise ConfigError(
            f"{base} cannot be written ({error.strerror}): "
            "set XDG_DATA_HOME to a directory of yours"
        ) from error
    scratch = Path(tempfile.mkdtemp(prefix="flhe-", dir=_short_tmp()))
    try:
        if settings.encrypted and not os.environ.get("FLHE_HOME"):
            (home / "nodes").mkdir(mode=0o700)
        yield home, scratch
        (home / "run.log").unlink(missing_ok=True)
        if not settings.encrypted:
            shutil.rmtree(home, ignore_errors=True)
    except Stopped:
        shutil.rmtree(home, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _short_tmp() -> str:
    """Directory for temporary files, short enough for the socket paths that Ray makes in it."""
    default = tempfile.gettempdir()
    return "/tmp" if len(default) > 20 and Path("/tmp").is_dir() else default  # noqa: S108


def _placed(settings: Settings, home: Path, scratch: Path) -> Settings:
    """Return `settings` with every path absolute: Flower's processes run elsewhere."""
    model = settings.sealed_model or (str(home / "model.flhe") if settings.encrypted else "")
    return replace(
        settings,
        report=str(scratch / "report.jsonl"),
        sealed_model=_absolute(model),
        data_dir=_absolute(settings.data_dir),
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _own_name() -> str:
    """How the user calls flhe from here: by its path where it lies in a folder below."""
    script = Path(sys.executable).with_name("flhe")
    if script.is_file() and script.is_relative_to(Path.cwd()):
        return str(script.relative_to(Path.cwd()))
    return "flhe"


def _say_where(console: Console, settings: Settings, home: Path) -> None:
    """Say where the model and the keys are, and how to open it."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not settings.encrypted:
        if settings.sealed_model:
            say(f"Model: {settings.sealed_model}")
        return
    keys = os.environ.get("FLHE_HOME") or str(home / "nodes")
    say(f"Sealed model: {settings.sealed_model}")
    say(f"Nodes' keys:  {keys}")
    command = [_own_name(), "open", settings.sealed_model, "--key", keys, "--output", "model.npz"]
    say(f"Open it:      {shlex.join(command)}")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    try:
        path.expanduser().write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror})") from error


@contextmanager
def _signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into Stopped, which unwinds through every clean-up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether a SuperLink answers on `port`; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=1.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _one_line(text: str) -> str:
    return "" if text in ("", "N/A") else " ".join(text.split())
