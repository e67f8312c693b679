"""Output of `flhe run`: a bar or plain lines on standard error, tables and a picture at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from flhe.answer import table
from flhe.training import accountant
from flhe_app import style
from flhe_app.outcome import SELECTION
from flhe_app.settings import Settings


class RoundDisplay(Progress):
    """A progress bar on a terminal, one plain line per step elsewhere."""

    def __init__(self, console: Console, settings: Settings) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._rounds = self.add_task("starting", total=settings.total_rounds)
        self._kill = settings.kill

    def say(self, text: str) -> None:
        """Show the current activity."""
        self._note(text)
        self.update(self._rounds, description=text)

    def _note(self, text: str) -> None:
        """Print a line where no bar is shown."""
        if self.disable:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def round(self, report: dict[str, Any]) -> None:
        """Show a finished round."""
        score = f"accuracy {_number(report['accuracy'])}, loss {_number(report['loss'])}"
        if report["kind"] == SELECTION:
            score = "selection round"
        if 0 < self._kill <= report["round"]:
            score += f", one node killed for good in round {self._kill}"
        self.update(self._rounds, description=score, completed=report["round"])
        self._note(
            f"round {report['round']}/{self.tasks[0].total}: {score}, "
            f"{report['survivors']} nodes, {report['round_s']:.1f} s"
        )


def round_table(settings: Settings, rounds: list[dict[str, Any]], model_bytes: int) -> Table:
    """Return the table of a finished run, with bytes as factors of plain FedAvg's."""
    plain_up = settings.cohort * model_bytes
    plain_down = (settings.cohort + settings.nodes) * model_bytes
    caption = (
        f"Plain FedAvg moves {decimal(plain_up)} up and {decimal(plain_down)} down a round "
        f"(model {decimal(model_bytes)}): the factors beside the bytes."
    )
    if any(report["kind"] == SELECTION for report in rounds):
        caption += " The selection round trains nothing: nodes score the parameters."
    private = any(report.get("delta") is not None for report in rounds)
    if private:
        caption += f" Epsilon at delta {settings.delta:g}, of all rounds so far together."
    title = f"{settings.task}, {settings.nodes} nodes, scheme {settings.scheme}"
    names = ["Round", "Accuracy", "Loss", "Up", "Down", "Crypto s", "Round s", "Nodes"]
    if private:
        names.append("Epsilon")
    made = table(names, right=True, title=title, caption=caption, padding=0)
    for report in rounds:
        cells = [
            str(report["round"]),
            SELECTION if report["kind"] == SELECTION else _number(report["accuracy"]),
            _number(report["loss"]),
            _beside(report["bytes_up"], plain_up),
            _beside(report["bytes_down"], plain_down),
            f"{report['crypto_s']:.3f}",
            f"{report['round_s']:.1f}",
            str(report["survivors"]),
        ]
        if private:  # JSON has no infinity
            epsilon = report["epsilon"]
            cells.append("∞" if epsilon is None else accountant.shown(epsilon))
        made.add_row(*cells)
    return made


def plot(path: Path, title: str, rounds: list[dict[str, Any]]) -> None:
    """Draw accuracy by round, and epsilon where there is one; the file's name says which format.

    Raises ConfigError: the file cannot be written, or is of another kind.
    """
    numbers, last = [report["round"] for report in rounds], rounds[-1]
    scores = [(n, r["accuracy"]) for n, r in enumerate(rounds, 1) if r["accuracy"] is not None]
    says = title
    if scores:  # the last evaluations may be lost
        says += ": accuracy is {1:.1%} after {0} rounds".format(*scores[-1])
    panels = {"accuracy": "accuracy"}
    if any(report.get("epsilon") is not None for report in rounds):
        panels["epsilon"] = f"epsilon at delta {last['delta']:g}"
    with style.drawn(path, says, 3.4, grid=(1, len(panels))) as (_, grid):
        for axes, (name, label) in zip(grid, panels.items(), strict=True):
            axes.plot(numbers, [report[name] for report in rounds], marker="o", markersize=4)
            axes.set(xlabel="round", title=label)
            if name == "epsilon":
                axes.set_ylim(bottom=0)


def _beside(count: int, plain: int) -> str:
    return f"{decimal(count)} {count / plain:.2f}x" if plain else decimal(count)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
