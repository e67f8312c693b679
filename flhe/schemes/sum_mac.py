"""Sum tags: they verify that an opened sum is exactly its senders' sum, under any scheme.

    tag_(l,u) = tau_(l,u) + sum over d of k_l^(d+1) x_(u,d)   mod Q,   Q = 2^64 - 2^32 + 1,   l = 1, 2

follow the extras of sender u's vector x_u, as digits of as many bits as a value has. k_l and tau
are pseudorandom under a key of the group and of one slot. Tags add like all values, so the sum X of
the senders S has

    sum over S of tag_l - sum over S of tau_(l,u) = sum over d of k_l^(d+1) X_d   mod Q,
    0 <= sum over S of tag_l < |S| Q.

An attacker without that key may change a sum of n integers: add to one, leave a sender out, count
one twice, or add another. It passes only if it hits a root of a polynomial of degree n, twice. The
odds are (n / Q)^2, which is 2^-88 for a million values and 2^-74 for a hundred million. A changed
value changes by less than Q, so by something else than 0. Nor does a refusal confirm a guessed
vector: its tags would have to be guessed too. Tags are linear, hence the masks tau: they tie a tag
to its sender and reveal nothing about k. Powers of one element replace independent ones: they need
no stream of 16 bytes a value, and two tags make up for the degree.

Adding Q to a tag, or subtracting it, passes if the sum of tags stays in its range. This is
harmless: the tag means the same. A member that colludes with the server has the key and can forge.

Source: docs/protocol.md (Tags); Carter, Wegman, "New hash functions and their use in authentication
and set equality" (JCSS 1981); Agrawal, Boneh, "Homomorphic MACs" (ACNS 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.math.prg import PIECE
from flhe.math.ring import Q, powers
from flhe.math.threads import spread
from flhe.schemes.sealed import Slot
from flhe.wire.derive import hkdf

TAGS = 2
TAG_BITS = 64

_MIDDLE = (1 << 63) - (1 << 31)
"""Field elements from here on are negative in halves of 32 bits, both signed."""


@dataclass(frozen=True, slots=True)
class SumMac:
    """The tags of one slot: k and tau are used for one vector of each sender.

    `floats` is the number of coordinates that sparse values may have; extras follow the last one.
    """

    group_key: bytes = field(repr=False)
    slot: Slot
    floats: int
    threads: int = 1

    def tagged(self, plain: Plain, rank: int, bits: int, bound: bytes = b"") -> Plain:
        """Append its tags to a sender's vector, of integers of `bits` bits, sign included.

        `bound` is further data that the tags bind: the digest of a sparse vector's support.
        Otherwise an attacker could remove a coordinate from the support, and learn from the verdict
        whether it is zero.
        """
        sums = self._polynomials(plain)
        tags = [(s + tau) % Q for s, tau in zip(sums, self._masks(rank, bound), strict=True)]
        digits = np.array(split(tags, bits), plain.extras.dtype)
        return plain._replace(extras=np.concatenate([plain.extras, digits]))

    def matching(
        self, opened: Plain, senders: Sequence[int], bits: int, bounds: Sequence[bytes] = ()
    ) -> tuple[Plain, tuple[bool, ...]]:
        """Return an opened sum without its tags, and whether each fits the vectors of `senders`.

        The sums of the tags' digits are the last extras of the opened sum. `senders` are the ranks
        that the sum lists, each once. `bounds` holds `bound` of each, and is empty if vectors are
        dense.
        """
        end = opened.extras.size - lanes(bits)
        tags = join(opened.extras[end:], bits)
        plain = opened._replace(extras=opened.extras[:end])
        left = [a - b for a, b in zip(tags, self._polynomials(plain), strict=True)]
        for rank, bound in zip(senders, bounds or [b""] * len(senders), strict=True):
            left = [a - b for a, b in zip(left, self._masks(rank, bound), strict=True)]
        most = len(senders) * Q
        fits = (rest % Q == 0 and 0 <= tag < most for rest, tag in zip(left, tags, strict=True))
        return plain, tuple(fits)

    def _masks(self, rank: int, bound: bytes) -> list[int]:
        return _elements(hkdf(self.group_key, "sum-tag-mask", *self.slot.context(), rank, bound))

    def _polynomials(self, plain: Plain) -> list[int]:
        """Return the sum over d of k^(d+1) x_d modulo Q, for each k."""
        keys = _elements(hkdf(self.group_key, "sum-tag", *self.slot.context()))
        powers = _Powers.of(keys)
        sums = powers.sums(plain.values, plain.coords, self.threads)
        behind = plain.values.size if plain.coords is None else self.floats
        return [
            (total + extra * pow(key, behind, Q)) * key % Q
            for key, total, extra in zip(keys, sums, powers.sums(plain.extras), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Powers:
    """Powers of both keys: halves of k**0 to k**(BLOCK - 1), (4, BLOCK), and k**BLOCK, (2,)."""

    keys: list[int] = field(repr=False)
    table: NDArray[np.int64] = field(repr=False)
    steps: NDArray[np.uint64] = field(repr=False)

    @classmethod
    def of(cls, keys: list[int]) -> _Powers:
        from flhe.math.tag_kernels import BLOCK

        rows = []
        for key in keys:
            whole = powers(key, BLOCK)
            signed = np.where(whole < np.uint64(_MIDDLE), whole, whole - np.uint64(Q)).view(
                np.int64
            )
            low = signed.astype(np.int32).astype(np.int64)
            rows += [low, (signed - low) >> 32]
        steps = np.array([pow(key, BLOCK, Q) for key in keys], np.uint64)
        return cls(keys, np.array(rows), steps)

    def sums(
        self, values: NDArray[Any], coords: NDArray[np.uint32] | None = None, threads: int = 1
    ) -> list[int]:
        """Return the sum of values[i] k**coords[i] modulo Q, for each k; by default coords[i] = i."""
        from flhe.math import tag_kernels

        longer = True if 8 * values.dtype.itemsize - 1 > tag_kernels.DIGIT else None

        def work(start: int, stop: int) -> list[int]:
            part, first = values[start:stop], start
            if coords is None:
                found = tag_kernels.polynomials(part, longer, self.table, self.steps)
            else:
                places = coords[start:stop]
                found = tag_kernels.sparse_polynomials(part, places, longer, self.table, self.steps)
                first = int(places[0]) // tag_kernels.BLOCK * tag_kernels.BLOCK
            return [int(s) * pow(k, first, Q) for s, k in zip(found, self.keys, strict=True)]

        return _summed(work, values.size, threads)


def _summed(work: Callable[[int, int], list[int]], length: int, threads: int) -> list[int]:
    """Return the sums modulo Q of `work(start, stop)` over the pieces of a vector."""
    parts: list[list[int]] = [[0] * TAGS]
    spread(lambda start, stop: parts.append(work(start, stop)), length, PIECE, threads)
    return [sum(column) % Q for column in zip(*parts, strict=True)]


def lanes(bits: int) -> int:
    """Return the number of integers that carry the tags of one vector."""
    return TAGS * _limbs(bits)


def split(tags: Sequence[int], bits: int) -> list[int]:
    """Return the digits of each tag in base 2**(bits - 1), least significant first."""
    base = bits - 1
    return [tag >> (base * k) & ((1 << base) - 1) for tag in tags for k in range(_limbs(bits))]


def join(digits: NDArray[Any], bits: int) -> list[int]:
    """Invert `split`, also for sums of digits, in Python's integers."""
    limbs, base = _limbs(bits), bits - 1
    rows = digits.reshape(-1, limbs).tolist()
    return [sum(int(d) << (base * k) for k, d in enumerate(row)) for row in rows]


def _limbs(bits: int) -> int:
    return -(-TAG_BITS // (bits - 1))


def _elements(derived: bytes) -> list[int]:
    """Return two field elements of 32 bytes: 128 bits each, so that all are equally likely."""
    return [int.from_bytes(derived[at : at + 16], "little") % Q for at in (0, 16)]
