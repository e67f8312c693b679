"""Tags: what shows that a sum is that of just these senders' vectors, where ciphertexts do not.

    tag = sum over d of r_d x_d + tau_u   mod Q,   Q = 2^64 - 2^32 + 1

travels inside the ciphertext, after all other lanes x_d of sender u. r and tau are pseudorandom under a
key of the group and of one slot. Tags add like everything else, so the sum X of the senders S has

    sum over S of tag - sum over S of tau_u = sum over d of r_d X_d   mod Q.

Whoever changes a sum without that key (adds to a lane, moves lanes, adds a vector twice or one of
another slot) meets this with odds of 2^-63: tags that hold tau say nothing of r, and a lane that is
changed is changed by less than Q, so by something else than 0. A member that colludes with the server
has the key and can forge.

Paillier needs this. A ciphertext raised to 2^(L k) moves all its slots up by k: a relay could bring one
client's value into the lanes of a training metric, whose mean members tell, or learn whether it
overflows. So there is one verdict, before any range is checked: a sum that was changed is refused for
that and nothing else. What acceptance still tells is that a change was none: whether all of
somebody's batch is what was guessed.

Source: docs/architecture.md (BatchCrypt, exactly); Agrawal, Boneh, "Homomorphic MACs: MAC-based
integrity for network coding" (ACNS 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import AuthenticationError
from flhe.keys.derive import hkdf
from flhe.math.prg import BLOCK, CHUNK, AesCtr
from flhe.math.ring import Q
from flhe.sealed import Slot

WORD = 8
"""Bytes of r_d and of tau: drawn from all 64 bits, none is more than twice as likely as another."""
_STEP = CHUNK // WORD


def lanes(bits: int) -> int:
    """Lanes that a vector's tag takes, `bits` bits a value: its digits in base 2^(bits - 1)."""
    return -(-8 * WORD // (bits - 1))


def tagged(plain: Plain, bits: int, group_key: bytes, slot: Slot, rank: int) -> Plain:
    """A vector of integers with its tag after its extras.

    Parameters
    ----------
    plain : Plain
        Encoded, dense.
    bits : int
        Bits of one value, sign included.
    group_key : bytes
        K_G of the epoch.
    slot : Slot
        Of this vector: r and tau are used for one vector of each sender.
    rank : int
        The sender's.
    """
    joined = np.concatenate([plain.values.astype(np.int32), plain.extras.astype(np.int32)])
    tag = (_product(joined, group_key, slot) + _mask(group_key, slot, rank)) % Q
    base = bits - 1
    digits = [tag >> (base * k) & ((1 << base) - 1) for k in range(lanes(bits))]
    extras = np.concatenate([plain.extras, np.array(digits, plain.extras.dtype)])
    return plain._replace(extras=extras)


def verified(
    total: NDArray[Any], bits: int, group_key: bytes, slot: Slot, senders: Sequence[int]
) -> NDArray[Any]:
    """The lanes of an opened sum without its tag, shape (length - lanes(bits),), a view.

    Parameters
    ----------
    total : NDArray of signed integers
        All lanes, whatever is in them.
    bits, group_key, slot
        As for `tagged`.
    senders : sequence of int
        Who the sum says that it is of, each once.

    Raises
    ------
    AuthenticationError
        It is not the sum of what they sent in this slot.
    """
    split = total.size - lanes(bits)
    tag = sum(int(digit) << ((bits - 1) * k) for k, digit in enumerate(total[split:]))
    masks = sum(_mask(group_key, slot, rank) for rank in senders)
    if (tag - masks - _product(total[:split], group_key, slot)) % Q:
        raise AuthenticationError(
            "the sum is not that of what its senders encrypted in this round; it is refused"
        )
    return total[:split]


def _mask(group_key: bytes, slot: Slot, rank: int) -> int:
    """Tau of one sender, modulo Q."""
    derived = hkdf(group_key, "tag-mask", *slot.context(), rank, length=WORD)
    return int.from_bytes(derived, "little")


def _product(values: NDArray[Any], group_key: bytes, slot: Slot) -> int:
    """Sum over d of r_d x_d modulo Q."""
    from flhe.math import tag_kernels

    # The key is of one slot and this one use, so the fixed counter block is its only one.
    stream = AesCtr().stream(hkdf(group_key, "tag", *slot.context()), 0)
    out = np.empty(CHUNK + BLOCK, np.uint8)
    words = out[:CHUNK].view(np.dtype("<u8"))
    total = 0
    for at in range(0, values.size, _STEP):
        piece = values[at : at + _STEP]
        stream.into(out, WORD * piece.size)
        total = int(tag_kernels.product(piece, words, np.uint64(total)))
    return total
