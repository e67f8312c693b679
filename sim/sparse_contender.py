# ruff: noqa: N812
"""For a while: the old names of `flhe.sim.bench.sparse`."""

from flhe.sim.bench.sparse import sparse as SparseContender

__all__ = ["SparseContender"]
