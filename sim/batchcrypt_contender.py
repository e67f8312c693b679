# ruff: noqa: N812
"""For a while: the old names of `flhe.sim.bench.schemes`."""

from flhe.sim.bench.schemes import batchcrypt as BatchcryptContender

__all__ = ["BatchcryptContender"]
