"""Parties of a threshold decryption in one process, with all that each of them drew, for tests."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.math.ring import PrimeRing, scaled
from flhe.schemes.sealed import Sealed, Slot
from flhe_lab.variants.threshold import keys
from flhe_lab.variants.threshold.adder import PublicKey, ThresholdRlwe
from flhe_lab.variants.threshold.keys import Drawn, ThresholdKey
from flhe_lab.variants.threshold.opening import Party
from flhe_lab.variants.threshold.sealer import ThresholdSealer
from tests.laws import SLOT

NOTHING = np.empty(0, np.int64)
CRS = bytes(range(32))
SMALL = "rns-4096"


class Group(NamedTuple):
    """Parties after setup, and what each of them drew, which is forgotten otherwise."""

    scheme: ThresholdRlwe
    keys: tuple[ThresholdKey, ...]
    drawn: tuple[Drawn, ...]

    @property
    def public(self) -> PublicKey:
        return self.keys[0].public

    @property
    def secret(self) -> NDArray[np.int64]:
        """s, which nobody has: sum of s_i."""
        total: NDArray[np.int64] = np.sum([d.own for d in self.drawn], axis=0, dtype=np.int64)
        return total

    def answers(self, total: Sealed, chosen: Sequence[int]) -> dict[int, bytes]:
        """Of the parties `chosen`, by rank."""
        return {r: Party(self.scheme, self.keys[r]).partial(total, chosen) for r in chosen}

    def sealed(self, rank: int, x: NDArray[Any], slot: Slot = SLOT) -> Sealed:
        return ThresholdSealer(self.scheme, self.public, rank).encrypt(Plain(x, NOTHING), slot)

    def total(self, xs: dict[int, NDArray[Any]], slot: Slot = SLOT) -> Sealed:
        total = None
        for rank, x in xs.items():
            total = self.scheme.add(total, self.sealed(rank, x, slot))
        assert total is not None
        return total


def begun(scheme: ThresholdRlwe) -> tuple[list[Drawn], list[bytes]]:
    """What all have drawn, and their commitments."""
    made = [keys.begin(scheme, rank, CRS) for rank in range(scheme.cohort)]
    return [state for state, _ in made], [told for _, told in made]


def setup(scheme: ThresholdRlwe) -> Group:
    states, commitments = begun(scheme)
    revealed = [keys.reveal(scheme, state, commitments) for state in states]
    held = tuple(
        keys.finish(scheme, state, commitments, [boxes[j] for boxes in revealed])
        for j, state in enumerate(states)
    )
    named = dataclasses.replace(scheme, key_id=held[0].public.key_id)
    return Group(named, held, tuple(states))


@functools.cache
def group(cohort: int, threshold: int, bits: int = 16, ring: str = SMALL) -> Group:
    return setup(ThresholdRlwe(cohort, threshold, bits, ring))


def vectors(scheme: ThresholdRlwe, length: int, seed: int = 1) -> dict[int, NDArray[Any]]:
    rng, bound = np.random.default_rng(seed), scheme.space.bound
    out = {}
    for rank in range(scheme.cohort):
        out[rank] = rng.integers(-bound, bound + 1, length).astype(np.int32)
        out[rank][rng.random(length) < 0.1] = bound if rank % 2 else -bound
    return out


def joined(rows: Sequence[Sequence[int]], moduli: Sequence[int]) -> list[int]:
    """Numbers within q / 2 of 0, by the Chinese remainder theorem."""
    q = math.prod(moduli)
    units = [q // m * pow(q // m, -1, m) for m in moduli]
    sums = (
        sum(r * u for r, u in zip(column, units, strict=True)) % q
        for column in zip(*rows, strict=True)
    )
    return [x - q if x > q // 2 else x for x in sums]


# --- whole polynomials ---

Rows = list[NDArray[np.uint64]]
"""One polynomial: an array (n,) for each limb."""


def length(scheme: ThresholdRlwe) -> int:
    """Values of more than one block, so that whole polynomials are known."""
    return scheme.sizes.n * scheme.slots.per


def polynomial(scheme: ThresholdRlwe, data: Any, count: int) -> Rows:
    """The first block of what travels."""
    rows = []
    for limb in range(len(scheme.rings)):
        whole = np.empty(count, np.uint64)
        scheme.limbs.read(data, count, limb, 0, whole)
        rows.append(whole[: scheme.sizes.n].copy())
    return rows


def halves(scheme: ThresholdRlwe, total: Sealed) -> tuple[Rows, Rows]:
    c0, c1 = scheme.halves(total)
    counts = scheme.counts(total.length)
    return polynomial(scheme, c0, counts[0]), polynomial(scheme, c1, counts[1])


def each(scheme: ThresholdRlwe, work: Callable[..., NDArray[np.uint64]], *rows: Any) -> Rows:
    """`work(ring, ...)` limb by limb."""
    return [work(ring, *limbs) for ring, *limbs in zip(scheme.rings, *rows, strict=True)]


def added(scheme: ThresholdRlwe, *polynomials: Rows) -> Rows:
    total = polynomials[0]
    for other in polynomials[1:]:
        total = each(scheme, PrimeRing.add, total, other)
    return total


def weighed(scheme: ThresholdRlwe, rows: Rows, factors: Sequence[int]) -> Rows:
    """Products with one number, whose residues are `factors`."""
    by_limb = zip(rows, factors, scheme.rings, strict=True)
    return [scaled(row, factor, ring.q) for row, factor, ring in by_limb]


def small(scheme: ThresholdRlwe, rows: Rows) -> list[int]:
    return joined([row.tolist() for row in rows], scheme.slots.moduli)


def lifted(scheme: ThresholdRlwe, numbers: Iterable[int]) -> Rows:
    return [np.array([x % ring.q for x in numbers], np.uint64) for ring in scheme.rings]
