"""What must never be the same twice in threshold decryption: noise, masks, shares, and what binds them.

Sums open all the same where one of these repeats, so each is looked at by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.math.prg import FieldElements
from flhe_lab.variants.threshold import keys as threshold_keys
from flhe_lab.variants.threshold import opening as threshold_opening
from flhe_lab.variants.threshold.answers import opening_name
from flhe_lab.variants.threshold.scheme import CHECKS, ThresholdRlwe
from flhe_lab.variants.threshold.sealer import ThresholdSealer
from flhe_lab.variants.threshold.sharing import scaled
from tests.laws import OTHER_SLOTS
from tests.sim.variants.parties import (
    CRS,
    SMALL,
    answers,
    group,
    lifted,
    vectors,
)

OTHER_CRS = bytes(range(1, 33))


def unlike(rows: Sequence[NDArray[Any]], chance: float) -> bool:
    """Whether no two rows agree in more places than independent ones would: `chance`, three times."""
    pairs = itertools.combinations(rows, 2)
    return all(np.mean(one == two) < 3 * chance for one, two in pairs)


SAME_SAMPLE = 0.07
"""Odds that two samples of a discrete Gaussian of sigma 4.53 are equal."""

SAME_RESIDUE = 0.001
"""Far more than the odds that two residues of 30 bits and more are; less than of equal streams."""


# --- encryption ---


def test_noise_of_encryption_never_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """u, e' and e'' of all blocks of two pieces, and of another vector."""
    some = group(3, 2)
    n, step = some.scheme.sizes.n, some.scheme.sizes.step
    drawn: list[NDArray[np.int8]] = []
    write = ThresholdSealer._write

    def seen(self: ThresholdSealer, *how: Any) -> None:
        for samples in how[4:]:
            drawn.extend(samples[: samples.size // n * n].reshape(-1, n))
        write(self, *how)

    monkeypatch.setattr(ThresholdSealer, "_write", seen)
    x = vectors(some.scheme, (step + n) * some.scheme.slots.per - CHECKS)[0]
    some.sealed(0, x)
    some.sealed(0, x[:4096])
    assert len(drawn) == 3 * (step // n + 1) + 2
    assert unlike(drawn, SAME_SAMPLE)


# --- answers ---


class Watched(FieldElements):
    """Elements that are remembered."""

    seen: list[NDArray[np.uint64]]

    def blocks(
        self, first: int, count: int, n: int, scratch: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint64]:
        out = super().blocks(first, count, n, scratch)
        self.seen.extend(out.copy())
        return out


def test_noise_and_masks_of_answers_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """E_j and Z of all blocks of two pieces and of all limbs, for two sums and two T."""
    some = group(3, 2)
    scheme, (n, step) = some.scheme, (some.scheme.sizes.n, some.scheme.sizes.step)
    x = vectors(scheme, (step + n) * scheme.slots.per - CHECKS)
    total, short = (
        some.total(x),
        some.total({r: v[:50] for r, v in x.items()}, OTHER_SLOTS["round"]),
    )
    monkeypatch.setattr(threshold_opening, "FieldElements", Watched)
    Watched.seen = []
    answers(some, total, (0, 1))[0]
    blocks, limbs = step // n + 1, len(scheme.rings)
    # Of two parties: each has noise of its own, and both the same masks.
    noise = 1 + limbs
    assert len(Watched.seen) == 2 * blocks * noise
    rows = {row.tobytes(): row for row in Watched.seen}
    assert len(rows) == blocks * (2 + limbs)
    for sum_, chosen in ((short, (0, 1)), (short, (0, 2))):
        Watched.seen = []
        answers(some, sum_, chosen)
        rows |= {row.tobytes(): row for row in Watched.seen}
    assert len(rows) == (blocks + 2) * (2 + limbs)
    assert unlike(list(rows.values()), SAME_RESIDUE)


def test_an_opening_has_the_name_of_all_that_it_is_of() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 5))
    others = [
        dataclasses.replace(total, slot=OTHER_SLOTS["round"]),
        dataclasses.replace(total, senders=(0, 1)),
        dataclasses.replace(total, data=total.data[::-1].copy()),
    ]
    names = [opening_name(total, chosen) for chosen in ((0, 1), (0, 2), (1, 2))]
    names += [opening_name(other, (0, 1)) for other in others]
    assert len(set(names)) == 6


# --- keys ---


def test_coefficients_of_sharing_polynomials_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """By degree, limb and party; of f = s + a (x + x^2), two shares would give s."""
    scheme = ThresholdRlwe(3, 3, 16, SMALL)
    rows: list[NDArray[np.uint64]] = []
    share = threshold_keys.shares

    def seen(secret: Any, moduli: Any, count: int, terms: Any) -> Any:
        rows.extend(row for term in terms for row in term)
        return share(secret, moduli, count, terms)

    monkeypatch.setattr(threshold_keys, "shares", seen)
    begun = [threshold_keys.begin(scheme, rank, CRS) for rank in range(3)]
    commitments = [commitment for _, commitment in begun]
    shown = [threshold_keys.reveal(scheme, state, commitments) for state, _ in begun]
    assert len(rows) == 3 * 2 * len(scheme.rings)
    assert unlike(rows, SAME_RESIDUE)
    # From outside: f(1) and f(2) as they travel.
    _, _, boxes = shown[0]
    first, second = (share for share, _ in boxes[:2])
    for limb, ring in enumerate(scheme.rings):
        three = scaled(first[limb], 3, ring.q)
        guess = scaled(ring.subtract(three, second[limb]), pow(2, -1, ring.q), ring.q)
        assert unlike([guess, lifted(scheme, begun[0][0].own.tolist())[limb]], SAME_RESIDUE)
