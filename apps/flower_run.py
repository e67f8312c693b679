"""One run of Flower's simulation: its SuperLink, the app, and its reported rounds."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from flhe.errors import FlheError
from flhe_app.console import RoundDisplay
from flhe_app.environment import environment
from flhe_app.outcome import Outcome, Tail, labelled, last_exception
from flhe_app.processes import Children, describe_exit
from flhe_app.run_command import How
from flhe_app.run_dir import RunDir
from flhe_app.signals import ignore_signals
from flhe_app.superlink import Process, pairs, start_simulation

SIMULATION_S = 600.0
"""Maximum wait for the simulation's process to appear."""
STAGES = 50
"""Maximum wait for news, in waits for nodes and for a stage: the server gives up before."""
STREAM_S = 5.0
"""Maximum wait for the last lines of the run's log."""
POLL_S = 0.2


class FlowerRun:
    """One Flower run, from the SuperLink's start to its end."""

    def __init__(self, run_dir: RunDir, scratch: Path, how: How, console: Console) -> None:
        from flhe.strategies.report import Lines

        self._dir, self._scratch, self._console = run_dir, scratch, console
        warn = partial(console.print, style="yellow", markup=False, highlight=False, soft_wrap=True)
        mine, name = Path(how.report_path).expanduser(), f"--report {how.report_path}"
        self._copy = Lines(mine, name, warn) if how.report_path else None
        self._settings, self._log = run_dir.settings, run_dir.log
        self._env = environment(run_dir.nodes, scratch)
        self._outcome = Outcome.earlier(labelled(e, self._settings) for e in run_dir.events())
        self._tail = Tail(run_dir.report, new=True)
        self._log.touch(mode=0o600)
        self._log_start = self._log.stat().st_size

    def run(self) -> Outcome:
        """Run it to its end; FlheError if it did not train all rounds."""
        settings = self._scratch / "settings.toml"
        settings.write_text(pairs(self._settings.to_config(), "\n"), encoding="utf-8")
        children = Children(self._env, self._scratch, hold=[self._dir.lock])
        try:
            with RoundDisplay(self._console, self._settings) as display:
                self._display = display
                for report in self._outcome.rounds:
                    display.round(report)
                display.say("starting Flower")
                app, nodes, config = Path(__file__).parent, self._settings.nodes, str(settings)
                superlink, stream = start_simulation(
                    children, self._log, app, nodes, config, self._fail, self._tick
                )
                self._follow(children, superlink, stream)
                self._settle(stream)
        finally:
            ignore_signals()
            children.stop()
        return self._outcome

    def _follow(self, children: Children, superlink: Process, stream: Process) -> None:
        """Return when the run is complete or its process gone; fail if Flower's own end first."""
        self._heard, simulated = time.monotonic(), False
        while True:
            self._tick()
            if self._complete():  # Flower and Ray take seconds to end by themselves
                return
            if superlink.poll() is not None:
                self._fail(f"flower-superlink {describe_exit(superlink.returncode)} during the run")
            running = children.runs_below(superlink.pid, "flwr-simulation")
            if simulated and not running:
                return
            simulated |= running
            if not simulated and stream.poll():
                self._fail(f"`flwr run` {describe_exit(stream.returncode)}")
            stage = self._settings.join_timeout + self._settings.round_timeout
            wait = STAGES * stage if simulated else SIMULATION_S
            if time.monotonic() > self._heard + wait:
                self._fail(f"Flower said nothing for {wait:g} s")

    def _settle(self, stream: Process) -> None:
        """Trust the server's record of its end; if it has none, the log may name the reason."""
        limit = time.monotonic() + STREAM_S
        while not self._complete() and stream.poll() is None and time.monotonic() < limit:
            self._tick()
        self._tick()
        if self._complete():
            return
        self._fail(
            self._outcome.told("failed", "error")
            or last_exception(self._log, self._log_start)
            or f"the simulation's process ended after {len(self._outcome.rounds)} of "
            f"{self._settings.total_rounds} rounds"
        )

    def _complete(self) -> bool:
        """Return whether the server said that it is done, its last word, and the model is there."""
        reported = len(self._outcome.rounds) == self._settings.total_rounds
        reported |= self._dir.resumed  # a crash can cost a line
        done = "done" in self._outcome.others
        return done and reported and Path(self._settings.sealed_model).exists()

    def _tick(self) -> None:
        """Wait a moment; show news."""
        time.sleep(POLL_S)
        for line in self._tail.lines():
            event, self._heard = labelled(json.loads(line), self._settings), time.monotonic()
            if self._copy is not None:
                self._copy.append(json.dumps(event))
            kind, new = event["event"], self._outcome.read(event)
            if kind == "round" and new:
                self._display.round(event)
            elif kind == "start":
                self._display.say(f"waiting for {self._settings.nodes} nodes")
            elif kind == "joined":
                nodes = self._settings.nodes
                self._display.say(f"training on {nodes} nodes; a new installation compiles first")

    def _fail(self, reason: str) -> NoReturn:
        raise FlheError(f"the run failed: {reason} (full log: {self._log})")
