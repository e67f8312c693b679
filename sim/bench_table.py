"""For a while: the old names of `flhe.sim.bench.table`."""

from flhe.sim.bench.table import progress

__all__ = ["progress"]
