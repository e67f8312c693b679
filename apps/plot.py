"""A picture of a finished run: accuracy by round, and epsilon where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe_app import style


def plot(path: Path, title: str, rounds: list[dict[str, Any]]) -> None:
    """Draw the reports of `rounds` into .png, .svg or .pdf, by the file's name.

    Raises ConfigError: the file cannot be written, or is of another kind.
    """
    numbers, last = [report["round"] for report in rounds], rounds[-1]
    says = f"{title}: accuracy is {last['accuracy']:.1%} after {len(rounds)} rounds"
    panels = {"accuracy": "accuracy"}
    if any(report.get("epsilon") is not None for report in rounds):
        panels["epsilon"] = f"epsilon at delta {last['delta']:g}"
    try:
        with style.drawn(path, says, 3.4, grid=(1, len(panels))) as (_, grid):
            for axes, (name, label), spare in zip(grid, panels.items(), range(2), strict=False):
                look = style.spare(spare)
                line = {"color": style.colour(look.colour), "marker": look.marker, "markersize": 4}
                axes.plot(numbers, [report[name] for report in rounds], **line)  # type: ignore[arg-type]
                axes.set(xlabel="round", title=label)
                if name == "epsilon":
                    axes.set_ylim(bottom=0)
    except ConfigError as error:
        raise ConfigError(f"--plot {error}; name a .png or .svg that can be written") from None
