"""Limits: the terms of a roster's sites for runs, beside the list of members.

The stricter of a roster's limit and a node's own applies; each limit defines which one that is. A
limit that is absent is left to each node's own config; one that is present applies to all nodes. So
a roster with server-reads=true does not suffice: a node still refuses unless its own config allows
it.

Source: docs/protocol.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from flhe.errors import ConfigError
from flhe.schemes.limit import Limit, Value
from flhe.schemes.registry import SCHEMES
from flhe.wire.fields import As, Rule, within
from flhe.wire.record import Form, Record


def _flag(
    name: str, stricter: Callable[[Value, Value], Value], default: bool, meaning: str
) -> Limit:
    """Return a permission, which both sides must give (min), or a duty set by one (max)."""
    needs = "true or false"
    return Limit(name, needs, lambda value: True, stricter, default, not default, meaning)


def _least(name: str, rule: Rule, default: Value, meaning: str) -> Limit:
    """Return a minimum, of which the larger applies; 0 in simulations."""
    return Limit(name, rule.needs, rule.ok, max, default, type(default)(0), meaning)


def _most(name: str, rule: Rule, default: Value, meaning: str) -> Limit:
    """Return a maximum, of which the smaller applies; 0 is none."""

    def fewest(one: Value, other: Value) -> Value:
        return min(one, other) if one and other else one or other

    return Limit(name, rule.needs, rule.ok, fewest, default, default, meaning)


_SHARE = within(0, 1, "a number")
_SCALE = Rule("a number, 0 or more", lambda scale: 0 <= scale < 1e300)
_COUNT = Rule("an integer, 0 or more", lambda most: 0 <= most < 1 << 32)
_EPSILON = Rule("a number, 0 or more", lambda most: 0 <= most <= 1e6)
_DELTA = Rule("a number between 0 and 1", lambda delta: 0 < delta < 1)
_MEMBERS = Rule("an integer, 2 to 1024, or 0", lambda n: n == 0 or 2 <= n <= 1024)

GENERAL = (
    _flag("fresh-keys", max, True, "Keys of one round only. False lets them last."),
    _flag("server-reads", min, False, "The server may read sums, and so the model."),
    _flag("unpermuted", min, False, "The server may see which values a sparse update has."),
    _least(
        "min-bits",
        within(0, 512),
        128,
        "Least security of a scheme's parameters, bits of classical work.",
    ),
    _least(
        "min-select",
        _SHARE,
        1.0,
        "Least share of an update that must be encrypted; the server sees the rest.",
    ),
    _least("min-top-k", _SHARE, 0.01, "Least share of its values that a sparse update may have."),
    _least("min-noise", _SCALE, 0.0, "Least scale of the noise on values in clear."),
    _most(
        "max-releases",
        _COUNT,
        0,
        "Most updates with noise in one federation; 0 for any number.",
    ),
    _most(
        "max-epsilon",
        _EPSILON,
        0.0,
        "Privacy budget of all updates of this site together; 0 for no limit.",
    ),
    Limit(
        "delta", _DELTA.needs, _DELTA.ok, min, 1e-5, 1e-5, "Delta at which that epsilon is counted."
    ),
    _least("min-members", _MEMBERS, 0, "Fewest sites that agree on keys. 0: as the roster says."),
)
"""Limits of every scheme."""


@functools.cache
def known() -> dict[str, Limit]:
    """Return every limit, those of all installed schemes included, by name."""
    return {
        limit.name: limit for limit in (*GENERAL, *(own for s in SCHEMES.all() for own in s.limits))
    }


def _to_fields(said: Mapping[str, Value]) -> list[list[str]]:
    return [[name, _text(value)] for name, value in said.items()]


def _from_fields(stored: Any) -> dict[str, Value]:
    return {name: known()[name].read(text) for name, text in stored}


@dataclass(frozen=True, slots=True)
class Limits(Record):
    """A roster's limits on runs, `said`, by name, ascending; the others are left to each node.

    Raises ConfigError: a limit that no installed scheme knows, or an invalid value.
    """

    FORM = Form("limits", error=ConfigError, row=True, advice="upgrade flhe")

    said: Annotated[
        Mapping[str, Value],
        As(_to_fields, _from_fields, "limits that this flhe knows, each once, ascending"),
    ] = field(default_factory=dict, hash=False)

    def _validate(self) -> None:
        for name, value in self.said.items():
            limit = known().get(name)
            if limit is None:
                raise ConfigError(f"limits: unknown limit {name}; there are {', '.join(known())}")
            if not limit.is_value(value):
                raise ConfigError(f"limits: {name} must be {limit.needs}")
        ordered = {name: known()[name].taken(self.said[name]) for name in sorted(self.said)}
        object.__setattr__(self, "said", ordered)

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Limits:
        """Parse settings, `NAME=VALUE` each, with names as in a node's config without `flhe-`.

        Raises ConfigError: an unknown or repeated name, or an invalid value.
        """
        said: dict[str, Value] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            limit = known().get(name)
            if limit is None:
                raise ConfigError(
                    f"--allow {setting}: unknown parameter; there are {', '.join(known())}"
                )
            if name in said:
                raise ConfigError(f"--allow {setting}: {name} is given twice")
            try:
                said[name] = limit.read(text)
            except ValueError:
                raise ConfigError(f"--allow {setting}: must be {limit.needs}") from None
        return cls(said)

    def lines(self) -> list[str]:
        """Return the limits, `NAME=VALUE` each, as `parse` reads them."""
        return [f"{name}={_text(value)}" for name, value in self.said.items()]

    def tighten(self, own: Mapping[str, Value]) -> dict[str, Value]:
        """Return the stricter of these limits and a node's `own`, which has a value for each."""
        return {
            name: known()[name].stricter(value, self.said[name]) if name in self.said else value
            for name, value in own.items()
        }


NONE = Limits()
"""No limits: each node decides."""


def _text(value: Value) -> str:
    return str(value).lower() if type(value) is bool else f"{value}"
