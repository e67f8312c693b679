"""Tags: what shows that a batch is the sum of just these senders', where ciphertexts do not.

    tag_j = sum over k of r_(j,k) v_(j,k) + tau_(j,u)   mod Q,   Q = 2^64 - 2^32 + 1

lies above the slots of sender u's batch j. r and tau are pseudorandom under a key of the group and
of one slot (the round's, not the batch's). Tags add and are verified as those of
`flhe.schemes.sum_mac`, batch by batch.

Whoever changes a batch without that key (adds to a slot, moves slots, brings another batch, adds one
twice or one of another round) meets this with odds of 2^-63: tags that hold tau say next to nothing of
r, and a slot that is changed is changed by less than Q, so by something else than 0. All 64 bits of a
tag count, because a sum of tags is taken for what it is, between 0 and |S| Q, and not modulo Q.

Paillier needs this. A ciphertext raised to 2^(L k) has its slots k places higher: a relay could
bring one client's value into the slots of a training metric, whose mean members tell, or learn
whether it overflows. So there is one verdict, before any range is checked: a sum that was changed
is refused for that and nothing else.

Source: docs/protocol.md (BatchCrypt, exactly); Agrawal, Boneh, "Homomorphic MACs: MAC-based
integrity for network coding" (ACNS 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import AuthenticationError
from flhe.math.bigint import Big
from flhe.math.prg import BLOCK, CHUNK, AesCtr
from flhe.math.ring import Q
from flhe.schemes.sealed import Slot
from flhe.wire.derive import hkdf

TAG_BITS = 64
WORD = 8
"""Bytes of r and of tau: drawn from all 64 bits, no residue is more than twice as likely as another."""


@dataclass(frozen=True, slots=True)
class BatchMac:
    """The tags of one slot.

    Parameters
    ----------
    group_key : bytes
        K_G of the epoch.
    slot : Slot
        Of the vectors: r and tau are used for one vector of each sender.
    """

    group_key: bytes = field(repr=False)
    slot: Slot

    def make(self, values: NDArray[Any], per: int, rank: int) -> list[int]:
        """Tags of one sender's vector, signed integers (length,): one a batch of `per`, below Q."""
        products = self._products(values, per)
        masks = self._masks(rank, products.size)
        return [(int(p) + int(m)) % Q for p, m in zip(products, masks, strict=True)]

    def verify(
        self,
        tags: Sequence[Big],
        values: NDArray[Any],
        per: int,
        senders: Sequence[int],
    ) -> None:
        """Return if a sum is that of what `senders` encrypted in this slot.

        Slots beyond the last value are not in it: see `flhe.coding.slots.Digits.check`.

        Raises AuthenticationError: it is not.

        Parameters
        ----------
        tags : sequence of int
            What lies above the slots of each batch, whatever it is.
        values : NDArray of signed integers
            What lies in the slots, whatever it is, shape (length,).
        senders : sequence of int
            Who the sum says that it is of, each once.
        """
        products = self._products(values, per)
        left = [int(tag) - int(p) for tag, p in zip(tags, products, strict=True)]
        for rank in senders:
            masks = self._masks(rank, len(left)).tolist()
            left = [a - b for a, b in zip(left, masks, strict=True)]
        most = len(senders) * Q
        if any(rest % Q for rest in left) or not all(0 <= tag < most for tag in tags):
            raise AuthenticationError(
                "the sum is not that of what its senders encrypted in this round: it was altered, or "
                "opened with the wrong senders"
            )

    def _masks(self, rank: int, count: int) -> NDArray[np.uint64]:
        """Tau of one sender, modulo Q, for each batch."""
        key = hkdf(self.group_key, "tag-mask", *self.slot.context())
        # The key is of one slot and this one use; each sender has a stream of its own.
        stream = AesCtr().stream(key, rank)
        return _words(stream, count)

    def _products(self, values: NDArray[Any], per: int) -> NDArray[np.uint64]:
        """Sum over k of r_(j,k) v_(j,k) modulo Q, for each batch."""
        from flhe.math import tag_kernels

        # The key is of one slot and this one use, so the fixed counter block is its only one.
        stream = AesCtr().stream(hkdf(self.group_key, "tag", *self.slot.context()), 0)
        stride = per + per % 2  # words of a batch: whole blocks of AES
        step = max(1, CHUNK // (WORD * stride))
        products = np.empty(-(-values.size // per), np.uint64)
        for at in range(0, products.size, step):
            out = products[at : at + step]
            words = _words(stream, out.size * stride)
            piece = values[at * per : (at + out.size) * per]
            tag_kernels.products(piece, per, words.reshape(-1, stride), out)
        return products


def _words(stream: Any, count: int) -> NDArray[np.uint64]:
    """The next `count` words of a stream."""
    size = WORD * count
    out = np.empty(size + BLOCK, np.uint8)
    for at in range(0, size, CHUNK):
        stream.into(out[at:], min(CHUNK, size - at))
    return out[:size].view(np.dtype("<u8"))
