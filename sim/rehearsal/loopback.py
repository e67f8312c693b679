"""A real deployment on one machine, for a few minutes: TLS, authenticated SuperNodes, pinned trust.

    flhe rehearse --scheme flashe --scheme sash

One SuperLink, three SuperNodes, a run for each scheme, all at once. Everything that they say to each
other passes a relay that writes it down, and is then searched for every secret there was (`verdict`).

All is made anew and private to it: certificates, keys, identities, Flower's settings, ports.
A SuperNode that was killed counts as online until its last heartbeat is 60 s old: until then the
SuperLink refuses it, and a round waits for it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flhe.errors import FlheError
from flhe_app.environment import free_port
from flhe_app.outcome import Tail
from flhe_app.shelf import serving
from flhe_app.superlink import LOOK_S, Value
from flhe_lab.bench.synthetic import write_app
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal import node_secrets
from flhe_lab.rehearsal.app import GATE, HELD, HOLD, HOLD_ROUND, RATES, SITES, VICTIM, Plan
from flhe_lab.rehearsal.logs import Logs, Say
from flhe_lab.rehearsal.machines import CHUNK, COMMAND_S, Machines, run_words
from flhe_lab.rehearsal.search import Secrets
from flhe_lab.rehearsal.trust import NAME, Trust, provide

AWAY_S, RESTART_S = 25.0, 4.0
"""Seconds until a killed SuperNode is started again, and between two tries: it is refused while it
counts as online, for 30 s at least."""

RUNS_S = 600.0
"""Longest time for the runs."""

REPORTS = ("report.jsonl", "report-resumed.jsonl")
"""Files of a run's reports, and of those of the run that has resumed it."""


@dataclass(slots=True)
class Run:
    """One run and what is known of it.

    `id` is Flower's id of it, and the federation's; `now` that of the run that has resumed it, if any.
    """

    scheme: str
    place: Path
    id: int
    tail: Tail
    now: int = 0
    began: float = field(default_factory=time.monotonic)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    ended: float = 0.0
    status: str = ""

    def __post_init__(self) -> None:
        self.now = self.now or self.id


