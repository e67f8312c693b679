# ruff: noqa: N812
"""For a while: the old names of `flhe.sim.bench.schemes`."""

from flhe.sim.bench.schemes import NARROW
from flhe.sim.bench.schemes import esafl as EsaflContender

__all__ = ["NARROW", "EsaflContender"]
