"""From an epoch's secrets to the roles that use them.

The only place where a scheme meets a key. The server never calls it: it has no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from flhe.errors import ConfigError, ProtocolError
from flhe.keys import masking
from flhe.keys.epoch import Epoch
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.flashe import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sash import Sash, SashOpener, SashSealer
from flhe.sealed import Sealed


def sealer_for(scheme: Scheme, epoch: Epoch, *, threads: int = 1) -> Sealer:
    """The sealer of the member that holds `epoch`, at its own rank."""
    if isinstance(scheme, Flashe):
        return FlasheSealer(scheme, epoch.group_key, epoch.rank, threads=threads)
    if isinstance(scheme, Sash):
        return SashSealer(scheme, epoch.rank, threads=threads)
    raise ConfigError(f"no sealer for scheme {scheme.name!r}")


def opener_for(
    scheme: Scheme,
    epoch: Epoch,
    total: Sealed,
    release: Sequence[bytes] = (),
    *,
    threads: int = 1,
) -> Opener:
    """The opener of a member of `epoch` for `total`.

    `release` is what the senders' masking-key agreement released for that sum, where the scheme has
    one.
    """
    if isinstance(scheme, Flashe):
        if release:
            raise ProtocolError("a release of masking keys, and the scheme agrees on none")
        return FlasheOpener(scheme, epoch.group_key, threads=threads)
    if isinstance(scheme, Sash):
        circle = masking.Circle.of(epoch, scheme.parameters_of_prg.dimension)
        seed = masking.combine(circle, total.slot, total.senders, release, epoch=epoch)
        return SashOpener(scheme, seed, threads=threads)
    raise ConfigError(f"no opener for scheme {scheme.name!r}")
