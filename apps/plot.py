"""A picture of a finished run: accuracy by round, and epsilon where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flhe.errors import ConfigError


def plot(path: Path, title: str, rounds: list[dict[str, Any]]) -> None:
    """Draw the reports of `rounds` into .png, .svg or .pdf, by the file's name.

    Raises ConfigError: the file cannot be written, or is of another kind.
    """
    from matplotlib.figure import Figure

    numbers = [report["round"] for report in rounds]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(numbers, [r["accuracy"] for r in rounds], color="tab:blue", label="accuracy")
    axes.set(xlabel="round", ylabel="accuracy", title=title)
    axes.grid(alpha=0.3)
    if any(r.get("epsilon") is not None for r in rounds):
        beside = axes.twinx()
        beside.plot(numbers, [r["epsilon"] for r in rounds], "--", color="tab:red", label="epsilon")
        beside.set_ylabel(f"epsilon at delta {rounds[-1]['delta']:g}")
        beside.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=2)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--plot {path}: {error}; name a .png or .svg that can be written"
        ) from None
