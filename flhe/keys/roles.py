"""Roles built from an epoch's secrets.

Only this module gives keys to a scheme. The server never calls it: it has no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from flhe.coding.base import Plain
from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement.answers import combine, opened
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.states import Epoch
from flhe.schemes.base import FREE, Adder, Opener, Sealer, Secrets, Spends
from flhe.schemes.keyed import KeyPairAdder
from flhe.schemes.sealed import Sealed, Slot


def secrets_of(epoch: Epoch) -> Secrets:
    """Return the secrets of the member that holds `epoch`, at its own rank."""
    return Secrets(epoch.group_key, epoch.rank, epoch.scheme_secret)


def sealer_for(adder: Adder, epoch: Epoch, *, threads: int = 1) -> Sealer:
    """Return the sealer of the member that holds `epoch`."""
    return adder.sealer(secrets_of(epoch), threads=threads)


def opener_for(
    adder: Adder, epoch: Epoch, total: Sealed, release: Sequence[bytes] = (), *, threads: int = 1
) -> Opener:
    """Return the opener of a member of `epoch` for `total`.

    `release` is what the senders released for that sum, if they open it together.
    """
    scheme, slot, senders = adder.scheme, total.slot, total.senders
    released: Any = None
    if scheme.per_sum_keys:
        circle = SharingParameters.of(epoch, scheme.elements(adder.cohort))
        released = combine(circle, slot, senders, release, epoch=epoch)
    elif scheme.opened_together:
        size = cast(Any, adder).partial_bytes(total.length)
        circle = SharingParameters.of(epoch, 0, total.digest(), size)
        released = opened(circle, slot, senders, release, epoch=epoch)
    elif release:
        raise ProtocolError("a release of masking keys, but the scheme has none")
    return adder.opener(secrets_of(epoch), released, threads=threads)


def spends_of(adder: Adder, length: int) -> Spends:
    """Return how much of a shared key opening `length` values uses; `FREE` for other keys."""
    shared = adder.scheme.agreement == "shares"
    return cast(Any, adder).spends(length) if shared else FREE


def partial_of(adder: Adder, epoch: Epoch, total: Sealed) -> bytes:
    """Return a member's partial decryption of a closed sum, if it holds a share of the key.

    Raises QuorumError: fewer senders than needed to open a sum.
    """
    need = adder.scheme.threshold_of(adder.cohort)
    if len(total.senders) < need:
        raise QuorumError(f"{len(total.senders)} senders, {need} open a sum together")
    return bytes(cast(Any, adder).partial(secrets_of(epoch), total))


def check_pair(adder: KeyPairAdder, public: bytes, secret: bytes) -> None:
    """Refuse a key pair that is invalid, does not fit the scheme, or does not open its own seal.

    Raises ProtocolError with the fault.
    """
    if adder.scheme.agreement != "key-pair":
        raise ProtocolError(f"a key pair, but scheme {adder.name!r} has none")
    adder.check_pair(public, secret)
    bound = adder.space.bound
    tried = adder.scheme.adder(adder.cohort, bound.bit_length() + 1, public)
    # Under a throwaway group key and slot: no ciphertext made here leaves this function.
    group_key, slot = bytes(32), Slot(0, bytes(32), bytes(16), 0, 0, bytes(32), bytes(32))
    members = [Secrets(group_key, rank, secret) for rank in range(2)]
    values = np.array([bound, -bound, 0, 1], np.int32)
    total = None
    for member in members:
        sealed = tried.sealer(member).encrypt(Plain(values, np.empty(0, np.int64)), slot)
        total = tried.add(total, sealed)
    assert total is not None
    if not np.array_equal(tried.opener(members[0]).decrypt(total), 2 * values.astype(np.int64)):
        raise ProtocolError(f"{adder.name}: the key pair does not open what it sealed")
