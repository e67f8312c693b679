"""`flhe audit`: gradient inversion against what the server sees; a picture, a curve, and words.

The attacks are those of `leakage`, in its setting.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from flhe.coding.sensitivity import PROBES
from flhe_lab.audit.images import samples
from flhe_lab.audit.inversion import Attack, Channel
from flhe_lab.audit.leakage import ALL, LABELS, RULES, SHARES, Audit, Setting, audit, name
from flhe_lab.bench import figures
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Progress

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
    count: int | None = None,
    seed: int = 0,
    noise: float = 0.0,
    progress: Progress | None = None,
) -> Audit:
    """Audit, and write the picture to `out`, its data beside it and the curve to *_curve.png.

    Raises ConfigError: a setting that cannot work, or a path that cannot be written.

    `quick` takes fewer images and shares, and a weaker attack: half a minute. `select` is the share in
    the picture, `count` how many images; `seed` is of everything random; for `noise` see `Channel`.
    `progress` receives (attacks done, attacks in all, what is attacked).
    """
    from flhe_lab.audit import plot as audit_plot

    figures.check(out)
    setting = Setting(
        select,
        QUICK_SHARES if quick else SHARES,
        QUICK_ATTACK if quick else Attack(),
        Channel(noise=noise),
        seed,
    )
    many = count if count is not None else QUICK_IMAGES if quick else IMAGES
    found = audit(samples(many), setting, progress)
    figures.save_data(out, FORMAT, VERSION, to_data(found, f"{COMMAND} {out}"))
    audit_plot.picture(found, out)
    audit_plot.curve(found, out.with_name(f"{out.stem}_curve.png"))
    return found
