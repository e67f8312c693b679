# ruff: noqa: N812
"""For a while: the old names of `flhe.sim.bench.peers`."""

from flhe.sim.bench.peers import (
    BITS,
    SLOTS,
    paper_bfv,
    plain_modulus,
    shortest_ckks,
    shortest_moduli,
)
from flhe.sim.bench.peers import bfv as TensealBfv
from flhe.sim.bench.peers import ckks as TensealCkks

__all__ = [
    "BITS",
    "SLOTS",
    "TensealBfv",
    "TensealCkks",
    "paper_bfv",
    "plain_modulus",
    "shortest_ckks",
    "shortest_moduli",
]
