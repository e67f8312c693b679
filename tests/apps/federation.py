"""The real app's client and server code over a grid in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message

from flhe.strategies.report import Reporter, RoundReport
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from flhe_app import client_app
from flhe_app.server_app import make_strategy
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model

NOTHING: Mapping[str, Any] = {}


class Grid(InProcessGrid):
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
        scheme, nodes = settings.scheme, settings.nodes
        self.homes = [path / scheme / f"node-{i}" for i in range(nodes)]
        self.reports: list[RoundReport] = []
        self.wire: list[bytes] = []
        trust = {"flhe-trust": "first-use", "flhe-schemes": scheme}
        grid = Grid(
            client_app.app,
            nodes,
            run_config=settings.to_config(),
            node_config=lambda i: {"flhe-home": str(self.homes[i]), **trust, **allow},
            tap=tap or (lambda _direction, _node, content: self.wire.append(content)),
        )
        grid.replies = self.replies = []
        task = task_named(settings.task)
        strategy = make_strategy(settings, task, Reporter(None))
        setattr(strategy, "_on_round" if scheme == "plain" else "on_round", self.reports.append)
        initial = ArrayRecord(new_model(task, settings.seed).state_dict())
        result = strategy.start(
            grid=grid, initial_arrays=initial, num_rounds=settings.num_rounds, timeout=120
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

    def models(self, nodes: list[int] | None = None) -> list[Model]:
        """What those nodes, or all, hold in the end."""
        homes = self.homes if nodes is None else [self.homes[i] for i in nodes]
        return [Model.from_bytes(next(h.glob("runs/*/model")).read_bytes()) for h in homes]
