# ruff: noqa: N812
"""For a while: the old names of `flhe.sim.bench.phe`."""

from flhe.sim.bench.phe import KEY_BITS, library, phe_keys, phe_peers
from flhe.sim.bench.phe import phe_batches as PheBatches
from flhe.sim.bench.phe import phe_values as PheValues

__all__ = ["KEY_BITS", "PheBatches", "PheValues", "library", "phe_keys", "phe_peers"]
