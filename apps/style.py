"""The one style of all pictures: page width, fonts, colours; `flhe_lab.tables.chart` has contenders'.

A picture is one SVG for light and dark pages. It paints its own background, and a style sheet in it
swaps the colours where the reader prefers dark. No single text colour has a contrast of 4.5 to 1
against both white and furo's dark background (4.3 is the most), so there is no transparent variant.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flhe.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "blue": ("#1565b8", "#4f94e8"),
    "vermillion": ("#9c2a00", "#ff7043"),
    "green": ("#197c45", "#3ddc97"),
    "purple": ("#4a1fa0", "#cdb4ff"),
    "ochre": ("#926c08", "#ffe066"),
    "wine": ("#8a1060", "#ff4f9a"),
    "grey": ("#68737d", "#a9b6c2"),
}
"""Of what is drawn, on a light and on a dark page. They differ in lightness too,
for readers who see few hues."""

TEXT, MUTED, GRID = ("#1f2328", "#e6e8eb"), ("#57606a", "#a5afb9"), ("#dde2e7", "#2e343b")
PAGE = ("#ffffff", "#131416")
"""White, and furo's dark background."""

WIDTH = 7.4
"""Inches of every picture: a page's width, so that all texts have one size."""


def colour(name: str) -> str:
    """Return a key of COLOURS as it is drawn; on a dark page the style sheet swaps it."""
    return COLOURS[name][0]


def settings() -> Any:
    """Return Matplotlib's settings."""
    from cycler import cycler
    from matplotlib import rc_params_from_file

    shape = rc_params_from_file(
        Path(__file__).with_name("pictures.mplstyle"), use_default_template=False
    )
    inks = {
        PAGE: ("figure.facecolor", "axes.facecolor"),
        TEXT: ("text.color", "ytick.labelcolor", "axes.titlecolor"),
        MUTED: ("axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor"),
        GRID: ("grid.color",),
    }
    inked = {name: light for (light, _), names in inks.items() for name in names}
    drawn_in = cycler(color=[light for light, _ in COLOURS.values()])
    return {**shape, **inked, "axes.prop_cycle": drawn_in}


@contextmanager
def drawn(
    path: Path,
    says: str,
    height: float,
    *,
    grid: tuple[int, int] = (1, 1),
    key: str = "",
    footer: str = "",
    **shared: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure and its axes, row by row, and write it to `path` in the end.

    Raises ConfigError: `path` cannot be written, or has an ending that Matplotlib does not know.

    `says` is the title: a sentence that says what to see. `key` is a line below it, of markers and
    their meanings; `footer` is small print. `height` is in inches. `grid` has rows and columns, and
    `shared` goes to `Figure.subplots`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(settings()):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        lines = textwrap.wrap(says, 86)
        texts = {"x": 0.008, "ha": "left", "va": "top"}
        title = {"fontsize": 10, "fontweight": "bold", "linespacing": 1.25, **texts}
        top = 1 - 0.05 / height
        figure.text(y=top, s="\n".join(lines), **title)  # type: ignore[arg-type]
        top -= (0.175 * len(lines) + 0.05) / height
        if key:
            keys = textwrap.wrap(key, 112)
            figure.text(y=top, s="\n".join(keys), color=MUTED[0], **texts)  # type: ignore[arg-type]
            top -= 0.2 * len(keys) / height
        engine = figure.get_layout_engine()
        engine.set(rect=(0, 0, 1, top), w_pad=0.08)  # type: ignore[union-attr,call-arg]
        axes = figure.subplots(*grid, squeeze=False, **shared)
        yield figure, [*axes.flat]
        if footer:
            look = {"x": 0.008, "ha": "left", "fontsize": 7.5, "color": MUTED[0]}
            figure.supxlabel(textwrap.fill(footer, 135), **look)
        try:
            if path.suffix.lower() != ".svg":
                figure.savefig(path)
                return
            figure.savefig(path, metadata={"Date": None})
            path.write_text(adapted(path.read_text(encoding="utf-8")), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: the picture cannot be written ({error})") from None


PLACE = re.compile(r'\b(?:d|x|y|transform)="[^"]*"')
DIGITS = re.compile(r"(\.\d\d)\d+")


def adapted(svg: str) -> str:
    """Return an SVG with the style sheet for dark pages, and with fewer digits."""
    pairs = (*COLOURS.values(), TEXT, MUTED, GRID, PAGE)
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in pairs
        for kind in ("fill", "stroke")
        if f"{kind}: {light}" in svg
    )
    sheet = f'<style type="text/css">@media (prefers-color-scheme: dark){{{rules}}}</style>'
    svg = PLACE.sub(lambda found: DIGITS.sub(r"\1", found[0]), svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return svg.replace("</defs>", f"</defs>\n {sheet}", 1)
