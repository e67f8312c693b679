"""What must never be the same twice in threshold decryption: noise, masks, and what binds them.

Sums open all the same where one of these repeats, so each is looked at by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.math.prg import FieldElements
from flhe_lab.variants.threshold import keys as threshold_keys
from flhe_lab.variants.threshold import opening as threshold_opening
from flhe_lab.variants.threshold.adder import CHECKS, ThresholdRlwe
from flhe_lab.variants.threshold.opening import opening_name
from flhe_lab.variants.threshold.sealer import ThresholdSealer
from tests.laws import OTHER_SLOTS
from tests.sim.variants.parties import SMALL, group, setup, vectors


def unlike(rows: list[NDArray[Any]], chance: float) -> bool:
    """Whether no two rows agree in more places than independent ones would: `chance`, three times."""
    pairs = itertools.combinations(rows, 2)
    return all(np.mean(one == two) < 3 * chance for one, two in pairs)


SAME_SAMPLE = 0.07
"""Odds that two samples of a discrete Gaussian of sigma 4.53 are equal."""

SAME_RESIDUE = 0.001
"""Far more than the odds that two residues of 30 bits and more are; less than of equal streams."""


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


def test_noise_and_masks_of_answers_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """E_j and Z of all blocks of two pieces and of all limbs, for two sums and two T."""
    rows: dict[bytes, NDArray[np.uint64]] = {}

    class Watched(FieldElements):
        def blocks(self, *how: Any) -> NDArray[np.uint64]:
            out = super().blocks(*how)
            rows.update({row.tobytes(): row.copy() for row in out})
            return out

    some = group(3, 2)
    scheme, (n, step) = some.scheme, (some.scheme.sizes.n, some.scheme.sizes.step)
    x = vectors(scheme, (step + n) * scheme.slots.per - CHECKS)
    total = some.total(x)
    short = some.total({r: v[:50] for r, v in x.items()}, OTHER_SLOTS["round"])
    monkeypatch.setattr(threshold_opening, "FieldElements", Watched)
    # Of two parties: each has noise of its own, and both the same masks.
    each, blocks = 2 + len(scheme.rings), step // n + 1
    for sum_, chosen, count in ((total, (0, 1), blocks), (short, (0, 1), 1), (short, (0, 2), 1)):
        before = len(rows)
        some.answers(sum_, chosen)
        assert len(rows) - before == count * each
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


def test_coefficients_of_sharing_polynomials_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """By degree, limb and party; of f = s + a (x + x^2), two shares would give s."""
    rows: list[NDArray[np.uint64]] = []
    share = threshold_keys.shares

    def seen(secret: Any, moduli: Any, count: int, terms: Any) -> Any:
        rows.extend(row for term in terms for row in term)
        return share(secret, moduli, count, terms)

    monkeypatch.setattr(threshold_keys, "shares", seen)
    scheme = setup(ThresholdRlwe(3, 3, 16, SMALL)).scheme
    assert len(rows) == 3 * 2 * len(scheme.rings)
    assert unlike(rows, SAME_RESIDUE)
