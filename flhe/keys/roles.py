"""From an epoch's secrets to the roles that use them.

The only place where a scheme meets a key. The server never calls it: it has no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, NoKeyError, ProtocolError
from flhe.keys.agreement import joint
from flhe.keys.agreement.answers import combine
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.states import Epoch
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt, BatchCryptOpener, BatchCryptSealer
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.scheme import Esafl, EsaflOpener, EsaflSealer
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.ring import FedmlHe, FedmlHeOpener, FedmlHeSealer
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.selective import Selective, SelectiveOpener, selective_sealer
from flhe.wire.secret import Random


def sealer_for(
    scheme: Scheme, epoch: Epoch, *, mask: Support | None = None, threads: int = 1
) -> Sealer:
    """The sealer of the member that holds `epoch`, at its own rank.

    `mask` says which values are encrypted, where the scheme is for a part of them.
    """
    if isinstance(scheme, Selective):
        assert mask is not None
        inner = sealer_for(scheme.inner, epoch, threads=threads)
        return selective_sealer(scheme, inner, mask, threads=threads)
    if isinstance(scheme, FedmlHe):
        secret = CkksSecret.from_bytes(_secret(epoch))
        return FedmlHeSealer(scheme, secret, epoch.group_key, epoch.rank, threads=threads)
    if isinstance(scheme, Flashe):
        return FlasheSealer(scheme, epoch.group_key, epoch.rank, threads=threads)
    if isinstance(scheme, Sash):
        return SashSealer(scheme, epoch.rank, threads=threads)
    if isinstance(scheme, BatchCrypt):
        return BatchCryptSealer(scheme, _secret_key(epoch), epoch.group_key, epoch.rank, threads)
    if isinstance(scheme, Esafl):
        key = None if scheme.keys == "round" else joint.key_of(epoch)
        return EsaflSealer(scheme, epoch.group_key, epoch.rank, key, threads=threads)
    raise ConfigError(f"no sealer for scheme {scheme.name!r}")


def opener_for(
    scheme: Scheme,
    epoch: Epoch,
    total: Sealed,
    release: Sequence[bytes] = (),
    *,
    mask: Support | None = None,
    threads: int = 1,
) -> Opener:
    """The opener of a member of `epoch` for `total`.

    `release` is what the senders' masking-key agreement released for that sum, where the scheme has
    one; `mask` says which values are encrypted, where the scheme is for a part of them.
    """
    if isinstance(scheme, Selective):
        assert mask is not None
        opener = opener_for(scheme.inner, epoch, total, release, threads=threads)
        return SelectiveOpener(scheme, opener, mask, threads)
    if release and not shares_keys(scheme):
        raise ProtocolError("a release of masking keys, and the scheme agrees on none")
    if isinstance(scheme, Flashe):
        return FlasheOpener(scheme, epoch.group_key, threads=threads)
    if isinstance(scheme, Sash):
        seed = _released(scheme, epoch, total, release)
        return SashOpener(scheme, seed, threads=threads)
    if isinstance(scheme, BatchCrypt):
        return BatchCryptOpener(scheme, _secret_key(epoch), epoch.group_key, threads)
    if isinstance(scheme, FedmlHe):
        secret = CkksSecret.from_bytes(_secret(epoch))
        return FedmlHeOpener(scheme, secret, epoch.group_key, threads=threads)
    if isinstance(scheme, Esafl):
        if scheme.keys == "round":
            seed = _released(scheme, epoch, total, release)
            key = eshe_keys.from_elements(seed, scheme.sizes.n, scheme.cohort)
        else:
            key = joint.key_of(epoch).total
        return EsaflOpener(scheme, epoch.group_key, key, threads=threads)
    raise ConfigError(f"no opener for scheme {scheme.name!r}")


def shares_keys(scheme: Scheme) -> bool:
    """Whether sums are opened by an agreement on masking keys, round by round."""
    return "unmask" in scheme.phases


def _released(
    scheme: Sash | Esafl, epoch: Epoch, total: Sealed, release: Sequence[bytes]
) -> NDArray[np.uint64]:
    """The sum of the senders' keys, out of their answers."""
    circle = SharingParameters.of(epoch, scheme.elements)
    return combine(circle, total.slot, total.senders, release, epoch=epoch)


def new_pair(scheme: Scheme, random: Random) -> tuple[bytes, bytes]:
    """A fresh key pair for a scheme that has one: public part, secret part, encoded."""
    if isinstance(scheme, BatchCrypt):
        key = SecretKey.generate(scheme.key_bits, random)
        return key.public.to_bytes(), key.to_bytes()
    if isinstance(scheme, FedmlHe):
        secret = CkksSecret.generate(scheme.ring, random)
        return secret.public(scheme.sizes).to_bytes(), secret.to_bytes()
    raise ConfigError(f"scheme {scheme.name!r} has no key pair")


def check_pair(scheme: Scheme, public: bytes, secret: bytes) -> None:
    """Refuse a key pair that is not sound, does not fit the scheme, or does not open what it sealed.

    Raises
    ------
    ProtocolError
        What is wrong with it.
    """
    tried: Scheme
    sealers: list[Sealer]
    opener: Opener
    group_key = bytes(32)  # of nobody: nothing that is encrypted here leaves this function
    if isinstance(scheme, BatchCrypt):
        key = SecretKey.from_bytes(secret)
        if key.public != PublicKey.from_bytes(public):
            raise ProtocolError("batchcrypt: the secret key does not belong to the public one")
        key.check(scheme.key_bits)
        tried = replace(scheme, public=key.public)
        sealers = [BatchCryptSealer(tried, key, group_key, rank) for rank in range(2)]
        opener = BatchCryptOpener(tried, key, group_key)
    elif isinstance(scheme, FedmlHe):
        own = CkksSecret.from_bytes(secret)
        own.check(scheme.ring)
        named = scheme.check_public(public)
        if own.public(scheme.sizes) != named:
            raise ProtocolError("fedml-he: the secret key does not belong to the public context")
        tried = replace(scheme, public=named)
        sealers = [FedmlHeSealer(tried, own, group_key, rank) for rank in range(2)]
        opener = FedmlHeOpener(tried, own, group_key)
    else:
        raise ProtocolError(f"a key pair, and scheme {scheme.name!r} has none")
    # The slot is of no round, for the same reason.
    slot = Slot(0, bytes(32), bytes(16), 0, 0, bytes(32), bytes(32))
    bound = scheme.space.bound
    values = np.array([bound, -bound, 0, 1], np.int32)
    total = None
    for sealer in sealers:
        total = tried.add(total, sealer.encrypt(Plain(values, np.empty(0, np.int64)), slot))
    assert total is not None
    if not np.array_equal(opener.decrypt(total), 2 * values.astype(np.int64)):
        raise ProtocolError(f"{scheme.name}: the key pair does not open what it sealed")


def _secret(epoch: Epoch) -> bytes:
    if not epoch.scheme_secret:
        raise NoKeyError("this epoch has no key pair: the group must agree anew")
    return epoch.scheme_secret


def _secret_key(epoch: Epoch) -> SecretKey:
    return SecretKey.from_bytes(_secret(epoch))
