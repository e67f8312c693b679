"""The experiments: what a server does, and what it computes of what it has then.

A row says which script a system plays, and what the server makes of the view: a guess at the victim's
update, or at every site's example count. Where an attack gives nothing, the server is left with what
it has without one, so its guess is never worse than that of a server that only listens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flhe_lab.advise.toml_files import load_toml
from flhe_lab.server_audit.estimates import cosine, denominator, difference, downhill
from flhe_lab.server_audit.script import Ask, Probe, Script, System, View
from flhe_lab.server_audit.task import MOST, VICTIM, Floats, Setting

COUNTS = ("num-examples", "num_examples")
DIGITS = 3
"""Of a mean that members tell the server."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one experiment gave."""

    cosine: float | None = None  # Of the guess and the victim's update
    counts: int | None = None  # How many sites' example counts were found exactly
    refusals: tuple[str, ...] = ()  # Errors of sites
    why: str = ""  # Why it does not apply


Run = Callable[[System, Setting, View], Outcome]
"""(system, setting, what a server has that listened to `rounds` rounds) -> outcome."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A row of the table."""

    name: str
    does: str  # What the server does, in a sentence
    run: Run


def _best(view: View, setting: Setting, found: Floats | None) -> Outcome:
    """The outcome of a guess at the update; an update in clear beats it, a missing one falls back."""
    clear = next((s.clear for s in view.rounds if s.clear is not None), None)
    guess = clear if clear is not None else found if found is not None else view.seen(1).best
    return Outcome(cosine(guess, setting.update(VICTIM)), refusals=tuple(sorted(view.refusals)))


def _asks(
    system: System, setting: Setting, question: Callable[[Probe], Floats | None], *, before: bool
) -> Outcome:
    """A question in the middle of the run; with `before` also before anything else."""
    found: list[Floats] = []

    def ask(probe: Probe) -> None:
        if (answer := question(probe)) is not None:
            found.append(answer)

    view = system.run(setting, Script(before=ask if before else None, aside=ask))
    return _best(view, setting, found[0] if found else None)


def _plays(
    system: System,
    setting: Setting,
    *rounds: Ask,
    guess: Callable[[View], Floats | None] | None = None,
) -> Outcome:
    """What these rounds give; the guess is the mean of the last one, unless said."""
    view = system.run(setting, Script(rounds))
    return _best(view, setting, guess(view) if guess else view.seen(len(rounds)).mean)


def _another_contract(system: System, setting: Setting, _listened: View) -> Outcome:
    if not system.signs:
        return Outcome(why="nothing that apps are told is signed")
    view = system.run(setting, Script(signed=_others_still(setting)))
    return _best(view, setting, view.seen(1).mean)


def _others_still(setting: Setting) -> dict[int, float]:
    return {site: 0.0 for site in range(setting.sites) if site != VICTIM}


def _without(setting: Setting, left_out: int) -> tuple[int, ...]:
    return tuple(site for site in range(setting.sites) if site != left_out)


def _exact(view: View, setting: Setting, found: list[int | None]) -> Outcome:
    right = sum(one == truth for one, truth in zip(found, setting.counts(), strict=True))
    return Outcome(counts=right, refusals=tuple(sorted(view.refusals)))


def _told(_system: System, setting: Setting, listened: View) -> Outcome:
    counts = [listened.numbers(site, *COUNTS) for site in range(setting.sites)]
    return _exact(listened, setting, [int(told[0]) if told else None for told in counts])


def _of_accuracies(_system: System, setting: Setting, listened: View) -> Outcome:
    accuracies = [listened.numbers(site, "accuracy") for site in range(setting.sites)]
    return _exact(listened, setting, [denominator(told, 2 * MOST) for told in accuracies])


def _of_means(system: System, setting: Setting, _listened: View) -> Outcome:
    """Rounds of all and of all but one: their totals differ by that one's count."""
    rounds = Ask(), *(Ask(_without(setting, site)) for site in range(setting.sites))
    view = system.run(setting, Script(rounds))
    totals = [_total(view, number, setting) for number in range(1, len(rounds) + 1)]
    whole, rest = totals[0], totals[1:]
    found = [None if whole is None or part is None else round(whole - part) for part in rest]
    return _exact(view, setting, found)


def _total(view: View, number: int, setting: Setting) -> float | None:
    """Example count of a round's senders: as the server reads it, or out of the mean accuracy."""
    if (weight := view.seen(number).weight) is not None:
        return weight
    # The mean of round n is told when its sum is opened, in the round's own evaluation.
    means = [v for r, _, name, v in view.told if r == number and name == "mean of train_accuracy"]
    off = [0.5 * 10.0 ** (math.floor(math.log10(v)) + 1 - DIGITS) for v in means if v > 0]
    return denominator(means, setting.sites * MOST, max(off)) if off else None


TEXTS = load_toml(Path(__file__).with_name("texts.toml"))
_RUNS: Mapping[str, Run] = {
    "listens": lambda _, s, listened: _best(listened, s, None),
    "plain training": lambda system, s, _: _asks(
        system, s, lambda probe: probe.plain(s.first()), before=True
    ),
    "chosen models": lambda system, s, _: _asks(
        system, s, lambda probe: downhill(probe.loss, s.first()), before=False
    ),
    "a rate for one site": lambda system, s, _: _plays(system, s, Ask(rates=_others_still(s))),
    "a contract for one site": _another_contract,
    "two sums": lambda system, s, _: _plays(
        system,
        s,
        Ask(),
        Ask(_without(s, VICTIM), again=True),
        guess=lambda view: difference(view.seen(1), view.seen(2)),
    ),
    "kept out, then alone": lambda system, s, _: _plays(
        system, s, Ask(dropped=VICTIM), Ask(rates={**_others_still(s), VICTIM: 0.0})
    ),
    "a sum of one": lambda system, s, _: _plays(system, s, Ask((VICTIM,))),
    "counts: told": _told,
    "counts: of accuracies": _of_accuracies,
    "counts: of sums and means": _of_means,
}
EXPERIMENTS = tuple(Experiment(name, TEXTS["does"][name], run) for name, run in _RUNS.items())
"""In the order of the table."""
