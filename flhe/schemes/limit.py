"""Limit: a bound that a site sets, in its node config and in the roster that all sites sign.

Of both the stricter holds; which one that is, the limit says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Value = bool | int | float


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound, as rosters name it, and node configs behind `flhe-`.

    Parameters
    ----------
    needs : str
        What a value must be, for errors.
    takes : callable
        Whether a value of the default's type is one.
    stricter : callable
        The stricter of two values.
    default, simulated : bool, int or float
        What holds where nobody says, in a deployment and in a simulation.
    """

    name: str
    needs: str
    takes: Callable[[Value], bool]
    stricter: Callable[[Value, Value], Value]
    default: Value
    simulated: Value

    def read(self, text: str) -> Value:
        """A value that a person wrote; ValueError for none."""
        value = type(self.default)(text if type(self.default) is not bool else text == "true")
        if not self.is_value(value) or (type(value) is bool and text not in ("true", "false")):
            raise ValueError(text)
        return value

    def is_value(self, value: object) -> bool:
        """Whether it is a value of this limit; a whole number is a number too."""
        kinds = (int, float) if type(self.default) is float else (type(self.default),)
        return type(value) in kinds and self.takes(value)  # type: ignore[arg-type]

    def taken(self, value: Value) -> Value:
        """A value in the limit's own type."""
        return type(self.default)(value)
