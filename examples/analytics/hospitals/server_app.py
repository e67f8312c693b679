"""hospitals: the analyst asks for sums, and prints them beside those of the pooled table."""

from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from matplotlib.figure import Figure

from flhe.analytics import ask, quantiles
from flhe.analytics.survival import Survival
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SecureSum
from hospitals.task import ASKED, SCHEMA, patients

app = ServerApp()
SHARES = (0.25, 0.5, 0.75)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask for all statistics, print them, and draw the survival curves."""
    hospitals, path = context.run_config["hospitals"], Path(context.run_config["plot"])
    with SecureSum(grid, scheme=Sash(), min_nodes=hospitals) as secure:
        found = {name: ask(secure, SCHEMA, asked) for name, (asked, _) in ASKED.items()}
        quartiles = quantiles(secure, SCHEMA, "age", SHARES)
    tables = [patients(hospital) for hospital in range(hospitals)]
    pooled = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
    compare("quartiles of age", quartiles, np.quantile(pooled["age"], SHARES))
    for name, (asked, shown) in ASKED.items():
        ours, theirs = found[name], asked.result(SCHEMA, asked.answer(SCHEMA, pooled))
        compare(name, getattr(ours, shown, ours), getattr(theirs, shown, theirs))
    statistic, _, p = found["survival"].log_rank
    print(f"log-rank test: chi-square {statistic:.3f}, p {p:.2g}")
    draw(found["survival"], path)


def compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Print a statistic of the sums, and its largest difference from that of all patients."""
    one, other = np.ravel(ours), np.ravel(theirs)
    shown = ", ".join(f"{value:.6g}" for value in one[:4]) + ", ..." * (one.size > 4)
    print(f"{name:24} {shown:44} difference {np.abs(one - other).max():.2g}")


def draw(curves: Survival, path: Path) -> None:
    """Draw Kaplan-Meier curves, with bands of 95%."""
    axes = (figure := Figure(figsize=(7.4, 3.8), layout="constrained")).subplots()
    for group, share, error in zip(curves.groups, curves.survival, curves.error, strict=True):
        color = axes.step(curves.times, share, where="post")[0].get_color()
        low, high = np.clip((share - 1.96 * error, share + 1.96 * error), 0, 1)
        axes.fill_between(curves.times, low, high, step="post", alpha=0.2, color=color)
        axes.text(curves.times[-1], share[-1], f" treated: {group}, {share[-1]:.0%}", color=color)
    axes.set(xlabel="days", ylabel="share alive", ylim=(0, 1.02))
    ends = ", ".join(f"{share[-1]:.0%}" for share in curves.survival)
    axes.set_title(f"After {curves.times[-1]:g} days {ends} of the groups live", weight="bold")
    figure.savefig(path)
    print(f"Kaplan-Meier curves: {path.resolve()}")
