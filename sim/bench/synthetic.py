"""What is made up: a federation that crowds and rehearsals run, and data of a workload's shape.

Values are random, because Flower sends equal blocks once. Clients add a small number and train nothing,
so that what a process holds is Flower's and ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flhe.strategies.report import Reporter
    from flhe_app.superlink import Value
    from flhe_app.tasks.base import Data, Examples
    from flhe_app.tasks.workloads import Workload

    Work = Callable[[Grid, dict[str, Any], Reporter], dict[str, Any]]
    """(grid, run config, reporter) -> what the last event says."""

LAYER = 1 << 22
"""Values in one array at most, as in a matrix of 2048 x 2048."""

EXAMPLES = 16
STEP = np.float32(2.0**-10)
"""What client 0 adds to each value; client 1 adds twice as much, and so on."""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A federation whose model is made up"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "flhe"
fab-include = ["server_app.py", "client_app.py"]

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
{config}
"""


def write_app(directory: Path, name: str, module: str, config: Mapping[str, Value]) -> None:
    """Write a Flower app into a new directory: `client_app()` and `server_app()` of a module.

    `config` is the run config of one of its runs; others may have other values of the same names.
    """
    from flhe_app.superlink import pairs

    directory.mkdir()
    text = PYPROJECT.format(name=name, config=pairs(config, "\n"))
    (directory / "pyproject.toml").write_text(text)
    for side in ("server_app", "client_app"):
        text = f"from {module} import {side}\n\napp = {side}()\n"
        (directory / f"{side}.py").write_text(text)


def initial(values: int) -> ArrayRecord:
    """A model of `values` float32 numbers, in arrays of at most LAYER; always the same."""
    from flwr.app import Array, ArrayRecord

    rng = np.random.default_rng(7)  # test data; keys and masks never come from here
    sizes = [min(LAYER, values - at) for at in range(0, values, LAYER)]
    arrays = (rng.standard_normal(size, np.float32) for size in sizes)
    return ArrayRecord({f"layer-{i}": Array(array) for i, array in enumerate(arrays)})


def generated(task: Workload, count: int, seed: int) -> Data:
    """Return random data of a workload's shape, for tests and timing: there is nothing to learn.

    `count` examples for training, and a fifth as many for tests; `seed` decides them.
    """
    import torch

    from flhe_app.tasks.base import Data, Examples

    draw = torch.Generator().manual_seed(seed)
    shape, classes = task.source.shape, task.source.classes

    def half(of: int) -> Examples:
        if len(shape) == 1:
            codes = torch.randint(0, classes, (of, shape[0] + 1), generator=draw)
            return Examples(codes[:, :-1].contiguous(), codes[:, 1:].contiguous())
        pixels = torch.rand((of, *shape), generator=draw).mul_(2.0).sub_(1.0)
        return Examples(pixels, torch.randint(0, classes, (of,), generator=draw))

    return Data(half(count), half(max(1, count // 5)))


def client_app(*before: Any, behind: Sequence[Any] = ()) -> ClientApp:
    """The client: adds a number to each value. Mods stand `before` and `behind` ours."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from flhe.mods import HEMod

    app = ClientApp(mods=[*before, HEMod(), *behind])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        step = STEP * np.float32(1 + int(context.node_config["partition-id"]))
        trained = ArrayRecord()
        for name, array in message.content.array_records["arrays"].items():
            trained[name] = Array(array.numpy() + step)
        metrics = MetricRecord({"train_loss": 0.0, "num-examples": EXAMPLES})
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, _context: Context) -> Message:
        metrics = MetricRecord({"accuracy": 0.0, "num-examples": EXAMPLES})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def reporting_app(work: Work) -> ServerApp:
    """A ServerApp that does `work`, and reports into the file that the run config names in `report`.

    The last event is "done", with what `work` returns, or "failed", with the error.
    """
    from flwr.serverapp import ServerApp

    from flhe.strategies.report import Reporter

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        reporter = Reporter(config["report"])
        try:
            found = work(grid, config, reporter)
        except Exception as error:
            reporter.emit("failed", error=f"{type(error).__name__}: {error}")
            raise
        reporter.emit("done", **found)

    return app
