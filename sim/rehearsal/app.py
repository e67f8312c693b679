"""What a loopback deployment runs: made-up updates, and a note of everything secret in them.

An update is random, of its site and round, so that a search of the wire cannot find it by chance, and
so that it is known afterwards whose updates are in a sum. Nothing here needs torch.

A client writes what the server must not see into the directory that its node config names in
`loopback-notes`. A file `hold` there stops it in the middle of its second round, until it is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, QuorumError
from flhe.schemes import registry
from flhe.schemes.base import Scheme
from flhe_lab.bench import synthetic

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flhe.strategies import HEStrategy
    from flhe.strategies.report import Reporter, RoundReport

Floats = NDArray[np.float32]

CLIP = 2.0**-6
"""Largest change of a value in an update."""

MAX_EXAMPLES = (1 << 28) - 1
"""Largest example count of a site; in the run config, where a search must find it."""
MODEL = "model.flhe"
"""The final model in a run's directory, sealed."""
HOLD, HELD = "hold", "held"
"""A file that stops a client in its round HOLD_ROUND, and the one with which it says that it waits."""
HOLD_ROUND = 2
GATE = "gate"
"""A file without which the server does not begin round HOLD_ROUND."""
WAIT_S = 240.0
"""Longest wait for any of those, seconds, unless the run config says another."""
_LOOK_S = 0.05

APP_ID, NAME = "@flhe/flhe-loopback", "flhe-loopback"

RATES = (0.5, 0.25)
"""Learning rate that apps are told, and the one where a run is resumed with another."""

SCHEMES = tuple(registry.SCHEMES.own)

SITES = ("site-a", "site-b", "site-c")
VICTIM = 1
"""Which of them is killed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    schemes: tuple[str, ...] = ("flashe", "sash")  # A run for each
    rounds: int = 3  # Of training
    values: int = 5_000  # Of the model
    kill: bool = True  # Whether one SuperNode is killed in the second round
    renew: bool = False
    """Whether runs are stopped before the second round, and resumed with another learning rate."""
    patience: float = 1.0  # What every time limit is multiplied by

    def __post_init__(self) -> None:
        unknown = [name for name in self.schemes if name not in SCHEMES]
        if unknown or not self.schemes or len(set(self.schemes)) < len(self.schemes):
            raise ConfigError(
                f"--scheme {', '.join(self.schemes)}: name some of {', '.join(SCHEMES)}, each once"
            )
        if self.rounds < 1 or self.values < 100:
            raise ConfigError("--rounds must be 1 or more, --values 100 or more")
        if not 0 < self.patience < float("inf"):
            raise ConfigError(f"--patience {self.patience:g}: must be positive and finite")
        if self.renew and self.rounds < HOLD_ROUND:
            raise ConfigError(
                f"--rounds {self.rounds}: runs are resumed in round {HOLD_ROUND}; use more, or leave "
                "--renew out"
            )
        if self.kill and self.rounds <= HOLD_ROUND:
            raise ConfigError(
                f"--rounds {self.rounds}: a node is killed in round {HOLD_ROUND} and comes back, which "
                f"takes {HOLD_ROUND + 1} rounds; use more, or --no-kill"
            )


def examples(site: int) -> int:
    """Example count of a site: large, so that it is told from other numbers on the wire."""
    return MAX_EXAMPLES - 1_000_003 * (site + 1)


def update(scheme: str, site: int, number: int, values: int) -> Floats:
    """Update of a site in a round of a run, shape (values,), within CLIP."""
    rng = np.random.default_rng([SCHEMES.index(scheme), site, number])  # test data
    return rng.uniform(-CLIP, CLIP, values).astype(np.float32)


def mean(scheme: str, sites: list[int], number: int, values: int) -> NDArray[np.float64]:
    """Mean of the sites' updates by their example counts, shape (values,)."""
    weights = [examples(site) for site in sites]
    updates = [update(scheme, site, number, values).astype(np.float64) for site in sites]
    return np.average(updates, axis=0, weights=weights)


