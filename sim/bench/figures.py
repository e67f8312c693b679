"""Figures and the data behind them: a PNG at the width of a page, and a JSON file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError
from flhe.packages import install_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's: they stay apart in print and to most who see colours differently."""

DPI = 200
LOOK = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
}


def check(path: Path) -> None:
    """Refuse a path where no figure can go, before there is one: ConfigError."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path}: a figure is a .png; its data goes into a .json beside it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"figures need matplotlib: {install_hint('apps', 'matplotlib')}"
        ) from None


@contextmanager
def drawn(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, sizes in inches, written as the PNG `path` in the end; ConfigError if not."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(LOOK):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield figure
        try:
            figure.savefig(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


def save_data(path: Path, name: str, version: int, data: Mapping[str, Any]) -> Path:
    """Write what a figure shows into the JSON file beside it; returns that file's path.

    `path` is the figure's, `name` and `version` are the data's format; `data` holds JSON values.
    """
    beside = path.with_suffix(".json")
    document = {"format": name, "version": version, **data}
    try:
        beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{beside}: cannot be written ({error.strerror})") from None
    return beside
