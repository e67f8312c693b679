"""`flhe audit`: gradient inversion against what the server sees; a picture, a curve, and words.

The attacks are those of `leakage`, in its setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from flhe.coding.sensitivity import PROBES
from flhe_app import style
from flhe_lab.audit.images import samples
from flhe_lab.audit.inversion import Attack, Channel
from flhe_lab.audit.leakage import (
    ALL,
    LABELS,
    NONE,
    PICTURED,
    RULES,
    SHARES,
    Audit,
    Setting,
    audit,
    name,
)
from flhe_lab.bench import figures
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.tables.axes import nth_look

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
    said = [f"{name(*at)}: {verdict(gain(found, *at))}." for at in found.pictured]
    by_rule = sorted(RULES, key=lambda rule: found.mean(rule, PICTURED)[0])
    order = ", ".join(f"{LABELS[rule]} {found.mean(rule, PICTURED)[0]:.2f}" for rule in by_rule)
    said.append(f"Of {PICTURED * 100:g}% encrypted, what hides most comes first, by SSIM: {order}.")
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
    noise: float = 0.0,
    progress: Progress = silent,
) -> Audit:
    """Audit, and write the picture to `out`, its data beside it and the curve to *_curve.svg.

    Raises ConfigError: a setting that cannot work, or a path that cannot be written.

    `quick` takes fewer images and shares, and a weaker attack: half a minute. For `noise` see
    `Channel`.
    `progress` receives (attacks done, attacks in all, what is attacked).
    """
    figures.check(out)
    setting = Setting(
        QUICK_SHARES if quick else SHARES,
        QUICK_ATTACK if quick else Attack(),
        Channel(noise=noise),
    )
    found = audit(samples(QUICK_IMAGES if quick else IMAGES), setting, progress)
    figures.save_data(out, FORMAT, VERSION, to_data(found, f"{COMMAND} {out}"))
    picture(found, out)
    points = [asdict(point) for point in found.points]
    curve(points, setting.shares, out.with_name(f"{out.stem}_curve.svg"))
    return found


# --- figures: originals against reconstructions, and the curve over the share ---


def picture(found: Audit, path: Path) -> None:
    """Draw a row of originals, and one for each way, with SSIM, MSE and credits."""
    count = len(found.images)
    rows = [("original", None), *((name(*at), at) for at in found.pictured)]
    best = min(RULES, key=lambda rule: found.mean(rule, PICTURED)[0])
    says = (
        f"With {PICTURED:.0%} encrypted, a server still rebuilds the images: at best, "
        f"{LABELS[best]}, SSIM is {found.mean(best, PICTURED)[0]:.2f}; 1 is the original"
    )
    footer = " ".join(found.images.credits)
    grid = (len(rows), count)
    with style.drawn(path, says, 0.7 + 1.3 * len(rows), grid=grid, footer=footer) as (_, drawn):
        for at_row, (label, at) in enumerate(rows):
            line = drawn[at_row * count : (at_row + 1) * count]
            for i, axes in enumerate(line):
                if at is None:
                    _show(axes, found.images.pixels[i], found.images.names[i])
                else:
                    point = found.of(*at)[i]
                    title = f"SSIM {point.ssim:.2f}  MSE {point.mse:.3f}"
                    _show(axes, found.guesses[(*at, i)], title)
            line[0].set_ylabel(label.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=7)


def _show(axes: Axes, image: NDArray[Any], title: str) -> None:
    axes.imshow(image.transpose(1, 2, 0), interpolation="none")
    axes.set_title(title, fontsize=7)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def curve(points: Sequence[Mapping[str, Any]], shares: Sequence[float], path: Path) -> None:
    """Draw SSIM over the share encrypted: means, and from the least to the largest."""
    ends: list[tuple[str, str, float, float]] = []
    half = min(shares, key=lambda share: abs(share - 0.5))
    means = {rule: fmean(_values(points, rule, half)) for rule in RULES}
    best = min(RULES, key=lambda rule: means[rule])
    says = (
        f"With {half:.0%} encrypted, images are rebuilt with SSIM {means[best]:.2f} "
        f"({LABELS[best]}) to {max(means.values()):.2f}; 1 is the original"
    )
    footer = "Lines: means of the images; bands: from the least to the largest."
    with style.drawn(path, says, 3.6, footer=footer) as (_, (axes,)):
        for i, rule in enumerate(RULES):
            look = nth_look(i)
            ink = style.colour(look.colour)
            ways = [(NONE, 0.0), *((rule, share) for share in shares), (ALL, 1.0)]
            values = [_values(points, *at) for at in ways]
            at = [100 * share for _, share in ways]
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(at, low, high, alpha=0.12, linewidth=0, color=ink)
            line = [fmean(v) for v in values]
            axes.plot(at, line, marker=look.marker, markersize=4, color=ink)
            middle = 1 + [*shares].index(half)
            ends.append((LABELS[rule], ink, at[middle], line[middle]))
        axes.set(xlabel="encrypted, % of the parameters", title="SSIM", xlim=(0, 100), ylim=(0, 1))
        for i, (label, ink, x, y) in enumerate(sorted(ends, key=lambda end: -end[3])):
            line_ = {"arrowstyle": "-", "color": ink, "linewidth": 0.6}
            beside = {
                "textcoords": "axes fraction",
                "arrowprops": line_,
                "color": ink,
                "fontsize": 8,
            }
            axes.annotate(label, (x, y), (0.7, 0.94 - 0.08 * i), **beside)  # type: ignore[arg-type]


def _values(points: Sequence[Mapping[str, Any]], way: str, share: float) -> list[float]:
    return [p["ssim"] for p in points if (p["way"], p["share"]) == (way, share)]
