"""For a while: the old names of `flhe.sim.bench`."""

from __future__ import annotations

from collections.abc import Sequence

from flhe.sim.bench.contender import EXAMPLES, SLOT, Contender, Kind, Setting, Vector, Work, worst
from flhe.sim.bench.schemes import flashe as FlasheContender  # noqa: N812
from flhe.sim.bench.schemes import scheme_named as _named
from flhe.sim.bench.schemes import verified

Timed = Work


def scheme_named(name: str, setting: Setting, updates: Sequence[Vector]) -> Contender:
    """See `flhe.sim.bench.schemes.scheme_named`."""
    return _named(name)(setting, updates)


__all__ = [
    "EXAMPLES",
    "SLOT",
    "Contender",
    "FlasheContender",
    "Kind",
    "Setting",
    "Timed",
    "Vector",
    "Work",
    "scheme_named",
    "verified",
    "worst",
]
