"""`flhe audit --privacy`: attacks of `membership` and `sum_attacks` beside what epsilon allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flhe.training import accountant
from flhe_app import style
from flhe_lab.audit.guarantee import Pairs, guarantee, power
from flhe_lab.audit.membership import FPR, strengths
from flhe_lab.audit.shadows import CLIP, Effort, train
from flhe_lab.audit.sum_attacks import guess, reconstruct
from flhe_lab.bench import figures
from flhe_lab.bench.host import machine
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.tables.axes import logarithmic, nth_look

Row = dict[str, Any]

PANELS = (
    ("trained", "AUC", "AUC of membership inference", ("loss AUC", "LiRA AUC")),
    ("trained", "TPR", "true positives at 1% false positives", ("loss TPR", "LiRA TPR")),
    ("sums", "guess", "one of ten digits guessed, from one sum", ("guessed",)),
    ("trained", "", "accuracy of the models", ("accuracy",)),
)
QUICK = Effort(500, 32, 20, 0.2, 0.5, (8, 1), 8, (0.1,), 1, 60, 10)


def run(out: Path, *, quick: bool = False, progress: Progress = silent) -> Path:
    """Attack, and write the picture `out`, its data and a page beside it; returns the page's path.

    Raises ConfigError: a path that cannot be written; PackageError: dp-accounting is missing.
    """
    figures.check(out)
    accountant.check_package()
    data: Row = {"made_by": f"flhe audit --privacy {out}{' --quick' if quick else ''}"}
    data |= measure(QUICK if quick else Effort(), progress)
    figures.save_data(out, "flhe privacy attacks", 1, data)
    draw(data, out)
    template = (resources.files(__package__) / "privacy.md").read_text(encoding="utf-8")
    tables = {what: table(data[what]) for what in ("trained", "sums")}
    page = out.with_suffix(".md")
    page.write_text(template.format(**data | tables, picture=out.name), encoding="utf-8")
    return page


def measure(effort: Effort, progress: Progress = silent) -> Row:
    """Train and attack, on all processors; returns JSON values."""
    at = [*((i, 1) for i in range(effort.images)), (0, effort.images)]
    levels = {"plain": 0.0, "clipped": 0.0}
    for e in effort.epsilons:
        z = accountant.multiplier_for(e, effort.rounds, sampling=effort.sampling)
        levels[f"epsilon {e:g}"] = z
    views = {"no sum": None, "no noise": 0.0, **{f"z {z}": z for z in effort.weak}}
    views |= {name: z for name, z in levels.items() if z}
    jobs: dict[tuple[Any, ...], Future[Any]] = {}
    with ProcessPoolExecutor(None, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for i, (name, z) in enumerate(levels.items()):
            for n in range(effort.models):
                jobs[name, n] = pool.submit(train, effort, z, CLIP if i else math.inf, (i, n))
        for name, view in views.items():
            for which in at:
                jobs[name, which] = pool.submit(reconstruct, *which, view, effort.steps)
            jobs[name, "guess"] = pool.submit(guess, view, effort.guesses)
        for done, _ in enumerate(as_completed(jobs.values()), 1):
            progress(done, len(jobs), "models and sums")
    trained, sums = [], []
    for name, z in levels.items():
        models = [jobs[name, n].result() for n in range(effort.models)]
        members, confidence, accuracy = map(np.array, zip(*models, strict=True))
        row: Row = {"training": name, "noise": z, "accuracy": accuracy.mean()}
        row |= {"accuracy error": accuracy.std(), **strengths(members, confidence)}
        pairs = guarantee(z, effort.sampling, effort.rounds)
        trained.append(row | _allowed("AUC", pairs) | _allowed("TPR", pairs, FPR))
    for name, view in views.items():
        likeness = [jobs[name, which].result() for which in at]
        pairs = guarantee(view or 0.0, 1.0, 1)
        row = {"opened": name, "noise": view, "epsilon of it": pairs[0][0] if pairs else None}
        row |= {"SSIM alone": np.mean(likeness[:-1]), "together": np.mean(likeness[-1])}
        row |= {"SSIMs": likeness, "guessed": (right := jobs[name, "guess"].result())}
        row["guessed error"] = view and math.sqrt(right * (1 - right) / (10 * effort.guesses))
        sums.append(row | _allowed("guess", pairs, 0.1))
    about = {"machine": machine(), "effort": effort._asdict()}
    return about | {"trained": trained, "sums": sums}


def _allowed(what: str, pairs: Pairs, fpr: float | None = None) -> Row:
    both = {f"{what} allowed": pairs[:1], f"{what}, every delta": pairs}
    return {name: power(some, fpr) for name, some in both.items()}


def table(rows: Sequence[Row]) -> str:
    """Return Markdown, with standard errors where there are any, and without lists."""
    names = [key for key in rows[0] if not key.endswith(("error", "SSIMs"))]
    lines = [names, ["---"] * len(names)]
    for row in rows:
        cells = [f"{x:.3g}" if isinstance(x := row[name], float) else x or "-" for name in names]
        errors = [row.get(f"{name} error") for name in names]
        lines += [[c + (f" ± {e:.2g}" if e else "") for c, e in zip(cells, errors, strict=True)]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(data: Row, path: Path) -> None:
    """Draw attacks, what is allowed of them, and accuracy, over epsilon."""
    first, last = data["trained"][0], data["trained"][-1]
    says = (
        f"Attacks find less than epsilon allows: LiRA's AUC falls from {first['LiRA AUC']:.2f} to "
        f"{last['LiRA AUC']:.2f}, and accuracy from {first['accuracy']:.2f} to {last['accuracy']:.2f}"
    )
    footer = "Grey: what the guarantee allows; dashed: by its epsilons at every delta."
    with style.drawn(path, says, 5.6, grid=(2, 2), footer=footer) as (_, grid):
        for axes, (what, bound, title, measured) in zip(grid, PANELS, strict=True):
            rows = data[what]
            x = [next(iter(row.values())).replace("epsilon ", "\u03b5 ") for row in rows]
            for i, name in enumerate(measured):
                look = nth_look(i)
                ink = style.colour(look.colour)
                errors = [1.96 * (row.get(f"{name} error") or 0.0) for row in rows]
                line: Row = {"color": ink, "marker": look.marker, "markersize": 4, "label": name}
                axes.errorbar(x, [row[name] for row in rows], errors, **line)
            for dash, name in (("-", f"{bound} allowed"), ("--", f"{bound}, every delta")):
                if bound:
                    grey = {"color": style.colour("grey"), "label": name}
                    axes.plot(x, [row[name] for row in rows], dash, **grey)  # type: ignore[arg-type]
            axes.set(title=title)
            if bound == "TPR":
                logarithmic(axes.yaxis)
            axes.tick_params(axis="x", labelsize=6.5)
            axes.legend(fontsize=7)
