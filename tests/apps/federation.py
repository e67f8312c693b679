"""The real app's client and server code over a grid in this process, and grids that ask nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from flhe.mods import HEMod, records
from flhe.strategies import HEStrategy
from flhe.strategies.report import Reporter, RoundReport
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_app import client_app, server_app
from flhe_app.server_app import make_strategy
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model
from tests.patience import PATIENCE_S

NOTHING: Mapping[str, Any] = {}
Arrays = dict[str, NDArray[Any]]


def server_context(config: Mapping[str, Any]) -> Context:
    """Return what a SuperLink hands the server app."""
    return Context(7, 0, {}, RecordDict(), dict(config))


def flat(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return all values of a model as one vector."""
    return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)


class Idle(Grid):
    """A grid of nodes 1 to `count` that are never asked."""

    run: Any = None
    set_run = create_message = push_messages = pull_messages = send_and_receive = None  # type: ignore[assignment]

    def __init__(self, count: int) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def site() -> ClientApp:
    """Trains nothing, so that a test need not wait for it."""
    client = ClientApp(mods=[HEMod()])

    @client.train()
    def train(message: Message, _: Context) -> Message:
        arrays = records.to_numpy(message.content.array_records["arrays"])
        moved: ArrayRecord = records.from_numpy({n: a + a.dtype.type(1) for n, a in arrays.items()})
        metrics = MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, _: Context) -> Message:
        metrics = MetricRecord({"loss": 0.5, "accuracy": 0.75, "num-examples": 4})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return client


def serve(settings: Settings, path: Path, allow: Mapping[str, Any] = NOTHING) -> None:
    """Run the server app over nodes that train nothing."""
    config = settings.to_config()
    with InProcessGrid(
        site(),
        settings.nodes,
        homes=path,
        run_config=config,
        node_config=lambda _: {"flhe-schemes": name_of(settings), **allow},
    ) as grid:
        server_app.app(grid, server_context(config))


def name_of(settings: Settings) -> str:
    """Name of the scheme, without its parameters."""
    return settings.scheme.split()[0]


class _Keeping(InProcessGrid):
    """Keeps what nodes answer."""

    replies: list[Message]

    def _put(self, message_id: str, reply: Message) -> None:
        self.replies.append(reply)
        super()._put(message_id, reply)


class Federated:
    """A run of it, and what it left.

    Parameters
    ----------
    path : Path
        Below which the nodes' directories are, in one that has the scheme's name.
    settings : Settings
        Of the run.
    allow : mapping
        What nodes allow besides the scheme.
    tap : callable, optional
        Sees every object on the wire.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        allow: Mapping[str, Any] = NOTHING,
        tap: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        self.scheme, nodes = name_of(settings), settings.nodes
        self.homes = [path / self.scheme / f"node-{i}" for i in range(nodes)]
        self.reports: list[RoundReport] = []
        self.wire: list[bytes] = []
        grid = _Keeping(
            client_app.app,
            nodes,
            homes=path / self.scheme,
            run_config=settings.to_config(),
            node_config=lambda _: {"flhe-schemes": self.scheme, **allow},
            tap=tap or (lambda _direction, _node, content: self.wire.append(content)),
        )
        grid.replies = self.replies = []
        task = task_named(settings.task)
        strategy = make_strategy(settings, task, Reporter(None))
        if isinstance(strategy, HEStrategy):
            strategy.settings = replace(strategy.settings, on_round=self.reports.append)
        else:
            strategy._on_round = self.reports.append
        self.initial = ArrayRecord(new_model(task, settings.seed).state_dict())
        result = strategy.start(
            grid=grid,
            initial_arrays=self.initial,
            num_rounds=settings.num_rounds,
            timeout=PATIENCE_S,
        )
        grid.close()
        self.arrays, self.contexts = result.arrays, grid.contexts

    @property
    def accuracy(self) -> float:
        """At the end."""
        assert self.reports[-1].accuracy is not None
        return self.reports[-1].accuracy

    @property
    def survivors(self) -> list[int]:
        """Of each round."""
        return [report.survivors for report in self.reports]

    def models(self) -> list[Model]:
        """What the nodes hold in the end."""
        kept = (next(home.glob("runs/*/model")) for home in self.homes)
        return [Model.from_bytes(path.read_bytes()) for path in kept]
