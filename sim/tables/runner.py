"""Measures what sections need, step by step, and writes what they say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import FlheError
from flhe.sim.bench import Progress, pinned, quiet
from flhe.sim.tables import page
from flhe.sim.tables.result import Result
from flhe.sim.tables.section import Found, Plan, Section, Step
from flhe.sim.tables.store import Store


@dataclass(frozen=True, slots=True)
class Made:
    """What a run made.

    Parameters
    ----------
    results : tuple of Result
        In the order of sections.
    page : Path
        Where all of them are shown.
    measured, kept : int
        Steps that were run, and that were there already.
    foreign : tuple of str
        Measurements of another machine or release that were made again.
    """

    results: tuple[Result, ...]
    page: Path
    measured: int
    kept: int
    foreign: tuple[str, ...]


def steps_of(sections: Sequence[Section], plan: Plan) -> list[Step]:
    """All steps, each once, in the order in which they are first needed.

    Raises
    ------
    FlheError
        Two steps of one key that say different things: a section is wrong.
    """
    steps: dict[str, Step] = {}
    for section in sections:
        for step in section.steps(plan):
            known = steps.setdefault(step.key, step)
            if known.about != step.about:
                raise FlheError(f"steps {known.about!r} and {step.about!r} share key {step.key}")
    return list(steps.values())


def run(
    sections: Sequence[Section],
    plan: Plan,
    out: Path,
    *,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Measure what is not there yet, then write `out`/results.md and `out`/results/.

    Parameters
    ----------
    sections : sequence of Section
        What is asked for.
    plan : Plan
        How much.
    out : Path
        A directory; made if it is not there.
    fresh : bool
        Measure everything again.
    progress : callable, optional
        Receives (seconds of work done, seconds in all, what is going on); both are estimates.

    Raises
    ------
    ConfigError
        What cannot be read or written.
    FlheError
        A measurement that failed; those before it are kept.
    """
    folder = out / "results"
    kept_in = folder / ("measured-quickly" if plan.quick else "measured")
    store = Store(kept_in, fresh=fresh)
    steps = steps_of(sections, plan)
    found: dict[str, object] = {}
    todo: list[Step] = []
    for step in steps:
        data = store.get(step.key)
        if data is None:
            todo.append(step)
        else:
            found[step.key] = data
    whole = max(round(sum(step.weight for step in todo)), 1)
    done = 0.0
    for step in todo:
        found[step.key] = store.put(step.key, _measure(step, done, whole, progress))
        done += step.weight
    results = _report(sections, plan, found)
    where = page.write(results, plan, out)
    foreign = tuple(store.foreign)
    return Made(tuple(results), where, len(todo), len(steps) - len(todo), foreign)


def _measure(step: Step, done: float, whole: int, progress: Progress | None) -> object:
    def say(what: str) -> None:
        if progress is not None:
            progress(round(done), whole, f"{step.about}: {what}" if what else step.about)

    say("")
    with quiet():
        if not step.threads:
            return step.work(say)
        with pinned(step.threads):
            return step.work(say)


def _report(sections: Sequence[Section], plan: Plan, found: Found) -> list[Result]:
    results: list[Result] = []
    for section in sections:
        results += section.report(plan, found)
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        raise FlheError("two results of one name: a section is wrong")
    return results
