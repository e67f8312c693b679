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

MIN_ENCRYPTED_NODES = 3
"""Minimum number of nodes for a key agreement."""


CODING = (
    *("scheme", "algorithm", "clipping", "top_k", "select", "rule", "noise"),
    *("client_optimizer", "client_lr", "client_momentum", "client_decay"),
    *("server_optimizer", "server_eta", "server_momentum"),
)
"""Settings that an error of the library may be about."""


def check(settings: Settings) -> None:
    """Refuse conflicting settings; ConfigError."""
    if settings.encrypted and settings.cohort < MIN_ENCRYPTED_NODES:
        raise ConfigError(
            f"scheme={settings.scheme!r} with {settings.cohort} node(s) a round: a sum of two shows "
            f"each member the other's update; use {MIN_ENCRYPTED_NODES} nodes or more, "
            'or scheme="plain"'
        )
    if settings.resume and not settings.state_dir:
        raise ConfigError("resume=true needs state-dir: name the directory of the earlier run")
    _dropouts(settings)
    if settings.clip != 1.0 and settings.clipping != "fixed" and not settings.fair_q:
        raise ConfigError(
            f"clip={settings.clip!r} has no effect with clipping={settings.clipping!r}: leave it out, "
            "or use clipping='fixed'"
        )
    with _said(settings):
        partial = settings.selects.partial
        _ = settings.optimizer
    if not partial and (settings.rule, settings.rest) != ("sensitivity", "clear"):
        raise ConfigError(
            "rule and rest have no effect unless select is below 1: leave them out, or lower it"
        )
    if _lasting(settings) and settings.fraction_train < 1:
        raise ConfigError(
            f"fraction-train={settings.fraction_train} with scheme={settings.scheme!r}: keys that last "
            "longer than a round open sums of all nodes only; have keys made for each round, or use "
            "fraction-train=1.0"
        )
    if settings.fair_q:
        _fair(settings)
    with _said(settings):
        if settings.encrypted:
            settings.terms(settings.max_examples or MIN_LIMIT).for_cohort(settings.nodes)


@contextmanager
def _said(settings: Settings) -> Iterator[None]:
    """Rewrite an error in the run config's words, preceded by the settings that it may be about."""
    try:
        yield
    except FlheError as error:
        changed = {f.name for f in fields(settings) if getattr(settings, f.name) != f.default}
        shown = [name for name in CODING if name in changed] or ["scheme"]
        given = ", ".join(f"{key_of(name)}={getattr(settings, name)!r}" for name in shown)
        names = "|".join(field.name for field in fields(settings) if "_" in field.name)
        text = str(error).replace(
            "give clip as a number, or numbers by layer", "use clipping='fixed'"
        )
        text = re.sub(rf"\b({names})\b", lambda found: key_of(found[1]), text)
        raise ConfigError(f"{given}: {text}") from None


def _dropouts(settings: Settings) -> None:
    """Refuse to lose more nodes than a sum can spare, and a kill in a round outside the run."""
    if settings.kill > settings.num_rounds:
        raise ConfigError(
            f"kill={settings.kill}: the run has num-rounds={settings.num_rounds}; name one of those, "
            "or 0 to kill nobody"
        )
    left = settings.nodes - settings.drops - bool(settings.kill)
    if settings.drops and left < 2:
        beside = " and one killed" if settings.kill else ""
        raise ConfigError(
            f"drops={settings.drops} of {settings.nodes} nodes{beside}: two must remain"
        )
    if _lasting(settings) and left < min(settings.nodes, MIN_ENCRYPTED_NODES):
        raise ConfigError(
            f"scheme={settings.scheme!r} with {left} of {settings.nodes} nodes left by drops or "
            f"kill: the remaining nodes agree on new keys, which needs {MIN_ENCRYPTED_NODES}; use "
            "more"
        )


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


def _lasting(settings: Settings) -> bool:
    """Return whether keys last longer than a round, and open sums of all nodes only."""
    return settings.encrypted and settings.system.needs_all_members
