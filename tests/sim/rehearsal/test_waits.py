"""Time-outs of the rehearsal: each says what it waited for, how long, and which log to read."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flhe.errors import FlheError
from flhe_app import superlink
from flhe_app.outcome import Tail
from flhe_app.processes import Children
from flhe_app.signals import Stopped
from flhe_app.superlink import SUPERLINK_S
from flhe_lab.rehearsal import loopback
from flhe_lab.rehearsal import machines as loopback_machines
from flhe_lab.rehearsal.app import SITES, Plan
from flhe_lab.rehearsal.logs import Logs, kept_logs
from flhe_lab.rehearsal.loopback import Loopback
from flhe_lab.rehearsal.machines import Machines
from tests.provision.site import run
from tests.strategies.puppets import Clock


class Process:
    """One that never ends."""

    returncode = None

    def __init__(self) -> None:
        self.waited: list[float] = []

    def poll(self) -> None:
        return None

    def wait(self, seconds: float) -> int:
        self.waited.append(seconds)
        raise subprocess.TimeoutExpired("it", seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (loopback, superlink):
        monkeypatch.setattr(module, "time", found)
    return found


class Trust:
    """As much of it as starting a SuperLink takes."""

    sites: ClassVar[dict[str, Path]] = {}
    superlink: ClassVar[list[str]] = []

    class tls:  # noqa: N801
        authority = certificate = key = Path("nowhere")
        client_context = None


def starting(start: Any) -> Children:
    """Processes that are started in another way."""
    found = Children.__new__(Children)
    found.start = start  # type: ignore[method-assign]
    return found


def machines(tmp_path: Path, process: Process, patience: float = 1.0) -> Machines:
    logs = tmp_path / "logs"
    logs.mkdir()
    found = Machines(Trust(), tmp_path, {}, Logs(logs), patience)  # type: ignore[arg-type]
    found._children = starting(lambda command, log: process)
    return found


def test_a_superlink_that_does_not_answer(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flhe_lab.rehearsal.machines.answers", lambda *_: False)
    monkeypatch.setattr(Trust.tls, "client_context", lambda: None)
    found, began = machines(tmp_path, Process(), 2.0), clock.now
    log = found.logs.path("superlink")
    log.write_text("Traceback\nOSError: no room\n", encoding="utf-8")
    seconds = 2 * SUPERLINK_S
    said = f"waited {seconds:g} s for flower-superlink to answer; .*--patience.*"
    with pytest.raises(FlheError, match=said + re.escape(f"{log} ends with OSError: no room")):
        found._start_superlink()
    assert clock.now - began > seconds


def test_a_command_that_does_not_end(tmp_path: Path) -> None:
    process = Process()
    found = machines(tmp_path, process, 3.0)
    log = tmp_path / "logs" / "flwr-ls.log"
    with pytest.raises(FlheError, match=rf"waited 180 s for `flwr ls flhe` to end; .*{log}"):
        found.flwr("ls", "flhe", log="flwr-ls")
    assert process.waited == [3 * loopback_machines.COMMAND_S]


@pytest.mark.parametrize(
    ("prints", "status", "found"),
    [
        ("print('a warning'); print('{\"run-id\": 7}', end='')", 0, {"run-id": 7}),
        ("print('no JSON')", 0, {}),
        ("print('{\"run-id\": 7}'); raise SystemExit(1)", 1, {}),
    ],
)
def test_what_a_command_says_is_read_and_logged(
    tmp_path: Path, prints: str, status: int, found: dict[str, Any]
) -> None:
    one = machines(tmp_path, Process())
    log = one.logs.path("flwr-run")
    log.write_text('{"run-id": 6}\n', encoding="utf-8")

    def start(command: object, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen([sys.executable, "-c", prints], stdout=output)

    one._children = starting(start)
    assert one.flwr("run", log="flwr-run") == found


def test_runs_that_are_late_are_named_with_their_rounds(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "logs").mkdir()
    plan = Plan(("flashe", "sash"), kill=False, patience=2.0)
    one = Loopback(plan, tmp_path, Logs(tmp_path / "logs"), lambda _: None)
    one._submit = lambda scheme: loopback.Run(  # type: ignore[method-assign]
        scheme, tmp_path, 7, Tail(tmp_path / "none"), rounds=[{}] * (scheme == "sash")
    )
    one._look = lambda: None  # type: ignore[method-assign]
    said = (
        r"waited 1200 s for the runs of flashe \(round 0 of 3 is over\), "
        r"sash \(round 1 of 3 is over\)"
    )
    with pytest.raises(FlheError, match=said) as caught:
        one.work()
    for name in ("superlink", *SITES):
        assert str(tmp_path / "logs" / f"{name}.log") in str(caught.value)


@pytest.mark.parametrize("keep", [True, False])
def test_the_command_keeps_logs_of_a_failure_with_keep_or_without(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(self: Loopback) -> None:
        self.home("site-a").mkdir(parents=True)
        (self.home("site-a") / "errors.log").write_text("why", encoding="utf-8")
        raise FlheError(f"waited 9 s for a test{self.logs.why('superlink')}")

    def stays(self: object) -> None:
        raise Stopped(2)

    monkeypatch.setattr(Loopback, "up", lambda self: nullcontext())
    monkeypatch.setattr(Loopback, "work", fails)
    monkeypatch.setattr(threading.Event, "wait", stays)
    done = run("rehearse", *(["--keep"] if keep else []))
    assert done.exit_code == (130 if keep else 1)
    (folder,) = tmp_path.glob("flhe-loopback-logs-*")
    assert f"logs are kept in {folder}" in done.output
    assert {path.name for path in folder.iterdir()} == {"superlink.log", "site-a-errors.log"}
    assert folder.stat().st_mode & (folder / "superlink.log").stat().st_mode & 0o077 == 0
    assert f"waited 9 s for a test; see {folder / 'superlink.log'}" in done.output
    assert ("flhe permit --home" in done.output) == keep


def test_logs_go_where_all_went_well_or_somebody_ended_it(tmp_path: Path) -> None:
    said: list[str] = []
    with kept_logs(tmp_path, said.append) as logs:
        pass
    with pytest.raises(Stopped), kept_logs(tmp_path, said.append) as others:
        raise Stopped(2)
    assert not logs.folder.exists()
    assert not others.folder.exists()
    assert said == []
