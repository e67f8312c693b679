"""From an epoch's secrets to the roles that use them.

The only place where a scheme meets a key. The server never calls it: it has no epoch.
"""

from __future__ import annotations

from flhe.errors import ConfigError
from flhe.keys.epoch import Epoch
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.flashe import Flashe, FlasheOpener, FlasheSealer


def sealer_for(scheme: Scheme, epoch: Epoch, *, threads: int = 1) -> Sealer:
    """The sealer of the member that holds `epoch`, at its own rank."""
    if isinstance(scheme, Flashe):
        return FlasheSealer(scheme, epoch.group_key, epoch.rank, threads=threads)
    raise ConfigError(f"no sealer for scheme {scheme.name!r}")


def opener_for(scheme: Scheme, epoch: Epoch, *, threads: int = 1) -> Opener:
    """The opener of a member of `epoch`."""
    if isinstance(scheme, Flashe):
        return FlasheOpener(scheme, epoch.group_key, threads=threads)
    raise ConfigError(f"no opener for scheme {scheme.name!r}")
