"""The analyst: asks for sums, and prints them beside what the pooled table would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console
from rich.table import Table

from flhe.analytics import ask, quantiles
from flhe.analytics.survival import Survival
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SecureSum
from hospitals.task import ASKED, CURVES, SCHEMA, patients

app = ServerApp()
SHARES = (0.25, 0.5, 0.75)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all statistics, print them, draw the curves."""
    config = context.run_config
    hospitals = int(str(config["hospitals"]))
    with SecureSum(grid, scheme=Sash(), min_nodes=hospitals) as secure:
        found = {name: ask(secure, SCHEMA, statistic) for name, statistic in ASKED.items()}
        quartiles = quantiles(secure, SCHEMA, "age", SHARES)
    table = compared(found, quartiles, hospitals)
    Console(width=100).print(table)
    statistic, _, p = found["survival"].log_rank
    print(f"log-rank: chi-square {statistic:.3f}, p {p:.2g}")
    print(f"Kaplan-Meier curves: {drawn(found['survival'], Path(str(config['plot'])))}")


def compared(found: dict[str, Any], quartiles: Any, hospitals: int) -> Table:
    """Each statistic beside that of all patients in one table, and the largest difference."""
    tables = [patients(hospital) for hospital in range(hospitals)]
    pooled = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
    table = Table("statistic", "of sums", "of pooled patients", "largest difference")

    def row(name: str, ours: Any, theirs: Any) -> None:
        one, other = np.ravel(ours).astype(float), np.ravel(theirs).astype(float)
        shown = [
            ", ".join(f"{v:.6g}" for v in each[:4]) + ", ..." * (each.size > 4)
            for each in (one, other)
        ]
        table.add_row(name, *shown, f"{np.abs(one - other).max():.2g}")

    age, pressure = pooled["age"], pooled["pressure"]
    row("patients", found["patients"], age.size)
    row("mean age", found["age"].mean, age.mean())
    row("quartiles of age", quartiles, np.quantile(age, SHARES))
    ours = found["blood pressure"].mean, found["blood pressure"].deviation
    row("blood pressure: mean, deviation", ours, (pressure.mean(), pressure.std(ddof=1)))
    both = found["age and blood pressure"]
    row("covariance", both.covariance, np.cov([age, pressure]))
    row("correlation", both.correlation[0, 1], np.corrcoef(age, pressure)[0, 1])
    row("patients by age", found["ages"], np.histogram(age, ASKED["ages"].edges)[0])
    stages = [
        (pooled["stage"] == s) & (pooled["treated"] == t)
        for s in ("I", "II", "III")
        for t in ("no", "yes")
    ]
    row(
        "patients by stage, treatment",
        found["stage and treatment"].counts,
        [s.sum() for s in stages],
    )
    curves = CURVES.result(SCHEMA, CURVES.answer(SCHEMA, pooled))
    row("survival", found["survival"].survival, curves.survival)
    row("log-rank", found["survival"].log_rank[0], curves.log_rank[0])
    return table


def drawn(curves: Survival, path: Path) -> Path:
    """A picture of the curves, with bands of 95%."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for group, share, error in zip(curves.groups, curves.survival, curves.error, strict=True):
        axes.step(curves.times, share, where="post", label=f"treated: {group}")
        low, high = np.clip(share - 1.96 * error, 0, 1), np.clip(share + 1.96 * error, 0, 1)
        axes.fill_between(curves.times, low, high, step="post", alpha=0.2)
    axes.set(xlabel="days", ylabel="share alive", ylim=(0, 1.02), title="Five hospitals, one sum")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    return path.resolve()
