"""The server: picks the scheme's strategy, runs it, keeps its result.

Every failure is raised: a run that did not train must not look finished.
"""

from __future__ import annotations

import io
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from flhe.errors import ConfigError, QuorumError
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.plain import metered
from flhe.strategies.report import VERSION, Reporter, scalar
from flhe.strategies.sealed_result import save_sealed, write_private
from flhe.strategies.tensorboard import TensorBoard
from flhe.training.warm import warm
from flhe_app.environment import creatable, data_home
from flhe_app.settings import Settings
from flhe_app.tasks import task_named
from flhe_app.tasks.base import new_model
from flhe_app.tasks.workloads import Workload

app = ServerApp()
log = getLogger("flwr").log


@app.main()
def main(grid: Grid, ctx: Context) -> None:
    """Run one federation as the run config says."""
    reporter = Reporter(str(ctx.run_config.get("report", "")))
    try:
        settings = placed(Settings.from_config(ctx.run_config), ctx.run_id)
        board = TensorBoard(settings.tensorboard) if settings.tensorboard else None
        with board or nullcontext():
            if board:
                reporter.also.append(board.round)
            run(grid, settings, reporter)
    except Exception as error:
        with suppress(ConfigError):  # a report that cannot be written must not hide the reason
            reporter.emit("failed", error=f"{type(error).__name__}: {error}")
        raise


def run(grid: Grid, settings: Settings, reporter: Reporter) -> None:
    """Wait for the nodes, train, write the final model."""
    task = task_named(settings.task)
    arrays = ArrayRecord(new_model(task, settings.seed).state_dict())
    model_bytes = sum(len(array.data) for array in arrays.values())
    strategy = make_strategy(settings, task, reporter)
    if isinstance(strategy, HEStrategy):  # in a simulation this compiles for the nodes, too
        warm(strategy.terms, settings.cohort)
    reporter.emit("start", version=VERSION, model_bytes=model_bytes, nodes=settings.nodes)
    wait_for_nodes(grid, settings)
    reporter.emit("joined")
    how: dict[str, Any] = {"resume": True} if settings.resume else {}
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=settings.num_rounds,
        timeout=settings.round_timeout,
        **how,
    )
    if settings.sealed_model:
        write_model(settings, result)
    if isinstance(strategy, HEStrategy) and (text := strategy.terms.clear_warning()):
        reporter.emit("warning", text=text)
    ending = getattr(strategy, "ending", None)
    scores = {
        number: {"accuracy": scalar(metrics, "accuracy", "acc"), "loss": scalar(metrics, "loss")}
        for number, metrics in result.evaluate_metrics_clientapp.items()
    }
    reporter.emit(
        "done",
        scores=scores,
        sealed_model=settings.sealed_model or None,
        ending=None if ending is None else asdict(ending),
    )


def make_strategy(settings: Settings, task: Workload, reporter: Reporter) -> FedAvg:
    """Return the strategy of `settings.scheme`."""
    fedavg: dict[str, Any] = {
        "fraction_train": settings.fraction_train,
        "min_train_nodes": settings.cohort,
        "min_evaluate_nodes": settings.nodes,
        "min_available_nodes": settings.nodes,
    }
    how = settings.optimizer
    if not settings.encrypted:
        return metered(how, on_round=reporter.round, **fedavg)
    if settings.noise_multiplier:
        # Metrics of the common test set have no noise; no metric depends on nodes' training data.
        fedavg["train_metrics"] = ()
    return HEStrategy(
        settings.system,
        settings.codec(largest_weight(settings, task)),
        delta=settings.delta,
        optimizer=how,
        select=settings.selects,
        noise=settings.laplace,
        round_timeout=settings.round_timeout,
        state_dir=settings.state_dir or None,
        rekey_every=settings.rekey_every,
        on_round=reporter.round,
        **fedavg,
    )


def largest_weight(settings: Settings, task: Workload) -> int:
    """Return the largest weight of a node, from public figures: of q-FedAvg, or of examples."""
    if settings.fair:
        return settings.fair.limit
    most = task.source.train_size
    if settings.partition == "iid":
        most = -(-most // settings.nodes)
    if settings.gradients:
        most = min(settings.batch_size, most)
    return settings.max_examples or most


def wait_for_nodes(grid: Grid, settings: Settings) -> None:
    """Return once `settings.nodes` nodes are connected, within a limit."""
    deadline = time.monotonic() + settings.join_timeout
    while (connected := len(list(grid.get_node_ids()))) < settings.nodes:
        if time.monotonic() >= deadline:
            raise QuorumError(
                f"{connected} of nodes={settings.nodes} connected within join-timeout="
                f"{settings.join_timeout:g} s: start the others, or set nodes to what there is "
                f'(in a simulation: --federation-config "num-supernodes={settings.nodes}")'
            )
        time.sleep(0.2)


def placed(settings: Settings, run_id: int) -> Settings:
    """Return `settings` with the absolute path of the final model.

    The default is `models/run-ID.flhe` in the user's data directory, or `.npz` if the server reads
    the model. The server app itself runs in a directory of Flower's, unknown to the user.

    Raises ConfigError: the file cannot be written there. Nothing was trained yet.
    """
    if settings.sealed_model:
        path = creatable(Path(settings.sealed_model), f"sealed-model={settings.sealed_model}")
    else:
        path = data_home() / "models" / f"run-{run_id}{settings.model_suffix}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the final model goes into {path.parent}, which cannot be written "
                f"({error.strerror}): set sealed-model to a file in a directory of yours"
            ) from error
    return replace(settings, sealed_model=str(path))


def write_model(settings: Settings, result: Result) -> None:
    """Write the final model, the sealed checkpoint or the arrays as .npz, and log its path."""
    path = Path(settings.sealed_model)
    if settings.model_suffix == ".flhe":
        save_sealed(result, path)
        return
    clear: dict[str, Any] = {name: array.numpy() for name, array in result.arrays.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **clear)
    write_private(path, [buffer.getvalue()])
    log(INFO, "Model: %s", path)
