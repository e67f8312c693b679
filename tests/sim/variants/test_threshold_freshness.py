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

from flhe.keys.identity import Secret
from flhe.math.prg import FieldElements
from flhe.math.prime_ring import PrimeRing
from flhe.math.sampling import Gaussian
from flhe.sim.variants.threshold import keys as threshold_keys
from flhe.sim.variants.threshold import opening as threshold_opening
from flhe.sim.variants.threshold.answers import opening_name
from flhe.sim.variants.threshold.keys import Drawn, Revealed, ThresholdKey
from flhe.sim.variants.threshold.scheme import CHECKS, ThresholdRlwe, common_hats
from flhe.sim.variants.threshold.sealer import ThresholdSealer
from flhe.sim.variants.threshold.sharing import scaled
from tests.laws import OTHER_SLOTS
from tests.sim.variants.parties import (
    CRS,
    SMALL,
    added,
    answers,
    each,
    group,
    lifted,
    small,
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


@pytest.fixture
def scheme() -> ThresholdRlwe:
    return ThresholdRlwe(3, 3, 16, SMALL)


def states_of(scheme: ThresholdRlwe) -> tuple[list[Drawn], list[bytes]]:
    begun = [threshold_keys.begin(scheme, rank, CRS) for rank in range(scheme.cohort)]
    return [state for state, _ in begun], [commitment for _, commitment in begun]


Shown = list[tuple[Revealed, Any, tuple[Any, ...]]]


def shown_by(scheme: ThresholdRlwe, states: list[Drawn], commitments: list[bytes]) -> Shown:
    return [threshold_keys.reveal(scheme, state, commitments) for state in states]


def finished(scheme: ThresholdRlwe, shown: Shown, rank: int) -> ThresholdKey:
    publics, boxes = [b for _, b, _ in shown], [boxes[rank] for _, _, boxes in shown]
    return threshold_keys.finish(scheme, shown[rank][0], publics, boxes)


def test_errors_of_public_parts_are_not_the_keys(scheme: ThresholdRlwe) -> None:
    """b_i + a s_i = p e_i, and with e_i = s_i everybody would know s_i: b_i = (p - a) s_i."""
    states, _ = states_of(scheme)
    a = each(scheme, PrimeRing.inverse, list(common_hats(scheme, CRS)))
    drawn = []
    for state in states:
        own = lifted(scheme, state.own.tolist())
        left = added(scheme, list(state.b), each(scheme, PrimeRing.multiply, a, own))
        errors = [x / (1 << scheme.slots.log_p) for x in small(scheme, left)]
        assert max(map(abs, errors)) <= Gaussian().bound
        assert all(error.is_integer() for error in errors)
        drawn += [np.array(errors, np.int8), state.own]
    assert unlike(drawn, SAME_SAMPLE)


def test_coefficients_of_sharing_polynomials_never_repeat(
    scheme: ThresholdRlwe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By degree, limb and party; of f = s + a (x + x^2), two shares would give s."""
    rows: list[NDArray[np.uint64]] = []
    share = threshold_keys.shares

    def seen(secret: Any, moduli: Any, count: int, terms: Any) -> Any:
        rows.extend(row for term in terms for row in term)
        return share(secret, moduli, count, terms)

    monkeypatch.setattr(threshold_keys, "shares", seen)
    states, commitments = states_of(scheme)
    shown = shown_by(scheme, states, commitments)
    assert len(rows) == 3 * 2 * len(scheme.rings)
    assert unlike(rows, SAME_RESIDUE)
    # From outside: f(1) and f(2) as they travel.
    _, _, boxes = shown[0]
    first, second = (share for share, _ in boxes[:2])
    for limb, ring in enumerate(scheme.rings):
        three = scaled(first[limb], 3, ring.q)
        guess = scaled(ring.subtract(three, second[limb]), pow(2, -1, ring.q), ring.q)
        assert unlike([guess, lifted(scheme, states[0].own.tolist())[limb]], SAME_RESIDUE)


def test_keys_of_pairs_are_of_both_seeds(scheme: ThresholdRlwe) -> None:
    states, commitments = states_of(scheme)
    shown = shown_by(scheme, states, commitments)
    theirs = (shown[1][2][0][0], Secret(bytes(32)))
    changed = [*shown]
    changed[1] = (*shown[1][:2], (theirs, *shown[1][2][1:]))
    own = dataclasses.replace(shown[0][0].drawn, key=bytes(32))
    mine = [*shown]
    mine[0] = (dataclasses.replace(shown[0][0], drawn=own), *shown[0][1:])
    pairs = [finished(scheme, how, 0).pairs[1] for how in (shown, changed, mine)]
    assert len(set(pairs)) == 3
    assert pairs[0] == finished(scheme, shown, 1).pairs[0]


def test_keys_of_pairs_are_of_both_ranks(
    scheme: ThresholdRlwe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all seeds are the same."""
    monkeypatch.setattr(threshold_keys, "_seed", lambda *_: bytes(32))
    shown = shown_by(scheme, *states_of(scheme))
    keys = [finished(scheme, shown, rank) for rank in range(3)]
    assert len({pair for key in keys for pair in key.pairs if pair}) == 3
