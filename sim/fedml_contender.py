"""For a while: the old names of `flhe.sim.bench.schemes`."""

from __future__ import annotations

from flhe.sim.bench.contender import Contender, Setting
from flhe.sim.bench.schemes import fedml as FedmlContender  # noqa: N812
from flhe.sim.bench.schemes import fedml_clear

__all__ = ["ClearPart", "FedmlContender"]


def ClearPart(like: Contender, setting: Setting) -> Contender:  # noqa: N802
    """See `fedml_clear`."""
    return fedml_clear(setting, setting.updates(), float(like.name.split()[-1]))
