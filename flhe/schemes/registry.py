"""Schemes by their names on the wire: flhe's own, and those of other distributions.

    [project.entry-points."flhe.schemes"]
    mine = "my_package:Mine"

See `flhe.plugins`.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Annotated, Any

from flhe.errors import ConfigError
from flhe.plugins import MOST, Plugins
from flhe.schemes.base import Scheme
from flhe.wire.fields import As, Rule
from flhe.wire.record import Form


def _fault(found: Any) -> str:
    """Return why a class is not a scheme; "" if it is one."""
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        return "it is not a subclass of flhe.schemes.base.Scheme"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", found.name):
        return "a name is made of a-z, 0-9 and -"
    form = vars(found).get("FORM")
    if not isinstance(form, Form) or form.error is not ConfigError:
        return "it needs FORM = Form(NAME, error=ConfigError)"
    if not getattr(found, "title", ""):
        return "it needs a title"
    if any(field.default is MISSING for field in fields(found)):
        return "its parameters need defaults (a default, no default_factory)"
    return ""


SCHEMES: Plugins[Scheme] = Plugins(
    "scheme",
    "flhe.schemes",
    {
        "flashe": "flhe.schemes.flashe.scheme:Flashe",
        "sash": "flhe.schemes.sash.scheme:Sash",
        "batchcrypt": "flhe.schemes.batchcrypt.scheme:BatchCrypt",
        "esafl": "flhe.schemes.esafl.scheme:Esafl",
        "fedml-he": "flhe.schemes.fedml_he.scheme:FedmlHe",
        "bfv": "flhe.schemes.bfv.scheme:Bfv",
    },
    _fault,
)


def _from_fields(stored: object) -> Scheme:
    if not (isinstance(stored, list) and len(stored) == 2 and type(stored[0]) is str):
        raise ValueError("a scheme is its name, and its parameters")
    return SCHEMES.named(stored[0]).from_fields(stored[1])


SchemeField = Annotated[
    Scheme,
    As(lambda scheme: [scheme.name, scheme.to_fields()], _from_fields, "", refuses=True),
    Rule("a scheme, and its parameters", lambda value: isinstance(value, Scheme)),
]
"""A scheme as a field of a record."""


def parse(text: str) -> Scheme:
    """Parse a scheme as written in a config: "sash", or "sash unmask=clients".

    Raises ConfigError: an unknown name, a parameter that the scheme does not have, or an invalid
    value.
    """
    name, *said = text.split() or [""]
    kind = SCHEMES.named(name)
    own = {key_of(field.name): field for field in fields(kind)}
    given: dict[str, object] = {}
    for one in said:
        key, _, value = one.partition("=")
        if key not in own or own[key].name in given:
            has = f"it has {', '.join(own)}" if own else "it has none"
            raise ConfigError(
                f"scheme {text[:MOST]!r}: {name} has no parameter {key[:MOST]}, or twice; {has}"
            )
        given[own[key].name] = _read(text, key, value, type(own[key].default))
    return kind(**given)


def written(scheme: Scheme) -> str:
    """Invert `parse`: the name, then the parameters that differ from their defaults."""
    values = ((field, getattr(scheme, field.name)) for field in fields(scheme))
    said = [
        f"{key_of(f.name)}={str(value).lower() if type(value) is bool else value}"
        for f, value in values
        if value != f.default
    ]
    return " ".join([scheme.name, *said])


def key_of(field: str) -> str:
    """Return a parameter's name in configs: "key-bits"."""
    return field.replace("_", "-")


def _read(text: str, key: str, value: str, kind: type) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False}[value]
        return kind(value)
    except (KeyError, ValueError):
        raise ConfigError(
            f"scheme {text[:MOST]!r}: {value[:MOST] or 'nothing'} is no value of {key}"
        ) from None
