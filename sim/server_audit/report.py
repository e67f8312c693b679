"""`flhe audit-server`: all experiments on all systems, and the page and the data that come of them."""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import resources
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe_lab.bench import figures
from flhe_lab.bench.host import quiet
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.server_audit.attacks import EXPERIMENTS, TEXTS, Outcome
from flhe_lab.server_audit.encrypted import Encrypted
from flhe_lab.server_audit.flower import FlowerSecAgg, PlainFedAvg
from flhe_lab.server_audit.script import Ask, Script, System
from flhe_lab.server_audit.task import LEAST, MOST, Setting

FORMAT, VERSION = "flhe server audit", 1
COMMAND = "flhe audit-server"

READS = "SASH, server reads"
"""The column whose sites allow `flhe-server-reads`, which they do not by default."""
SYSTEMS: tuple[System, ...] = (
    Encrypted("SASH", Sash("clients")),
    Encrypted("FLASHE", Flashe()),
    Encrypted("ESAFL", Esafl()),
    Encrypted(READS, Sash("server"), reads=True),
    FlowerSecAgg(),
    PlainFedAvg(),
)
ORDER = range(len(SYSTEMS))
OURS = tuple(system.name for system in SYSTEMS if system.signs)

FULL, REPEATS = Setting(), 3
QUICK = Setting(sites=4, features=11, classes=10)

NOISE = 5.0
"""A guess at random is within so many standard deviations, 1 / sqrt(values), of a cosine of 0."""
MARGIN = 0.02
"""By which cosines of one experiment differ from run to run: the rounding is random."""

KNOWN = {
    (system, name): why for system, known in TEXTS["known"].items() for name, why in known.items()
}
"""(system, experiment) in which a server learns more than it reads without any effort, and why."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found: outcomes by system and experiment, one for each repetition."""

    setting: Setting
    repeats: int
    outcomes: Mapping[tuple[str, str], tuple[Outcome, ...]]

    def cosine(self, system: str, experiment: str) -> float | None:
        """Mean over the repetitions; None where counts are sought, or it does not apply."""
        found = [o.cosine for o in self.outcomes[system, experiment] if o.cosine is not None]
        return statistics.fmean(found) if found else None

    def counts(self, system: str, experiment: str) -> int | None:
        """Example counts found exactly, over all repetitions."""
        found = [o.counts for o in self.outcomes[system, experiment] if o.counts is not None]
        return sum(found) if found else None

    @property
    def chance(self) -> float:
        """Cosine that a guess at random stays below."""
        return float(NOISE / (self.setting.values * self.repeats) ** 0.5)

    def exceeding(self) -> set[tuple[str, str]]:
        """Experiments on our systems that give more than listening does, and more than chance."""
        found = set()
        listens, told = EXPERIMENTS[0].name, "counts: told"
        for system in OURS:
            bound = max(self.cosine(system, listens) or 0.0, self.chance) + MARGIN
            for each in EXPERIMENTS:
                cosine, counts = self.cosine(system, each.name), self.counts(system, each.name)
                more = cosine is not None and cosine > bound
                if more or (counts is not None and counts > (self.counts(system, told) or 0)):
                    found.add((system, each.name))
        return found


def audit(setting: Setting, repeats: int, progress: Progress = silent) -> Audit:
    """Run all experiments, each system in processes of its own: Flower's unpacking is for one thread.

    `progress` receives (runs of a system done, in all, the last one).
    """
    outcomes: dict[tuple[str, str], list[Outcome]] = {
        (system.name, each.name): [] for system in SYSTEMS for each in EXPERIMENTS
    }
    tasks = [(i, replace(setting, seed=setting.seed + n)) for n in range(repeats) for i in ORDER]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for done, (found, (i, _)) in enumerate(
            zip(pool.map(undergo, *zip(*tasks, strict=True)), tasks, strict=True), 1
        ):
            for name, outcome in found.items():
                outcomes[SYSTEMS[i].name, name].append(outcome)
            progress(done, len(tasks), SYSTEMS[i].name)
    return Audit(setting, repeats, {key: tuple(found) for key, found in outcomes.items()})


