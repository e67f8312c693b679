"""Measures what sections need, step by step, and writes what they say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError, FlheError
from flhe_lab.bench.host import pinned, quiet
from flhe_lab.bench.turns import Progress, silent
from flhe_lab.tables.chart import draw
from flhe_lab.tables.result import LEGEND, Result, to_csv, to_markdown
from flhe_lab.tables.store import Store, here
from flhe_lab.tables.table import Plan, Say, Section, Step


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
    redraw: bool = False,
    progress: Progress = silent,
) -> Made:
    """Measure what is not there yet, then write the page and all that it shows.

    A step that fails does not keep others from being measured; the page names sections that lack it.

    Raises ConfigError: what cannot be read or written; with `redraw`, a measurement that is not there.
    FlheError: a section that is wrong.

    `sections` are asked for; the page shows `others` too, in this order, where all of it was measured
    before. `out` is a directory, made if it is not there, with a page and a folder named by `plan`.
    `fresh` measures again what is asked for. `redraw` measures nothing: the page and its pictures are
    made anew of what is kept, on whichever machine it was measured.
    """
    store = Store(out / plan.name / "measured", anywhere=redraw)
    # Sections that are not asked for are shown where all of theirs is there.
    asked = {section.name for section in sections}
    rest = [section for section in sections if section.name not in {o.name for o in others}]
    steps = steps_of(sections, plan)
    found = {} if fresh else store.having(step.key for step in steps)
    foreign = tuple(store.foreign)
    todo = [step for step in steps if step.key not in found]
    if redraw and todo:
        lacks = f"{len(todo)} of {len(steps)} measurements are missing, such as {todo[0].key}"
        raise ConfigError(f"--redraw: {lacks}; measure them first, without --redraw")
    failures: list[tuple[str, str]] = []
    for done, step in enumerate(todo):

        def say(what: str, done: int = done, about: str = step.about) -> None:
            progress(done, len(todo), f"{about}: {what}" if what else about)

        try:
            found[step.key] = store.put(step.key, _measure(step, say))
        except (FlheError, ImportError) as error:
            failures.append((step.about, " ".join(str(error).split())))
    measured = {step.key for step in steps}
    shown, missing = [], []
    for section in (*others, *rest):
        keys = [step.key for step in section.steps(plan)]
        found |= store.having(key for key in keys if key not in measured)
        if all(key in found for key in keys):
            shown.append(section)
        elif section.name in asked:
            missing.append(section)
    results = [result for section in shown for result in section.report(plan, found)]
    if len({result.name for result in results}) < len(results):
        raise FlheError("two results of one name: a section is wrong")
    machine = _machine(steps_of(shown, plan), store)
    where = write(results, missing, plan, out, machine)
    kept = len(steps) - len(todo)
    return Made(tuple(results), where, len(todo) - len(failures), kept, foreign, tuple(failures))


def _measure(step: Step, say: Say) -> object:
    say("")
    with quiet(), pinned(step.threads) if step.threads else nullcontext():
        return step.work(say)


def _machine(steps: Sequence[Step], store: Store) -> dict[str, Any]:
    """What most steps ran on; its "elsewhere" says which did not, and on what."""
    machines = [store.machines[step.key] for step in steps] or [here()]
    usual, _ = Counter(machine["processor"] for machine in machines).most_common(1)[0]
    on: dict[str, dict[str, None]] = {}
    for step in steps:
        on.setdefault(store.machines[step.key]["processor"], {})[step.about] = None
    others = (f" On {where}: {'; '.join(what)}." for where, what in on.items() if where != usual)
    machine = next(machine for machine in machines if machine["processor"] == usual)
    return {**machine, "elsewhere": "".join(others)}


# --- the page, and what it links to: for each result a CSV, a Markdown file and an SVG ---

SHORT = 24
"""Lines of a table that the page shows in full; longer ones are linked."""


def write(
    results: Sequence[Result],
    missing: Sequence[Section],
    plan: Plan,
    out: Path,
    machine: Mapping[str, Any],
) -> Path:
    """Write all, measured on `machine`; returns the page's path. ConfigError: an unwritable file."""
    folder = out / plan.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for result in results:
            (folder / f"{result.name}.csv").write_text(to_csv(result), encoding="utf-8")
            alone = _alone(result, plan, machine)
            (folder / f"{result.name}.md").write_text(alone, encoding="utf-8")
        path = out / f"{plan.name}.md"
        path.write_text(_page(results, missing, plan, machine), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written ({error.strerror})") from None
    for result in results:
        if result.chart is not None:
            draw(result, folder / f"{result.name}.svg")
    return path


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _mode(plan: Plan) -> str:
    return "--quick" if plan.quick else "--full"


def _alone(result: Result, plan: Plan, machine: Mapping[str, Any]) -> str:
    made = "`flhe tables {}`, flhe {flhe}, {processor}.{elsewhere}".format(_mode(plan), **machine)
    head = f"# {result.source}: {result.title}"
    return f"{head}\n\n{_notes(result)}{to_markdown(result)}\n{LEGEND}\nMade by {made}\n"


def _notes(result: Result) -> str:
    return "".join(f"{note}\n\n" for note in result.notes)


def _page(
    results: Sequence[Result], missing: Sequence[Section], plan: Plan, machine: Mapping[str, Any]
) -> str:
    parts = [_text("intro.md").format(mode=_mode(plan), legend=LEGEND, **machine)]
    if missing:
        names = ", ".join(section.name for section in missing)
        parts.append(f"Missing, because a measurement failed: {names}.\n")
    paper = ""
    for result in results:
        whose = result.source.partition(",")[0]
        if whose != paper:
            parts.append(f"## {whose}\n")
            paper = whose
        parts.append(f"### {result.source}: {result.title}\n")
        if result.chart is not None:
            parts.append(f"![{result.title}]({plan.name}/{result.name}.svg)\n")
        parts.append(_notes(result).rstrip("\n") + "\n" if result.notes else "")
        table = to_markdown(result)
        links = f"[CSV]({plan.name}/{result.name}.csv), [Markdown]({plan.name}/{result.name}.md)"
        if table.count("\n") <= SHORT + 2:
            parts.append(f"{table}\n{links}\n")
        else:
            parts.append(f"All {len(result.entries)} numbers: {links}\n")
    return "\n".join(part for part in (*parts, _text("left_out.md")) if part)
