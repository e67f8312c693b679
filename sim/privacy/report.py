"""All runs of `flhe compare-privacy`; the page, the picture and the data that come of them."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import resources
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math import discrete_gaussian
from flhe.schemes.flashe.scheme import Flashe
from flhe_app import style
from flhe_lab.bench import figures
from flhe_lab.bench.contender import Contender, Setting, Work
from flhe_lab.bench.host import machine, torch_threads
from flhe_lab.bench.schemes import flashe
from flhe_lab.bench.turns import Progress, measure
from flhe_lab.privacy import ways
from flhe_lab.privacy.ways import DELTA, SITES, TASKS, Task
from flhe_lab.tables.axes import label_ends, nth_look

WAYS: dict[str, Any] = {
    "Opacus, pooled": ways.pooled,
    "flhe": partial(ways.in_process, honest=SITES - 1),  # one site knows its own noise
    "each site alone": partial(ways.in_process, honest=1),
    "all counted on": partial(ways.in_process, honest=SITES),
    "flhe, federated": ways.federated,
}
*DRAWN, ALL, FEDERATED = OPACUS, OURS, *_ = WAYS
EPSILONS, SEEDS, ONLY = (0.5, 1.0, 2.0, 4.0, 8.0), 5, {ALL: 0.5, FEDERATED: 2.0}
RUNS_A_SEED = 10
Runs = dict[tuple[str, float, str], NDArray[np.float64]]  # Task, epsilon, way -> % by seed
Timed = tuple[str, float, float]  # What one thread does; its seconds, least and median
Noise = dict[float, tuple[float, float]]  # Epsilon -> noise multipliers of Opacus and ours


def accuracy(task: Task, way: str, multiplier: float, runs: int, seed: int) -> float:
    """Return the percentage of rows to test on that models label right, a mean of so many runs."""
    rows, (inputs, labels) = task.data(seed)
    with torch_threads(1):
        models = [WAYS[way](task, rows, seed, multiplier) for _ in range(runs)]
        right = [(model(inputs).argmax(1) == labels).double().mean() for model in models]
    return 100 * float(sum(right)) / runs


def costs(values: int, repeats: int) -> list[Timed]:
    """Time drawing noise, beside NumPy and the encryption of the same vector; all take turns."""
    setting, rng = Setting(values), np.random.default_rng()
    works: dict[str, Work] = {
        "draw float64 Gaussians (NumPy)": lambda: rng.normal(0.0, 2**14, values),
        "draw discrete Gaussians": lambda: discrete_gaussian.draw(values, 2**28),
        "encode and encrypt (FLASHE)": flashe(setting, setting.updates()).phases["encrypt"],
    }
    contenders = [Contender(name, {"once": work}, threads=1) for name, work in works.items()]
    found = {name: row.times["once"] for name, row in measure(contenders, repeats).items()}
    return [(name, times.min, times.median) for name, times in found.items()]


def mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def run(out: Path, progress: Progress, *, quick: bool = False) -> None:
    """Write the page `out`, and picture and data beside it. Raises ConfigError: no such path."""
    figures.check(picture := out.with_suffix(".svg"))
    tasks = [task._replace(steps=3) for task in TASKS] if quick else TASKS
    epsilons, seeds = ((ONLY[FEDERATED],), 2) if quick else (EPSILONS, SEEDS)
    noise = {epsilon: ways.multipliers(tasks[0], epsilon) for epsilon in epsilons}
    cells = [c for c in product(tasks, epsilons, WAYS) if ONLY.get(c[2], c[1]) == c[1]]
    runs: Runs = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for at, (t, e, w) in enumerate(cells):
            times, of = (1, 2) if w == FEDERATED else (RUNS_A_SEED, seeds)
            one = partial(accuracy, t, w, noise[e][w != OPACUS], times)
            runs[t.name, e, w] = np.array([*pool.map(one, range(of))])
            progress(at + 1, len(cells), w)
    spent = costs(values := 10_000 if quick else 1_200_000, 2 if quick else 10)
    data = {"machine": machine(), "multipliers": noise, "costs": spent}
    data["accuracies"] = [[*cell, *row] for cell, row in runs.items()]
    figures.save_data(out, "flhe privacy comparison", 1, data)
    draw(runs, picture)
    command = f"flhe compare-privacy {out}{' --quick' if quick else ''}"
    known = {"command": command, "values": values, "picture": picture.name, "seeds": seeds}
    out.write_text(page(runs, noise, spent, **known), encoding="utf-8")


def page(runs: Runs, noise: Noise, spent: list[Timed], **known: object) -> str:
    """Return the page in Markdown."""
    table, real, held = [], "", 0
    for task, epsilon in dict.fromkeys(key[:2] for key in runs):
        at = {way: runs[task, epsilon, way] for way in WAYS if (task, epsilon, way) in runs}
        gap, error = mean(at[OURS] - at[OPACUS])
        held += (within := abs(gap) <= mean(at[OPACUS])[1])
        shown = [*("{:.1f} ± {:.1f}".format(*mean(at[way])) if way in at else "" for way in WAYS)]
        zs = "{:.3f} | {:.3f}".format(*noise[epsilon])
        shown += [f"{gap:+.1f} ± {error:.1f}", "yes" if within else "no"]
        table.append(f"| {task} | {epsilon:g} | {zs} | {' | '.join(shown)} |")
        if FEDERATED in at:
            real += f" {task} {at[FEDERATED].round(1)} ({at[OURS][:2].round(1)});"
    lines = "\n".join("| {} | {:.3f} | {:.3f} |".format(*row) for row in spent)
    bits = [Flashe().adder(SITES, bits).lane_bits for bits in (16, 28)]
    texts = {"ways": " | ".join(WAYS), "table": "\n".join(table), "costs": lines, "real": real}
    numbers = {"held": held, "of": len(table), "bits": bits, "delta": DELTA, "sites": SITES}
    numbers |= {"others": SITES - 1, "more": (SITES / (SITES - 1)) ** 0.5, "runs": RUNS_A_SEED}
    template = resources.files(__package__).joinpath("page.md").read_text(encoding="utf-8")
    return template.format(**known, **texts, **numbers, tasks=TASKS, machine=machine())


def draw(runs: Runs, path: Path) -> None:
    """Draw accuracy over epsilon, a panel a task, with standard errors."""
    tasks = list(dict.fromkeys(task for task, _, _ in runs))
    at = {task: [e for t, e, w in runs if (t, w) == (task, OPACUS)] for task in tasks}
    gaps = [
        abs(mean(runs[t, e, OURS])[0] - mean(runs[t, e, OPACUS])[0]) for t in tasks for e in at[t]
    ]
    says = (
        f"Sites that train together with flhe stay within {max(gaps):.1f} percentage points of "
        "Opacus on pooled data; sites alone lose far more"
    )
    footer = "Bars: standard errors of the seeds."
    with style.drawn(path, says, 3.4, grid=(1, len(tasks)), footer=footer) as (_, grid):
        for axes, task in zip(grid, tasks, strict=True):
            ends = []
            for i, (way, aside) in enumerate(zip(DRAWN, (0.97, 1.0, 1.03), strict=True)):
                look = nth_look(i)
                ink = style.colour(look.colour)
                means, errors = zip(*(mean(runs[task, e, way]) for e in at[task]), strict=True)
                line = {"color": ink, "marker": look.marker, "markersize": 4, "capsize": 2}
                axes.errorbar([e * aside for e in at[task]], means, errors, **line)  # type: ignore[arg-type]
                ends.append((way, ink, at[task][-1], means[-1]))
            axes.set(title=f"{task.replace('_', ' ')}: accuracy, %", xlabel="epsilon")
            axes.set_xscale("log", base=2)
            axes.set_xticks(at[task], [f"{e:g}" for e in at[task]])
            if axes is grid[-1]:
                label_ends(axes, ends)


def read_runs(accuracies: list[list[Any]]) -> Runs:
    """Return the runs of a data file."""
    return {(task, epsilon, way): np.array(row) for task, epsilon, way, *row in accuracies}
