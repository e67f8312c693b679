"""`flhe bench --round --deployed`: whole rounds of a real deployment on this machine.

A SuperLink and three SuperNodes are processes of their own, with TLS, SuperNode authentication, signed
apps and a pinned roster, as `flhe rehearse` makes them. Neither a gate nor a relay is between them.
Each contender is a run of one app; the runs take turns, because each waits for a file after a round.

Clients add a number and train nothing: rounds show what Flower, its processes and a scheme cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError, FlheError
from flhe.schemes import PLAIN
from flhe_app.environment import free_port, temporary
from flhe_app.outcome import Tail
from flhe_app.shelf import serving
from flhe_app.superlink import LOOK_S, Value
from flhe_lab.bench import synthetic
from flhe_lab.bench.contender import Contender, Laps
from flhe_lab.bench.laps import ROUND, contenders, lap, whole
from flhe_lab.bench.turns import Measured, Progress, measure, silent
from flhe_lab.rehearsal.app import SITES, deployed, wait
from flhe_lab.rehearsal.logs import Logs, Say, kept_logs
from flhe_lab.rehearsal.machines import Machines, run_words
from flhe_lab.rehearsal.trust import provide

if TYPE_CHECKING:
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    from flhe.strategies.report import OnRound, Reporter, RoundReport

APP, APP_ID = "flhe-rounds", "@flhe/flhe-rounds"

CAPTION = (
    "Minimum and median; below them the ratio to plain, which is Flower's FedAvg. Clients add a number "
    "and train nothing. Flower's server looks for replies every 3 s, and so does plain; ours looks "
    "every 1 s at least."
)

ROUND_S = 600.0
"""Longest time for one round, and for the other runs' rounds between two of one run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run."""

    values: int = 1_200_000  # Of the model
    repeats: int = 3  # Counted rounds, after a first one that does not count
    patience: float = 1.0  # What every time limit is multiplied by

    def __post_init__(self) -> None:
        if self.values < 1 or self.repeats < 1:
            raise ConfigError("--values and --repeats must be 1 or more")
        if not 0 < self.patience < float("inf"):
            raise ConfigError(f"--patience {self.patience:g}: must be positive and finite")


def title(setting: Setting) -> str:
    """What is measured, for a table."""
    return (
        f"{setting.repeats} rounds of {len(SITES)} sites, {setting.values:,} values: a SuperLink and "
        "SuperNodes over TLS on this machine"
    )


# --- in the processes of the deployment ---


client_app = synthetic.client_app
"""The client; in clear the mod only lets messages pass."""


def server_app() -> ServerApp:
    """The server: waits before each round but the first until the file `turn-ROUND` is there."""

    def work(grid: Grid, config: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
        def finished(report: RoundReport) -> None:
            reporter.round(report)
            began = time.perf_counter()
            turn = Path(config["place"]) / f"turn-{report.round + 1}"
            wait(f"for {turn.name}: is the bench still there?", turn.exists, config["wait-s"])
            reporter.emit("waited", seconds=time.perf_counter() - began)

        start = synthetic.initial(config["values"])
        run = strategy(config["scheme"], len(SITES), synthetic.EXAMPLES, finished)
        run.start(grid, start, config["rounds"])
        return {}

    return synthetic.reporting_app(work)


def strategy(name: str, clients: int, max_examples: int, on_round: OnRound) -> FedAvg:
    """FedAvg of all clients: Flower's in clear, or under a scheme."""
    from flhe.strategies import SchemeFedAvg
    from flhe.strategies.plain import metered
    from flhe.training.optimizer import Optimizer

    names = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    how: Any = {**dict.fromkeys(names, clients), "on_round": on_round}
    if name == PLAIN:
        return metered(Optimizer(), **how)
    return SchemeFedAvg(deployed(name), max_examples=max_examples, **how)


# --- beside it ---


def bench(
    schemes: Sequence[str], setting: Setting, say: Say, progress: Progress = silent
) -> dict[str, Measured]:
    """Time rounds of plain FedAvg and of each scheme, in turns; `say` is told what takes long.

    Raises ConfigError: an unknown scheme. FlheError: a process or a run failed.
    """
    names = contenders(schemes)
    with temporary() as scratch, kept_logs(scratch, say) as logs:
        say("setting up a SuperLink and three sites")
        with _up(names, setting, scratch, logs) as machines:
            runs = [Run(name, setting, machines, scratch / f"run-{name}") for name in names]
            taking = [Contender(run.name, {ROUND: run.turn}) for run in runs]
            return measure(taking, setting.repeats, progress)


@contextmanager
def _up(names: Sequence[str], setting: Setting, scratch: Path, logs: Logs) -> Iterator[Machines]:
    """The deployment runs; gone at the end."""
    app, port = scratch / "app", free_port()
    synthetic.write_app(app, APP, __name__, _config(PLAIN, setting, scratch))
    homes = {site: scratch / "homes" / site for site in SITES}

    def settings(site: str) -> dict[str, Value]:
        return {
            "partition-id": SITES.index(site),
            "num-partitions": len(SITES),
            "flhe-max-federations": len(names),
            "flhe-schemes": ",".join(names),
        }

    trust = provide(scratch, homes, names, app, port, settings)
    machines = Machines(trust, scratch, port, logs, setting.patience, chunk=0, direct=True)
    with serving(trust.shelf) as hub, machines.up(hub):
        for site in SITES:
            machines.start(site)
        yield machines
        machines.end()


def _config(name: str, setting: Setting, place: Path) -> dict[str, Value]:
    return {
        "scheme": name,
        "values": setting.values,
        "rounds": setting.repeats + 2,  # no counted turn has the run's end in it
        "wait-s": ROUND_S * setting.patience * 10,
        "place": f"{place}",
        "report": f"{place / 'report.jsonl'}",
    }


@dataclass
class Run:
    """One run, which goes on a round at a time; `place` is a new directory of its own."""

    name: str
    setting: Setting
    machines: Machines
    place: Path
    _round: int = 0
    _waited: float = 0.0
    _tail: Tail | None = field(default=None, repr=False)

    def turn(self) -> Laps:
        """Let it go on until its next report."""
        if self._tail is None:
            self._submit()
        else:
            (self.place / f"turn-{self._round + 1}").touch()
        assert self._tail is not None
        until = time.monotonic() + ROUND_S * self.setting.patience
        while True:
            for line in self._tail.lines():
                event = json.loads(line)
                if event["event"] == "round":
                    self._round = event["round"]
                    whole(self.name, self._round, event["survivors"], len(SITES))
                    phases = ((phase["name"], phase["seconds"]) for phase in event["phases"])
                    return lap(event["wall_s"], phases, self._waited)
                if event["event"] == "failed":
                    why = self.machines.logs.why("superlink", *SITES)
                    raise FlheError(f"the run with {self.name} failed: {event['error']}{why}")
                if event["event"] == "waited":
                    self._waited = event["seconds"]
            self.machines.check()
            if time.monotonic() > until:
                why = self.machines.logs.why("superlink", *SITES)
                seconds = ROUND_S * self.setting.patience
                raise FlheError(
                    f"waited {seconds:g} s for round {self._round + 1} of {self.name}; --patience "
                    f"gives it more{why}"
                )
            time.sleep(LOOK_S)

    def _submit(self) -> None:
        self.place.mkdir(mode=0o700)
        config = _config(self.name, self.setting, self.place)
        self.machines.submit(self.name, run_words(APP_ID, config))
        self._tail = Tail(Path(f"{config['report']}"))