def client_app() -> ClientApp:
    """The client."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from flhe.mods import HEMod, records

    app = ClientApp(mods=[HEMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config: Any = message.content["config"]
        site, number = int(context.node_config["partition-id"]), config["server-round"]
        arrays = records.to_numpy(message.content.array_records["arrays"])
        received = np.concatenate([array.reshape(-1) for array in arrays.values()])
        scheme = str(context.run_config["scheme"])
        trained = received + update(scheme, site, number, received.size)
        notes = Path(str(context.node_config["loopback-notes"]))
        path = notes / f"{context.run_id}-{number}.npz"
        beside = path.with_name(f".{path.name}")
        np.savez(beside, allow_pickle=False, received=received, trained=trained)
        beside.replace(path)
        if number == HOLD_ROUND and (notes / HOLD).exists():
            (notes / HELD).touch()
            until = float(context.run_config["wait-s"])
            wait("to be killed", lambda: not (notes / HOLD).exists(), until)
        reply, start = ArrayRecord(), 0
        for name, array in arrays.items():
            reply[name] = Array(trained[start : start + array.size].reshape(array.shape))
            start += array.size
        metrics = MetricRecord({"train_loss": 0.0, "num-examples": examples(site)})
        return Message(RecordDict({"arrays": reply, "metrics": metrics}), reply_to=message)

    return app


def server_app() -> ServerApp:
    """The server: reports each round, and writes the sealed model into the directory `place`."""
    from flhe.strategies import save_sealed

    def work(grid: Grid, config: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
        place, nodes, wait_s = Path(config["place"]), config["nodes"], float(config["wait-s"])

        def finished(report: RoundReport) -> None:
            reporter.round(report)
            if report.round == HOLD_ROUND - 1:
                wait("for the other runs", (place / GATE).exists, wait_s)
            # A round begins with whoever is there: this one waits for who was away.
            wait(f"for {nodes} nodes", lambda: len(list(grid.get_node_ids())) >= nodes, wait_s)

        most = config["max-examples"]
        run = strategy(config["scheme"], nodes, most, finished, wait_s, place)
        result = run.start(
            grid,
            synthetic.initial(config["values"]),
            config["rounds"],
            train_config={"lr": config["lr"]},
            resume=bool(config["resume"]),
        )
        save_sealed(result, place / MODEL)
        return {}

    return synthetic.reporting_app(work)


def strategy(
    scheme: str,
    nodes: int,
    max_examples: int,
    on_round: Callable[[RoundReport], None],
    wait_s: float = WAIT_S,
    place: Path | None = None,
) -> HEStrategy:
    """FedAvg under `scheme`; one node may be missing from a round. `place` is where it may resume.

    Raises ConfigError: an unknown scheme.
    """
    from flhe.strategies import SchemeFedAvg

    return SchemeFedAvg(
        deployed(scheme),
        clip=CLIP,
        max_examples=max_examples,
        min_available_nodes=nodes,
        min_train_nodes=nodes,
        fraction_evaluate=0.0,
        round_timeout=wait_s,
        stage_timeout=wait_s,
        connect_timeout=wait_s,
        on_round=on_round,
        state_dir=None if place is None else place / "state",
    )


def deployed(name: str) -> Scheme:
    """A scheme with the parameters that sites agree to without a word.

    Raises ConfigError: an unknown scheme.
    """
    # Of ESAFL, keys that last take all sites in every sum.
    own = {"sash": {"unmask": "clients"}, "esafl": {"keys": "round"}}.get(name, {})
    return registry.SCHEMES.named(name)(**own)


def wait(what: str, there: Callable[[], bool], seconds: float) -> None:
    """Return once it is `there`; QuorumError after so many seconds, which says `what` it waited for."""
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise QuorumError(f"process {os.getpid()} waited {seconds:g} s {what}")
        time.sleep(_LOOK_S)
