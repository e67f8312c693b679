"""Measures what sections need, step by step, and writes what they say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import FlheError
from flhe_lab.bench.host import pinned, quiet
from flhe_lab.bench.turns import Progress
from flhe_lab.tables import page
from flhe_lab.tables.result import Result
from flhe_lab.tables.section import Found, Plan, Section, Step
from flhe_lab.tables.store import Store


@dataclass(frozen=True, slots=True)
class Made:
    """What a run made."""

    results: tuple[Result, ...]  # In the order of sections, those of earlier runs among them
    page: Path  # Where all of them are shown
    measured: int  # Steps that were run
    kept: int  # Steps that were there already
    foreign: tuple[str, ...]
    """Measurements of another machine or of other releases that were made again."""
    failures: tuple[tuple[str, str], ...]  # What a step does, and why it could not


def steps_of(sections: Sequence[Section], plan: Plan) -> list[Step]:
    """All steps, each once, in the order in which they are first needed.

    Raises FlheError: two steps of one key that say different things: a section is wrong.
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
    others: Sequence[Section] = (),
    fresh: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Measure what is not there yet, then write the page and all that it shows.

    A step that fails does not keep others from being measured; the page names the sections that lack
    it.

    Raises ConfigError: what cannot be read or written. FlheError: a section that is wrong.

    `sections` are asked for; the page shows `others` too, in this order, where all of it was measured
    before. `out` is a directory, made if it is not there, with a page and a folder named by `plan`.
    `fresh` measures again what is asked for. `progress` receives (seconds of work done, seconds in all,
    what is going on); both are estimates.
    """
    store = Store(out / plan.name / "measured")
    steps = steps_of(sections, plan)
    found: dict[str, object] = {}
    todo: list[Step] = []
    for step in steps:
        data = None if fresh else store.get(step.key)
        if data is None:
            todo.append(step)
        else:
            found[step.key] = data
    foreign = tuple(store.foreign)
    whole = max(round(sum(step.weight for step in todo)), 1)
    done, failures = 0.0, list[tuple[str, str]]()
    for step in todo:
        try:
            found[step.key] = store.put(step.key, _measure(step, done, whole, progress))
        except (FlheError, ImportError) as error:
            failures.append((step.about, " ".join(str(error).split())))
        done += step.weight
    shown, missing = _ready(sections, others, plan, store, found)
    results = _report(shown, plan, found)
    where = page.write(results, missing, plan, out)
    measured = len(todo) - len(failures)
    kept = len(steps) - len(todo)
    return Made(tuple(results), where, measured, kept, foreign, tuple(failures))


def _ready(
    sections: Sequence[Section],
    others: Sequence[Section],
    plan: Plan,
    store: Store,
    found: dict[str, object],
) -> tuple[list[Section], list[Section]]:
    """Sections whose steps are all there, in the order of `others`, and those asked for that lack one.

    Takes what earlier runs left into `found`.
    """
    names = {section.name for section in sections}
    rest = [section for section in sections if all(other.name != section.name for other in others)]
    shown, missing = [], []
    for section in (*others, *rest):
        keys = [step.key for step in section.steps(plan)]
        if section.name not in names:
            there = {key: store.get(key) for key in keys if key not in found}
            found |= {key: data for key, data in there.items() if data is not None}
        if all(key in found for key in keys):
            shown.append(section)
        elif section.name in names:
            missing.append(section)
    return shown, missing


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
