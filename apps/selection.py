"""Checks of what the run config says of selection and noise, in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flhe.apps.checks import one_of
from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.schemes.presets import CKKS, DEFAULT_CKKS

if TYPE_CHECKING:
    from flhe.apps.settings import Settings


def check(settings: Settings) -> None:
    """Refuse what cannot go together, and what would do nothing; ConfigError."""
    one_of("ckks-ring", settings.ckks_ring, tuple(CKKS))
    if settings.scheme != "fedml-he" and settings.ckks_ring != DEFAULT_CKKS:
        raise ConfigError(f"ckks-ring is FedML-HE's: leave it out with scheme={settings.scheme!r}")
    if settings.scheme == "fedml-he" and settings.top_k:
        raise ConfigError(
            "scheme='fedml-he' adds up blocks of values: leave top-k out, or use rule='magnitude' "
            "with rest='drop' for one choice of all nodes"
        )
    one_of("rest", settings.rest, ("clear", "drop"))
    one_of("noise-scope", settings.noise_scope, ("clear", "all"))
    try:
        select = settings.selects
    except ConfigError as error:
        raise ConfigError(
            f"select={settings.select} with rule={settings.rule!r}: {error}"
        ) from None
    if not select.partial and (settings.rule, settings.rest) != ("sensitivity", "clear"):
        raise ConfigError(
            "rule and rest say what is encrypted where select is below 1: leave them out, or lower it"
        )
    if select.partial:
        _partial(settings, select)
    if settings.noise:
        _noise(settings, select)
    elif settings.noise_scope != "clear":
        raise ConfigError("noise-scope without noise does nothing: say how much, or leave it out")


def _partial(settings: Settings, select: Select) -> None:
    if not settings.encrypted:
        raise ConfigError(
            "select with scheme='plain': nothing is encrypted there; leave it out, or use an "
            "encrypted scheme"
        )
    if settings.server_reads:
        raise ConfigError(
            "select with unmask='server': who reads the sums sees everything anyway; use "
            "unmask='clients'"
        )
    if settings.top_k:
        raise ConfigError(
            "select with top-k: nodes send other values each, and only what all send is added up; "
            "leave one out"
        )
    if settings.fair_q and select.clear:
        raise ConfigError(
            "fair-q with select: weights are secrets, and values in clear show them; encrypt all, or "
            "use rest='drop'"
        )


def _noise(settings: Settings, select: Select) -> None:
    try:
        _ = settings.laplace
    except ConfigError as error:
        raise ConfigError(f"noise={settings.noise}: {error}") from None
    if not settings.encrypted:
        raise ConfigError("noise with scheme='plain': plain FedAvg adds none; leave it out")
    if settings.clipping != "fixed":
        raise ConfigError(
            f"noise with clipping={settings.clipping!r}: what it is worth depends on thresholds that "
            "are known beforehand; use clipping='fixed'"
        )
    if settings.top_k:
        raise ConfigError(
            "noise with top-k: which values are sent would tell of them; leave one out"
        )
    if settings.noise_scope == "clear" and not select.clear:
        raise ConfigError(
            "noise on what travels in clear, and nothing does: use noise-scope='all', or select less"
        )
