"""What terms say of selection and noise: which of them go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select, describe
from flhe.errors import ConfigError

if TYPE_CHECKING:
    from flhe.training.terms import Terms


def check(terms: Terms) -> None:
    """Refuse selection and noise that do not go with the rest; ConfigError."""
    if type(terms.select) is not Select:
        raise ConfigError(f"Terms(select={terms.select!r}): give a Select, as Select(ratio=0.1)")
    if terms.noise is not None and type(terms.noise) is not Laplace:
        raise ConfigError(f"Terms(noise={terms.noise!r}): give Laplace(scale), or None")
    if terms.select.partial:
        _check_select(terms)
    if terms.noise is not None:
        _check_noise(terms, terms.noise)


def clear_warning(terms: Terms) -> str | None:
    """Return what a user must know of a part that travels in clear; None where all is encrypted."""
    if not terms.select.clear:
        return None
    what = f"with Laplace noise of scale {terms.noise.scale:g}" if terms.noise else "without noise"
    return (
        f"a part of each update leaves in clear {what} ({describe(terms.select)}): what is in "
        "clear is not private in any accounted sense, with noise or without. What it shows of the "
        "training data depends on model and data; measure it with an attack (`flhe audit`), or "
        "encrypt all (select=1.0)"
    )


def _check_select(terms: Terms) -> None:
    if terms.codec.sparse:
        raise ConfigError(
            "select with top_k: clients choose other values each, and only what all send is added up; "
            'use Select(ratio, "magnitude", rest="drop") for one choice of the group, or leave one out'
        )
    if terms.scheme.reader == "server":
        raise ConfigError(
            "select where the server reads sums: it reads the sum of everything anyway; let the "
            "clients read them, or leave select out"
        )
    if terms.scheme.agreement == "shares":
        raise ConfigError(
            f"select with {terms.scheme.title}: members decrypt whole sums, and do not know "
            "a part of one; leave select out, or use another scheme"
        )
    if terms.select.clear and terms.codec.weighted:
        raise ConfigError(
            "select with weighted=True: values in clear are multiples of a client's example count, and "
            'show it; use weighted=False, or rest="drop", or encrypt all'
        )


def _check_noise(terms: Terms, noise: Laplace) -> None:
    if terms.codec.fitting:
        raise ConfigError(
            "noise with clipping thresholds that are fitted: what noise is worth depends on "
            "thresholds that are known beforehand; give clip as a number, or numbers by layer"
        )
    if terms.codec.sparse:
        raise ConfigError(
            "noise with top_k: which values are sent would tell of them; leave top_k out"
        )
    if noise.scope == "clear" and not terms.select.clear:
        raise ConfigError(
            'noise of scope "clear", and nothing travels in clear: use scope="all", or leave noise out'
        )
