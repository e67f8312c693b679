"""`flhe audit`: gradient inversion against what the server sees; a picture, a curve, and words.

The attacks are those of `leakage`, in its setting.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from flhe.coding.sensitivity import PROBES
from flhe_lab.audit.images import samples
from flhe_lab.audit.inversion import Attack, Channel
from flhe_lab.audit.leakage import ALL, LABELS, NONE, RULES, SHARES, Audit, Setting, audit, name
from flhe_lab.bench import figures
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

FORMAT, VERSION = "flhe privacy audit", 2
COMMAND = "flhe audit"
QUICK_SHARES = (0.1, 0.5)
IMAGES, QUICK_IMAGES = 5, 2
QUICK_ATTACK = Attack(steps=400, restarts=1)


VERDICTS = ((0.5, "reconstructed"), (0.1, "recognizable"), (0.05, "traces"))
"""How far the mean SSIM must lie above that of an attack on nothing -> what is called so."""

CAVEAT = (
    "This is the least that leaks: one example, a fresh LeNet with sigmoids, and one attack. Whoever "
    "attacks harder finds more; other networks and whole batches were not attacked."
)


def gain(found: Audit, way: str, share: float) -> float:
    """Mean SSIM above that of an attack that sees nothing, whose guess is where it starts."""
    return found.mean(way, share)[0] - found.mean(ALL, 1.0)[0]


def verdict(gained: float) -> str:
    """A gain in a word."""
    return next((word for least, word in VERDICTS if gained >= least), "nothing")


def table(found: Audit) -> Table:
    """One line for each way of the picture."""
    out = Table(title=f"gradient inversion of {len(found.images)} images", caption="means")
    for heading in ("what the server sees", "SSIM", "MSE", "found"):
        out.add_column(heading, justify="right" if heading in ("SSIM", "MSE") else "left")
    for at in found.pictured:
        likeness, error = found.mean(*at)
        out.add_row(name(*at), f"{likeness:.2f}", f"{error:.4f}", verdict(gain(found, *at)))
    return out


def words(found: Audit) -> list[str]:
    """What was found, in sentences."""
    select = found.setting.select
    said = [f"{name(*at)}: {verdict(gain(found, *at))}." for at in found.pictured]
    by_rule = sorted(RULES, key=lambda rule: found.mean(rule, select)[0])
    order = ", ".join(f"{LABELS[rule]} {found.mean(rule, select)[0]:.2f}" for rule in by_rule)
    said.append(f"Of {select * 100:g}% encrypted, what hides most comes first, by SSIM: {order}.")
    limit = VERDICTS[1][0]
    for rule in RULES:
        known = [s for s in found.setting.shares if gain(found, rule, s) >= limit]
        upto = f"recognizable up to {max(known) * 100:g}%" if known else "never recognizable"
        said.append(f"{LABELS[rule]}: {upto}; tried: up to {max(found.setting.shares) * 100:g}%.")
    return [*said, CAVEAT]


def to_data(found: Audit, made_by: str) -> dict[str, Any]:
    """What was found and how, as JSON values."""
    names = ("flhe", "torch", "numpy", "scikit-learn")
    return {
        "made_by": {"command": made_by, **{name: version(name) for name in names}},
        "machine": machine(),
        "seconds": found.seconds,
        "model": "fresh LeNet with sigmoids, weights uniform in [-0.5, 0.5]; one example",
        "maps": f"of these very images; by inputs: {PROBES} random probes for each",
        "measures": "of the start whose gradient fits best; pixels in [0, 1]",
        "setting": asdict(found.setting),
        "images": [
            {"name": name, "label": int(label)}
            for name, label in zip(found.images.names, found.images.labels, strict=True)
        ],
        "credits": list(found.images.credits),
        "means": [
            dict(zip(("way", "share", "ssim", "mse"), (*at, *found.mean(*at)), strict=True))
            for at in found.setting.points
        ],
        "words": words(found),
        "points": [asdict(point) for point in found.points],
    }


def run(
    out: Path,
    *,
    quick: bool = False,
    select: float = 0.1,
    noise: float = 0.0,
    progress: Progress | None = None,
) -> Audit:
    """Audit, and write the picture to `out`, its data beside it and the curve to *_curve.png.

    Raises ConfigError: a setting that cannot work, or a path that cannot be written.

    `quick` takes fewer images and shares, and a weaker attack: half a minute. `select` is the share in
    the picture; for `noise` see `Channel`.
    `progress` receives (attacks done, attacks in all, what is attacked).
    """
    figures.check(out)
    setting = Setting(
        select,
        QUICK_SHARES if quick else SHARES,
        QUICK_ATTACK if quick else Attack(),
        Channel(noise=noise),
    )
    found = audit(samples(QUICK_IMAGES if quick else IMAGES), setting, progress)
    figures.save_data(out, FORMAT, VERSION, to_data(found, f"{COMMAND} {out}"))
    picture(found, out)
    curve(found, out.with_name(f"{out.stem}_curve.png"))
    return found


# --- figures: originals against reconstructions, and the curve over the share ---

LETTERS = 25
"""Of the small print, in an inch."""

MARKS = ("o", "s", "D", "^")


def picture(found: Audit, path: Path) -> None:
    """Draw a row of originals, and one for each way, with SSIM, MSE and credits."""
    count = len(found.images)
    rows = [("original", None), *((name(*at), at) for at in found.pictured)]
    width = 1.2 + 1.05 * count
    with figures.drawn(path, width, 1.32 * len(rows)) as figure:
        grid = figure.subplots(len(rows), count, squeeze=False)
        for line, (label, at) in zip(grid, rows, strict=True):
            for i, axes in enumerate(line):
                if at is None:
                    _show(axes, found.images.pixels[i], found.images.names[i])
                else:
                    point = found.of(*at)[i]
                    title = f"SSIM {point.ssim:.2f}  MSE {point.mse:.3f}"
                    _show(axes, found.guesses[(*at, i)], title)
            line[0].set_ylabel(label.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=7)
        lines = [textwrap.fill(line, int(LETTERS * width)) for line in found.images.credits]
        figure.supxlabel("\n".join(lines), x=0.99, ha="right", fontsize=5)


def _show(axes: Axes, image: NDArray[Any], title: str) -> None:
    axes.imshow(image.transpose(1, 2, 0), interpolation="nearest")
    axes.set_title(title, fontsize=6)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def curve(found: Audit, path: Path) -> None:
    """Draw SSIM and MSE over the share encrypted: means, and from the least to the largest."""
    with figures.drawn(path, 7.4, 2.9) as figure:
        for axes, what in zip(figure.subplots(1, 2), ("ssim", "mse"), strict=True):
            for i, rule in enumerate(RULES):
                ways = [(NONE, 0.0), *((rule, s) for s in found.setting.shares), (ALL, 1.0)]
                values = [[getattr(p, what) for p in found.of(*at)] for at in ways]
                shares = [100 * share for _, share in ways]
                look: dict[str, Any] = {"color": figures.COLOURS[i]}
                low, high = [min(v) for v in values], [max(v) for v in values]
                axes.fill_between(shares, low, high, alpha=0.13, linewidth=0, **look)
                means = [sum(v) / len(v) for v in values]
                axes.plot(
                    shares, means, marker=MARKS[i], markersize=3.5, label=LABELS[rule], **look
                )
            axes.set(xlabel="encrypted, % of the parameters", title=what.upper(), xlim=(0, 100))
            axes.set_ylim(bottom=0)
            axes.legend(loc="best", fontsize=7)
