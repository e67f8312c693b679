"""Checks of the run config beyond single settings: conflicts, and settings without effect.

Each refuses by ConfigError, in the run config's words. `Terms` makes its own refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from flhe.errors import ConfigError, FlheError
from flhe_app.option import key_of
from flhe_app.settings import FAIR_BITS, MIN_LIMIT, Settings
from flhe_app.tasks import task_named

MIN_ENCRYPTED_NODES = 3
"""Minimum number of nodes for a key agreement."""


def check(settings: Settings) -> None:
    """Refuse conflicting settings; ConfigError."""
    if settings.encrypted and settings.cohort < MIN_ENCRYPTED_NODES:
        raise ConfigError(
            f"scheme={settings.scheme!r} with {settings.cohort} node(s) a round: a sum of two shows "
            f"each member the other's update; use {MIN_ENCRYPTED_NODES} nodes or more, "
            'or scheme="plain"'
        )
    _dropouts(settings)
    with _said(settings):
        select, _ = settings.selects, settings.optimizer
        if settings.encrypted:
            settings.terms(settings.max_examples or MIN_LIMIT).for_cohort(settings.nodes)
    if select.mapped and len(task_named(settings.task).source.shape) == 1:
        raise ConfigError(
            f"select={settings.select} with task={settings.task!r}: a sensitivity map needs gradients "
            "by inputs, and text has none; use rule=magnitude or rule=random, or select=1.0"
        )
    if not select.partial and (settings.rule, settings.rest) != ("sensitivity", "clear"):
        raise ConfigError(
            "rule and rest have no effect unless select is below 1: leave them out, or lower it"
        )
    if settings.encrypted and settings.system.needs_all_members and settings.fraction_train < 1:
        raise ConfigError(
            f"fraction-train={settings.fraction_train} with scheme={settings.scheme!r}: keys that last "
            "longer than a round open sums of all nodes only; have keys made for each round, or use "
            "fraction-train=1.0"
        )
    if settings.fair_q:
        _fair(settings)


@contextmanager
def _said(settings: Settings) -> Iterator[None]:
    """Rewrite an error in the run config's words, preceded by all that is set."""
    try:
        yield
    except FlheError as error:
        values = {field: getattr(settings, field.name) for field in fields(settings)}
        changed = (field for field, value in values.items() if value != field.default)
        given = ", ".join(f"{key_of(field.name)}={values[field]!r}" for field in changed)
        names = "|".join(field.name for field in fields(settings) if "_" in field.name)
        text = str(error).replace(
            "give clip as a number, or numbers by layer", "use clipping='fixed'"
        )
        text = re.sub(rf"\b({names})\b", lambda found: key_of(found[1]), text)
        raise ConfigError(f"{given}: {text}") from None


def _dropouts(settings: Settings) -> None:
    """Refuse rounds that cannot have the updates they need, and a kill in a round outside the run."""
    if settings.kill > settings.num_rounds:
        raise ConfigError(
            f"kill={settings.kill}: the run has num-rounds={settings.num_rounds}; name one of those, "
            "or 0 to kill nobody"
        )
    needed = _needed(settings)
    left = min(settings.cohort, settings.nodes - bool(settings.kill)) - settings.drops
    if left < needed:
        raise ConfigError(
            f"nodes={settings.nodes}, fraction-train={settings.fraction_train}, "
            f"drops={settings.drops}, kill={settings.kill}: a round may be left with {left} updates, "
            f"scheme={settings.scheme!r} needs {needed}; use more nodes, or let fewer drop out"
        )


def _needed(settings: Settings) -> int:
    """Return how many updates a round needs."""
    if not settings.encrypted:
        return 1
    if settings.system.needs_all_members:  # those that remain agree on new keys
        return MIN_ENCRYPTED_NODES
    from flhe.keys.agreement.thresholds import Thresholds
    from flhe.keys.roster.roster import Roster

    colluders = Roster.default_collusion(settings.nodes)
    if not settings.system.opened_together:
        return colluders + 2
    together = settings.system.threshold_of(settings.nodes)
    return max(Thresholds(settings.nodes, colluders).min_set, together)


def _fair(settings: Settings) -> None:
    """Refuse q-FedAvg where its weights would be known, or too coarse."""
    if not MIN_LIMIT <= (settings.max_examples or MIN_LIMIT) <= 1 << 28:
        raise ConfigError(
            f"max-examples={settings.max_examples} with fair-q={settings.fair_q}: weights are rounded "
            f"to whole numbers up to it; use {MIN_LIMIT} to 2**28, or 0"
        )
    if settings.selects.clear:
        raise ConfigError(
            "fair-q with select: weights are secrets, and values in clear reveal them; encrypt "
            "all, or use rest='drop'"
        )
    if not settings.encrypted:
        return
    bits = settings.terms(MIN_LIMIT).resolved(settings.nodes).bits
    if bits < FAIR_BITS:
        raise ConfigError(
            f"fair-q with scheme={settings.scheme!r} and {settings.nodes} nodes: {bits} bits a value "
            f"are left, q-FedAvg's small updates need {FAIR_BITS}; use fewer nodes, or another scheme"
        )