class Loopback:
    """The deployment: `up` around `work`, then `end`, then `verdict.check`.

    `scratch` is an empty directory for all of its files, gone when `up` is left; `say` is told of each
    step. `secrets` is all that was secret on the way; `runs` has one a scheme. `killed_s` and `back_s`
    are seconds from the beginning to the kill, and to when the node was back; 0 before.
    """

    def __init__(self, plan: Plan, scratch: Path, logs: Logs, say: Say) -> None:
        self.plan, self.scratch, self.logs, self._say = plan, scratch, logs, say
        self.secrets = Secrets()
        self.runs: list[Run] = []
        self.killed_s = self.back_s = 0.0
        self._began = self._next = time.monotonic()

    def home(self, site: str) -> Path:
        """State directory of a site."""
        return self.scratch / "homes" / site

    def notes(self, site: str) -> Path:
        """Where a site's app writes what it knows."""
        return self.scratch / f"notes-{site}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Everything is made and started; gone at the end.

        Raises FlheError: something did not start: what, and why.
        """
        self._say(
            "setting up sites and a coordinator: flhe site init, federation new, add, publish, join"
        )
        app = self.scratch / "app"
        config = self._config(self.plan.schemes[0], self.scratch)
        write_app(app, loopback_app.NAME, loopback_app.__name__, config)
        homes = {name: self.home(name) for name in SITES}
        relay = free_port()
        self.trust: Trust = provide(
            self.scratch, homes, self.plan.schemes, app, relay, self._settings
        )
        for name in SITES:
            self.secrets.add("SuperNode key", self.trust.scalar(name))
        chunk = max(CHUNK, self.plan.values)  # a float32 model has four, of any size
        self.machines = Machines(
            self.trust, self.scratch, relay, self.logs, self.plan.patience, chunk
        )
        with serving(self.trust.shelf) as hub:
            self._say("starting the SuperLink, registering the SuperNodes' keys")
            with self.machines.up(hub):
                for name in SITES:
                    self.machines.start(name)
                self._say(f"flhe site start, which checks each node first: {', '.join(SITES)}")
                yield

    def _settings(self, name: str) -> dict[str, Value]:
        """What a site adds to its node config."""
        self.notes(name).mkdir(mode=0o700)
        return {
            "partition-id": SITES.index(name),
            "num-partitions": len(SITES),
            "flhe-max-federations": len(self.plan.schemes),
            "loopback-notes": str(self.notes(name)),
        }

    def work(self) -> None:
        """Start the runs and see them through.

        Raises FlheError: a run failed, a process ended, or time is up.
        """
        if self.plan.kill:
            (self.notes(SITES[VICTIM]) / HOLD).touch()
        self._say(f"starting a run for each of {', '.join(self.plan.schemes)}")
        deadline = time.monotonic() + RUNS_S * self.plan.patience
        with ThreadPoolExecutor(len(self.plan.schemes)) as pool:
            self.runs = list(pool.map(self._submit, self.plan.schemes))
        while not all(run.ended for run in self.runs):
            self._look()
            if self.plan.kill and not self.back_s:
                self._kill_and_restart()
            if time.monotonic() > deadline:
                raise FlheError(self._late())
            time.sleep(LOOK_S)
        self._settle()

    def _late(self) -> str:
        rest = ", ".join(
            f"{run.scheme} (round {len(run.rounds)} of {self.plan.rounds} is over)"
            for run in self.runs
            if not run.ended
        )
        victim = SITES[VICTIM]
        away = f" and for {victim} to be back" if self.killed_s and not self.back_s else ""
        seconds = RUNS_S * self.plan.patience
        return (
            f"waited {seconds:g} s for the runs of {rest}{away}; --patience gives them "
            f"more{self.logs.why('superlink', *SITES)}"
        )

    def _submit(self, scheme: str) -> Run:
        place = self._place(scheme)
        run_id = self.machines.submit(scheme, self._words(scheme, place))
        return Run(scheme, place, run_id, Tail(place / REPORTS[0]))

    def _renew(self, run: Run) -> None:
        """Stop a run, and have another one go on with it under another learning rate."""
        log = f"flwr-stop-{run.scheme}"
        if not self.machines.flwr("stop", str(run.id), NAME, log=log).get("success"):
            why = self.logs.why(log, "superlink")
            raise FlheError(f"`flwr stop` did not stop {run.scheme}{why}")
        words = self._words(run.scheme, run.place, resume=True)
        run.now = self.machines.submit(run.scheme, words)
        run.tail = Tail(run.place / REPORTS[1])
        self._say(
            f"{run.scheme}: stopped after round {HOLD_ROUND - 1}, resumed with a learning rate of "
            f"{RATES[1]:g} in place of {RATES[0]:g}"
        )

    def another_run(self) -> list[str]:
        """What to type for one more run while all is up: permits of the sites, then `flwr run`."""
        place = self._place("again")
        (place / GATE).touch()  # it waits for no other run
        words = ["flwr", *self._words(self.plan.schemes[0], place), "--stream"]
        permits = [["flhe", "permit", "--home", str(self.home(name))] for name in SITES]
        return [
            "another run: each site permits it, then the coordinator starts it",
            *(shlex.join(words) for words in permits),
            f"FLWR_HOME={shlex.quote(str(self.scratch))} {shlex.join(words)}",
        ]

    def _place(self, name: str) -> Path:
        place = self.scratch / f"run-{name}"
        place.mkdir(mode=0o700)
        return place

    def _words(self, scheme: str, place: Path, *, resume: bool = False) -> tuple[str, ...]:
        """The words of `flwr` that start a run, or one that goes on with it."""
        return run_words(loopback_app.APP_ID, self._config(scheme, place, resume=resume))

    def _config(self, scheme: str, place: Path, *, resume: bool = False) -> dict[str, Value]:
        return {
            "scheme": scheme,
            "values": self.plan.values,
            "nodes": len(SITES),
            "rounds": self.plan.rounds,
            "max-examples": loopback_app.MAX_EXAMPLES,
            "wait-s": loopback_app.WAIT_S * self.plan.patience,
            "place": str(place),
            "report": str(place / REPORTS[resume]),
            "lr": RATES[resume],
            "resume": resume,
        }

    def _look(self) -> None:
        """Take in what runs report and what is in the state directories; see that all goes on."""
        for name in SITES:
            node_secrets.look(self.home(name), self.secrets)
        for run in self.runs:
            for line in run.tail.lines():
                self._heard(run, json.loads(line))
        # The round of the kill begins everywhere at once: it is to hit all runs in the middle of it.
        if all(len(run.rounds) >= HOLD_ROUND - 1 for run in self.runs):
            old = [run for run in self.runs if self.plan.renew and run.now == run.id]
            with ThreadPoolExecutor(len(self.runs)) as pool:  # keys are looked for again soon
                list(pool.map(self._renew, old))
            for run in self.runs:
                (run.place / GATE).touch()
        self.machines.check(SITES[VICTIM] if self.killed_s and not self.back_s else "")

    def _heard(self, run: Run, event: Mapping[str, Any]) -> None:
        if event["event"] == "round":
            if event["round"] <= len(run.rounds):
                return  # a resumed run says it again
            run.rounds.append({name: value for name, value in event.items() if name != "event"})
            number, count = event["round"], event["survivors"]
            self._say(f"{run.scheme}: round {number} is over, {count} updates in its sum")
        elif event["event"] == "failed":
            why = self.logs.why("superlink")
            raise FlheError(f"the run with {run.scheme} failed: {event['error']}{why}")
        elif event["event"] == "done":
            run.ended = time.monotonic()
            self._say(f"{run.scheme}: done after {run.ended - run.began:.0f} s")

    def _kill_and_restart(self) -> None:
        """Kill the SuperNode once its app is in the middle of a round; then start it until it stays."""
        victim = SITES[VICTIM]
        notes, now = self.notes(victim), time.monotonic()
        if not self.killed_s:
            if not (notes / HELD).exists():
                return
            self.machines.kill(victim)
            self.killed_s = now - self._began
            (notes / HOLD).unlink()
            self._say(f"killed the SuperNode of {victim} in the middle of round {HOLD_ROUND}")
            self._next = now + AWAY_S
        elif not self.machines.nodes[victim].ended:
            if self.machines.taken(victim):
                self.back_s = now - self._began
                starts = self.machines.nodes[victim].starts
                self._say(f"the SuperNode of {victim} is back, at its start no. {starts}")
        elif now > self._next:
            self.machines.start(victim)
            self._next = time.monotonic() + RESTART_S

    def _settle(self) -> None:
        """Ask Flower how the runs ended: its exit codes do not tell."""
        seconds = COMMAND_S * self.plan.patience
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            listed = self.machines.flwr("ls", NAME, log="flwr-ls").get("runs", [])
            found = {int(run["run-id"]): str(run["status"]) for run in listed}
            for run in self.runs:
                run.status = found.get(run.now, "")
            if all(run.status.startswith("finished") for run in self.runs):
                break
        for run in self.runs:
            if run.status != "finished:completed":
                said = run.status or "nothing"
                raise FlheError(
                    f"waited {seconds:g} s for Flower to say that the run with {run.scheme} is "
                    f"complete, it says: {said}{self.logs.why('superlink', 'flwr-ls')}"
                )
