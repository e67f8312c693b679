"""The clients' side of a federation that is measured: who holds what, and one app for all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError
from flhe_lab.bench.host import quiet as silent
from flhe_lab.bench.host import torch_threads

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from torch import nn

    from flhe_app.tasks.base import Data
    from flhe_app.tasks.workloads import Workload
    from flhe_lab.papers.learning import Setting


def parts_of(data: Data, setting: Setting) -> list[Data]:
    """What each client holds: an even share of both halves, no more than the setting's images of it."""
    from flhe_app.tasks.base import Data as Part
    from flhe_app.tasks.split import split_iid, split_pieces

    shares = []
    for half, most, name, kind in (
        (data.train, setting.images, "images", "training"),
        (data.test, setting.test_images, "test_images", "test"),
    ):
        if setting.split == "pieces":
            split = split_pieces(len(half.labels), setting.clients)
        else:
            split = split_iid(half.labels.numpy(), setting.clients, setting.seed)
        least = min(map(len, split))
        if most > least:
            raise ConfigError(
                f"{name}={most}: a client's share is {least} {kind} images; lower it, or use fewer "
                "clients"
            )
        shares.append([half.take(mine[: most or None]) for mine in split])
    return [Part(*pair) for pair in zip(*shares, strict=True)]


def allowing(home: Path) -> dict[str, Any]:
    """A node's config that allows whatever is to be measured: it has nothing to hide."""
    return {
        "flhe-home": str(home),
        "flhe-trust": "first-use",
        "flhe-server-reads": True,
        "flhe-unpermuted": True,
        "flhe-min-bits": 112,
    }


class Learners:
    """One app, whose nodes differ in their part of the data.

    `parts` is what each node holds, by its partition id; `setting` is how all of them train.
    """

    def __init__(self, task: Workload, parts: list[Data], setting: Setting) -> None:
        from flhe_app.tasks.base import new_model

        self._first = new_model(task, setting.seed)
        self._parts = parts
        self._setting = setting

    @property
    def most(self) -> int:
        """Largest example count of a client."""
        return max(len(part.train.labels) for part in self._parts)

    def initial(self) -> Any:
        """The initial model, as Flower's record."""
        from flwr.app import ArrayRecord

        return ArrayRecord(self._first.state_dict())

    def app(self, *, encrypted: bool) -> ClientApp:
        """The ClientApp, with or without the mod."""
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        from flhe.mods import HEMod
        from flhe_app.tasks import base

        app = ClientApp(mods=[HEMod()] if encrypted else [])
        setting = self._setting

        @app.train()
        def train(message: Message, context: Context) -> Message:
            node = int(context.node_config["partition-id"])
            mine = self._parts[node].train
            model = self._received(message)
            server_round = message.content.config_records["config"]["server-round"]
            assert isinstance(server_round, int)
            score = base.train(
                model,
                mine,
                epochs=setting.local_epochs,
                learning_rate=setting.learning_rate,
                batch_size=setting.batch_size,
                shuffle=base.shuffler(setting.seed, node, server_round),
                optimizer=setting.optimizer,
                batches=setting.batches,
            )
            arrays = ArrayRecord(model.state_dict())
            metrics = MetricRecord({"train_loss": score.loss, "num-examples": len(mine.labels)})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            mine = self._parts[int(context.node_config["partition-id"])].test
            score = base.evaluate(self._received(message), mine, batch_size=EVALUATED)
            metrics = MetricRecord({**score._asdict(), "num-examples": len(mine.labels)})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    def _received(self, message: Message) -> nn.Module:
        # A copy, rather than a new model: clients work at the same time, torch's generator is one
        model = copy.deepcopy(self._first)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model


EVALUATED = 128
"""Examples that are scored at a time: the logits of more windows of text than that take memory."""


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """So many torch threads for each client that trains, and no word from Flower but errors."""
    import flhe.strategies  # noqa: F401  Flower sets its log's level when imported

    with torch_threads(threads), silent():
        yield
