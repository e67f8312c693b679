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
    _methods(settings)
    if settings.clip != 1.0 and settings.clipping != "fixed" and not settings.fair_q:
        raise ConfigError(
            f"clip={settings.clip!r} has no effect with clipping={settings.clipping!r}: leave it out, "
            "or use clipping='fixed'"
        )
    _selection(settings)
    _keys(settings)
    with _said(settings, "scheme", "clipping", "top_k", "algorithm"):
        if settings.encrypted:
            settings.terms(settings.max_examples or MIN_LIMIT).for_cohort(settings.nodes)


@contextmanager
def _said(settings: Settings, *keys: str) -> Iterator[None]:
    """Rewrite an error in the run config's words, preceded by the settings of `keys`."""
    try:
        yield
    except FlheError as error:
        changed = [f.name for f in fields(settings) if getattr(settings, f.name) != f.default]
        shown = [key for key in keys if key in changed] or keys[:1]
        given = ", ".join(f"{key_of(key)}={getattr(settings, key)!r}" for key in shown)
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


def _methods(settings: Settings) -> None:
    """Refuse settings that an optimizer or q-FedAvg refuses."""
    own = ("server_optimizer", "server_eta", "server_momentum")
    clients = ("client_optimizer", "client_lr", "client_momentum", "client_decay")
    with _said(settings, *(clients if settings.gradients else own)):
        _ = settings.optimizer
    if settings.gradients and settings.server_reads:
        raise ConfigError(
            f"algorithm='fedsgd' with scheme={settings.scheme!r}: every node steps for itself, so "
            "nodes must read the sums, and the server does; let the nodes (unmask=clients)"
        )
    if settings.fair_q and not MIN_LIMIT <= (settings.max_examples or MIN_LIMIT) <= 1 << 28:
        raise ConfigError(
            f"max-examples={settings.max_examples} with fair-q={settings.fair_q}: weights are rounded "
            f"to whole numbers up to it; use {MIN_LIMIT} to 2**28, or 0"
        )


def _selection(settings: Settings) -> None:
    with _said(settings, "select", "rule"):
        select = settings.selects
    with _said(settings, "noise"):
        _ = settings.laplace
    if not select.partial and (settings.rule, settings.rest) != ("sensitivity", "clear"):
        raise ConfigError(
            "rule and rest have no effect unless select is below 1: leave them out, or lower it"
        )
    if select.clear and settings.fair_q:
        raise ConfigError(
            "fair-q with select: weights are secrets, and values in clear reveal them; encrypt "
            "all, or use rest='drop'"
        )


def _keys(settings: Settings) -> None:
    """Refuse a run whose sums the scheme's keys cannot open."""
    if _lasting(settings) and settings.fraction_train < 1:
        raise ConfigError(
            f"fraction-train={settings.fraction_train} with scheme={settings.scheme!r}: keys that last "
            "longer than a round open sums of all nodes only; have keys made for each round, or use "
            "fraction-train=1.0"
        )
    if not (settings.encrypted and settings.fair_q):
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
