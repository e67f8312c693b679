"""What goes into a codec and comes out of it; schemes carry integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reals:
    """Real numbers with absolute value at most `bound` (may be infinite)."""

    bound: float


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers with absolute value at most `bound`, before any of them are added."""

    bound: int


Space = Reals | Integers
