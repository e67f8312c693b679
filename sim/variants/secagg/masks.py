"""Masks of a pairwise masking: from keys to lanes, and off again.

    y_u = x_u + PRG(b_u) + sum over v < u of PRG(s_uv) - sum over v > u of PRG(s_uv)

over u's neighbours v, modulo 2**32 or in the field. s_uv is a key that u and v agree on by X25519. In
the sum over all senders the pairwise masks cancel; those towards members who dropped out, and the
PRG(b_u), come off with what shares of their secrets give.

    s_uv      HKDF(X25519(s_u, S_v), "pairwise-mask" | run_id | roster_hash | plan | min | max)
    PRG(b_u)  under HKDF(b_u, "pairwise-self" | run_id | roster_hash | plan | u)
    commit    HKDF(b_u, "pairwise-commit" | run_id | roster_hash | plan | u)

PRG is AES-256-CTR, stream 0 (or `FieldElements`, for field lanes).

Source: Bonawitz et al., CCS 2017, Sec. 4.2 and Fig. 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from flhe.math import ring
from flhe.math.keystream import BLOCK, CHUNK, Stream
from flhe.math.prg import FieldElements
from flhe.wire.derive import hkdf
from flhe.wire.secret import Secret
from flhe_lab.variants.secagg.plan import Plan

Lanes = NDArray[np.uint32] | NDArray[np.uint64]
Term = tuple[bool, bytes]
"""Whether a mask is added (else taken away), and its key."""

_BATCH = 64
"""Streams that are open at a time."""

_STEP = CHUNK // 4
"""Lanes that are masked at a time: they and their mask fit a core's own cache."""


def agree(secret: X25519PrivateKey, public: bytes, plan: Plan, ours: int, theirs: int) -> Secret:
    """The key s_uv of two members, from the secret of one and the public key of the other."""
    shared = secret.exchange(X25519PublicKey.from_public_bytes(public))
    low, high = min(ours, theirs), max(ours, theirs)
    return hkdf(shared, "pairwise-mask", *plan.context(), low, high)


def self_key(seed: bytes, plan: Plan, rank: int) -> Secret:
    """The key of PRG(b_u)."""
    return hkdf(seed, "pairwise-self", *plan.context(), rank)


def commitment(seed: bytes, plan: Plan, rank: int) -> bytes:
    """What a member publishes of b_u before it shares it, 32 bytes: who puts b_u together can check.

    It says nothing about b_u: that has 256 bits, and the label is no other key's.
    """
    return bytes(hkdf(seed, "pairwise-commit", *plan.context(), rank))


def towards(rank: int, other: int) -> bool:
    """Whether `rank` adds the mask that it shares with `other`, who then takes it away."""
    return other < rank


def apply(plan: Plan, total: NDArray[Any], terms: Iterable[Term]) -> None:
    """Add and take away masks in place, shape (plan.length,).

    Keys are taken from `terms` as they are needed, so there may be a hundred thousand of them.
    """
    if plan.elements:
        for plus, key in terms:
            mask = FieldElements(key).blocks(0, 1, total.size)[0]
            total[:] = (ring.add if plus else ring.subtract)(total, mask)
        return
    scratch = np.empty(CHUNK + BLOCK, np.uint8)
    lanes = scratch[:CHUNK].view(np.uint32)
    todo = iter(terms)
    while batch := list(islice(todo, _BATCH)):
        # Stream 0 from its start: safe because each key is one pair's, or one member's, for one plan,
        # and masks one vector of each.
        streams = [(plus, Stream(key, 0)) for plus, key in batch]
        for at in range(0, total.size, _STEP):
            part = total[at : at + _STEP]
            for plus, stream in streams:
                stream.into(scratch, 4 * part.size)
                change = np.add if plus else np.subtract
                change(part, lanes[: part.size], out=part)
