"""`flhe run`: one federation, simulated on this machine by Flower, and a true exit code.

It wraps `flwr run` on the app. Flower's own files and processes are gone after the run; the run's
directory remains (`run_dir.py`).
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from flhe.answer import Answer, notes
from flhe.errors import ConfigError, FlheError
from flhe.packages import require
from flhe_app.console import plot, round_table
from flhe_app.environment import creatable, own_name, temporary
from flhe_app.run_command import How
from flhe_app.run_dir import RunDir, created, reopened
from flhe_app.settings import Settings
from flhe_app.signals import Stopped, signals

NEEDS = ("flwr", "flwr_datasets", "psutil", "ray", "sklearn", "torch", "torchvision")
"""Packages of the [apps] extra, by import name."""


def run(settings: Settings, how: How) -> Answer:
    """Train as `settings` say and return the results; FlheError if it did not finish.

    Raises Stopped after a signal, once everything is stopped.
    """
    check(settings, how)
    with signals(), created(settings) as run_dir:
        return _train(run_dir, how)


def resume(path: Path, given: Mapping[str, Any], how: How) -> Answer:
    """Resume the run with directory `path`, as `run` does; `given` is as for `reopened`.

    The results are those of all rounds, the events only the new ones.
    """
    with signals(), reopened(path, given) as run_dir:
        check(run_dir.asked, how)
        return _train(run_dir, how)


def _train(run_dir: RunDir, how: How) -> Answer:
    from flhe_app.flower_run import FlowerRun

    settings = run_dir.settings
    with _kept(run_dir), temporary() as scratch:
        outcome = FlowerRun(run_dir, scratch, how, notes()).run()
    model_bytes = outcome.told("start", "model_bytes") or 0
    table = round_table(settings, outcome.rounds, model_bytes)
    answer = Answer(outcome.to_json(settings), table)
    if settings.plot:
        plot(Path(settings.plot), f"{settings.task}, {settings.scheme}", outcome.rounds)
        answer.shown += (f"Plot: {settings.plot}",)
    if warning := outcome.told("warning", "text"):
        answer.shown += (Text(warning, style="yellow"),)
    answer.shown += (_places(run_dir),)
    return answer


@contextmanager
def _kept(run_dir: RunDir) -> Iterator[None]:
    """Say how to go on with a run that did not finish; remove what was stopped too early for that."""
    try:
        yield
    except Stopped as stopped:
        stopped.hint = run_dir.hint
        if not run_dir.resumable and not run_dir.resumed:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise
    except FlheError as error:
        if run_dir.hint:
            raise FlheError(f"{error}; {run_dir.hint}") from error
        raise
    if run_dir.asked.encrypted:
        run_dir.save(finished=run_dir.asked.num_rounds)


def check(settings: Settings, how: How) -> None:
    """Refuse settings now that could only fail later."""
    from flhe_app.tasks import task_named

    require("`flhe run`", "apps", NEEDS)
    if settings.encrypted:
        settings.system.check_packages()
        if settings.system.dealt:
            raise ConfigError(
                f"scheme {settings.scheme!r}: a trusted dealer makes its keys before a deployment "
                "(`flhe keygen`), and a simulation has none; have nodes make theirs"
            )
    if settings.tensorboard:
        from flhe.strategies import tensorboard

        tensorboard.check()
    if settings.device != "cpu":
        import torch

        try:
            torch.empty(0, device=settings.device)
        except (AssertionError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise ConfigError(f"--device {settings.device}: {why}; use cpu") from None
    task = task_named(settings.task)
    task.source.place(task.name, settings.data_dir, download=settings.download)
    if settings.nodes > task.source.train_size:
        raise ConfigError(
            f"--nodes {settings.nodes}: task {task.name!r} has only {task.source.train_size} training "
            "examples, fewer than one a node"
        )
    if settings.plot and Path(settings.plot).suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--plot {settings.plot}: must end in .svg, .png or .pdf")
    paths = {"report": how.report_path, "output": settings.sealed_model, "plot": settings.plot}
    for option, path in paths.items():
        if path:
            creatable(Path(path), f"--{option} {path}")
    if settings.download:  # once, not by each node at the same time
        task.load(settings.data_dir, download=True)


def _places(run_dir: RunDir) -> str:
    """Return the places of the model and the keys, and how to open the model."""
    model, keys = run_dir.settings.sealed_model, str(run_dir.nodes)
    if run_dir.asked.model_suffix == ".npz":
        return f"Model: {model}"
    command = [own_name(), "open", model, "--key", keys, "--output", "model.npz"]
    return f"Sealed model: {model}\nNodes' keys:  {keys}\nOpen it:\n   {shlex.join(command)}"
