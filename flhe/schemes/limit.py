"""Limit: a bound that a site sets, in its node config and in the roster that all sites sign.

The stricter of the two applies; the limit defines which one that is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Value = bool | int | float


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound; its name in rosters is its name in node configs without `flhe-`.

    Parameters
    ----------
    needs : str
        Description of a valid value, for errors.
    takes : callable
        Return whether a value of the default's type is valid.
    stricter : callable
        Return the stricter of two values.
    default, simulated : bool, int or float
        Value if the site sets none, in a deployment and in a simulation.
    help : str
        Meaning, one line.
    """

    name: str
    needs: str
    takes: Callable[[Value], bool]
    stricter: Callable[[Value, Value], Value]
    default: Value
    simulated: Value
    help: str = ""

    def read(self, text: str) -> Value:
        """Parse a value written by a person; ValueError for an invalid one."""
        value = type(self.default)(text if type(self.default) is not bool else text == "true")
        if not self.is_value(value) or (type(value) is bool and text not in ("true", "false")):
            raise ValueError(text)
        return value

    def is_value(self, value: object) -> bool:
        """Return whether `value` is a value of this limit; a whole number is a number too."""
        kinds = (int, float) if type(self.default) is float else (type(self.default),)
        return type(value) in kinds and self.takes(value)  # type: ignore[arg-type]

    def taken(self, value: Value) -> Value:
        """Return a value in the limit's own type."""
        return type(self.default)(value)