def undergo(index: int, setting: Setting) -> dict[str, Outcome]:
    """All experiments on one of `SYSTEMS`, by name."""
    system = SYSTEMS[index]
    # Refusals are what is looked for.
    with quiet("flwr", "flhe", level=logging.CRITICAL + 1):
        listened = system.run(setting, Script((Ask(),) * setting.rounds))
        return {each.name: each.run(system, setting, listened) for each in EXPERIMENTS}


def run(out: Path, *, quick: bool = False, progress: Progress = silent) -> Audit:
    """Run all, and write the page `out` and its data beside it.

    Raises ConfigError: `out` is no .md, or cannot be written.
    """
    if out.suffix != ".md" or not out.parent.is_dir():
        raise ConfigError(
            f"{out}: must be a .md in a directory that is there; its data goes beside it"
        )
    found = audit(QUICK, 1, progress) if quick else audit(FULL, REPEATS, progress)
    command = f"{COMMAND} {out}{' --quick' if quick else ''}"
    figures.save_data(out, FORMAT, VERSION, to_data(found, command))
    out.write_text(page(found, command, version("flwr")), encoding="utf-8")
    return found


def to_data(found: Audit, made_by: str) -> dict[str, Any]:
    """Setting and outcomes as JSON values."""
    cells = [
        {"system": system, "experiment": name, "outcomes": [asdict(each) for each in outcomes]}
        for (system, name), outcomes in found.outcomes.items()
    ]
    made = {"command": made_by, "flhe": version("flhe"), "flwr": version("flwr")}
    return {
        "made_by": made,
        "setting": asdict(found.setting),
        "repeats": found.repeats,
        "cells": cells,
    }


def cell(found: Audit, system: str, experiment: str) -> str:
    """One cell of the table."""
    outcomes = found.outcomes[system, experiment]
    if outcomes[0].why:
        return "n/a"
    cosine = found.cosine(system, experiment)
    counts = found.counts(system, experiment)
    total = found.setting.sites * found.repeats
    text = f"{counts} of {total}" if cosine is None else f"{cosine:.2f}".replace("-0.00", "0.00")
    if (system, experiment) in found.exceeding():
        text = f"**{text}**"
    refusals = sorted({name for outcome in outcomes for name in outcome.refusals})
    codes = ", ".join(name.removeprefix("flhe/") for name in refusals)
    return f"{text} ({codes})" if codes else text


def rows(found: Audit) -> list[list[str]]:
    """The table: a heading, and a line for each experiment."""
    names = [system.name for system in SYSTEMS]
    lines = [["the server", *names]]
    lines += [[e.name, *(cell(found, name, e.name) for name in names)] for e in EXPERIMENTS]
    return lines


def page(found: Audit, command: str, flwr: str) -> str:
    """Return the page in Markdown; `flwr` is the version of Flower that was attacked."""
    heading, *lines = ["| " + " | ".join(row) + " |" for row in rows(found)]
    rule = "|---" * (len(SYSTEMS) + 1) + "|"
    does = [f"- **{each.name}.** {each.does}" for each in EXPERIMENTS]
    why = sorted({outcome.why for each in found.outcomes.values() for outcome in each} - {""})
    more = [f"- {system}, *{name}*: {KNOWN[system, name]}" for system, name in _known(found)]
    template = resources.files(__package__).joinpath("page.md").read_text(encoding="utf-8")
    return template.format(
        command=command,
        setting=found.setting,
        least=LEAST,
        most=MOST,
        repeats=f"{found.repeats} repetition{'s' if found.repeats > 1 else ''}",
        chance=found.chance,
        table="\n".join([heading, rule, *lines]),
        reads=READS,
        flwr=flwr,
        does="\n".join(does),
        why="\n".join(f"n/a: {each}." for each in why),
        more="\n".join(more) or "Nowhere.",
    )


def _known(found: Audit) -> list[tuple[str, str]]:
    """What exceeds listening, in the table's order; KeyError where nobody has said why."""
    exceeding = found.exceeding()
    return [(s.name, e.name) for e in EXPERIMENTS for s in SYSTEMS if (s.name, e.name) in exceeding]
