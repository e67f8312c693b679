"""Attacks that find the key that no party has, run against threshold decryption without what stops
them, where they must find it, and with it, where they must not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import ProtocolError
from flhe.math.ring import PrimeRing, scaled
from flhe.math.sampling import BOUND
from flhe.schemes.esafl.keys import total_bound
from flhe.schemes.sealed import Sealed
from flhe_lab.variants.threshold import keys as threshold_keys
from flhe_lab.variants.threshold.adder import PublicKey, ThresholdRlwe, common_hats
from flhe_lab.variants.threshold.opening import Party, combine
from flhe_lab.variants.threshold.sealer import ThresholdSealer
from tests.laws import SLOT
from tests.rings import inverse as inverse_transform
from tests.rings import multiply
from tests.sim.variants.parties import (
    CRS,
    NOTHING,
    SMALL,
    Group,
    Rows,
    added,
    begun,
    each,
    group,
    halves,
    length,
    lifted,
    polynomial,
    small,
    vectors,
    weighed,
)


def key_of(scheme: ThresholdRlwe, product: Rows, c1: Rows) -> list[int]:
    """The polynomial whose product with c1 is `product`, as signed numbers."""

    def divided(ring: PrimeRing, above: Any, below: Any) -> NDArray[np.uint64]:
        pairs = zip(ring.forward(above).tolist(), ring.forward(below).tolist(), strict=True)
        quotients = [a * pow(b, -1, ring.q) % ring.q for a, b in pairs]
        return inverse_transform(ring, np.array(quotients, np.uint64))

    return small(scheme, each(scheme, divided, product, c1))


def summed(scheme: ThresholdRlwe, partials: Iterable[bytes]) -> Rows:
    count = scheme.counts(length(scheme))[0]
    return added(scheme, *(polynomial(scheme, np.frombuffer(p, np.uint8), count) for p in partials))


# --- smudging ---


def from_one_opening(group: Group, total: Sealed) -> list[int]:
    """Answers add up to c1 s, if nothing hides it."""
    _, c1 = halves(group.scheme, total)
    return key_of(group.scheme, summed(group.scheme, group.answers(total, (0, 1)).values()), c1)


def test_without_smudging_one_opening_gives_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    both = group(2, 2)
    total = both.total(vectors(both.scheme, length(both.scheme)))
    secret = both.secret.tolist()
    assert from_one_opening(both, total) != secret
    monkeypatch.setattr(Party, "_flood", lambda _self, noise, _ring: np.zeros_like(noise))
    assert from_one_opening(both, total) == secret


# --- masks of pairs ---


def weight(at: int, points: Sequence[int], of: int) -> Fraction:
    """What the value at `of` counts in the value at `at`."""
    out = Fraction(1)
    for point in points:
        if point != of:
            out *= Fraction(at - point, of - point)
    return out


def from_one_answer(
    group: Group, total: Sealed, chosen: Sequence[int], outside: Sequence[int]
) -> list[int]:
    """Noise modulo w from the answer of the last of T, by parties outside T who know the sum."""
    scheme, slots, rank = group.scheme, group.scheme.slots, chosen[-1]
    partials = group.answers(total, chosen)
    opened = combine(scheme, total, chosen, partials)
    c0, c1 = halves(scheme, total)
    known = [0, *(each + 1 for each in outside)]
    own = weight(0, [each + 1 for each in chosen], rank + 1)
    kappa = own * weight(rank + 1, known, 0)

    def modulo(fraction: Fraction, q: int) -> int:
        return fraction.numerator * pow(fraction.denominator, -1, q) % q

    fields = opened.astype(object) + len(total.senders) * slots.bound
    shifts = [1 << slots.width * k for k in range(slots.per)]
    message = lifted(scheme, fields.reshape(-1, slots.per) @ np.array(shifts, object))
    rest = summed(scheme, [partials[rank]])
    for other in outside:
        factor = own * weight(rank + 1, known, other + 1)
        part = each(scheme, multiply, c1, list(group.keys[other].share))
        part = [
            scaled(x, modulo(factor, r.q), r.q) for x, r in zip(part, scheme.rings, strict=True)
        ]
        rest = each(scheme, PrimeRing.subtract, rest, part)
    plain = each(scheme, PrimeRing.subtract, message, c0)
    plain = weighed(scheme, plain, [modulo(kappa, ring.q) for ring in scheme.rings])
    rest = each(scheme, PrimeRing.subtract, rest, plain)
    # w times what is left is p (v E + w E_j).
    w, v = kappa.denominator, kappa.numerator
    left = weighed(scheme, rest, [w * pow(1 << slots.log_p, -1, r.q) for r in scheme.rings])
    numbers = [x * pow(v, -1, w) % w for x in small(scheme, left)]
    noise = [x - w if x > w // 2 else x for x in numbers]
    product = added(scheme, lifted(scheme, [x << slots.log_p for x in noise]), message)
    return key_of(scheme, each(scheme, PrimeRing.subtract, product, c0), c1)


def test_four_parties_outside_do_not_find_the_key_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 of 16: parties 8, 10, 13 and 14 have four shares, see one answer, and know the sum."""
    many = group(16, 5, 8)
    xs = vectors(many.scheme, length(many.scheme))
    total = many.total({rank: xs[rank] for rank in (0, 1, 2, 3, 5, 12)})
    chosen, outside = (0, 1, 3, 5, 12), (8, 10, 13, 14)
    secret = many.secret.tolist()

    assert from_one_answer(many, total, chosen, outside) != secret
    monkeypatch.setattr(Party, "_masks", lambda *_: [])
    assert from_one_answer(many, total, chosen, outside) == secret


# --- who speaks last ---


def test_the_last_to_speak_cannot_choose_the_key() -> None:
    """b_2 = its own key less all others' makes a joint key that it opens alone; COMMIT comes first."""
    scheme = ThresholdRlwe(3, 2, 16, SMALL)
    states, commitments = begun(scheme)
    revealed = [threshold_keys.reveal(scheme, state, commitments) for state in states]
    rogue, _ = threshold_keys.begin(scheme, 2, CRS)
    rows = list(rogue.b)
    for other in states[:2]:
        rows = each(scheme, PrimeRing.subtract, rows, list(other.b))
    chosen = dataclasses.replace(rogue, b=np.array(rows))
    joint = PublicKey(CRS, np.array(added(scheme, *(list(d.b) for d in (*states[:2], chosen)))))
    scheme = dataclasses.replace(scheme, key_id=joint.key_id)
    x = vectors(scheme, length(scheme))[0]
    sealed = ThresholdSealer(scheme, joint, 0).encrypt(Plain(x, NOTHING), SLOT)
    c0, c1 = halves(scheme, sealed)
    own = lifted(scheme, rogue.own.tolist())
    alone = np.array(added(scheme, c0, each(scheme, multiply, c1, own)))
    assert np.array_equal(scheme.slots.lower(alone, x.size, 1), x)

    plain = dataclasses.replace(scheme, key_id=b"")
    boxes = [boxes[0] for boxes in revealed]
    boxes[2] = dataclasses.replace(boxes[2], b=chosen.b)
    with pytest.raises(ProtocolError, match="rank 2 is not the one that it committed to"):
        threshold_keys.finish(plain, states[0], commitments, boxes)


def test_the_public_key_is_an_encryption_of_nothing_known() -> None:
    """b + a s = p e: with s only; with the key of any t - 1 parties that pool theirs it is no noise."""
    some = group(3, 3)
    scheme = some.scheme
    a = each(scheme, inverse_transform, list(common_hats(scheme, CRS)))
    bound = 3 * BOUND << scheme.slots.log_p
    for owns, opens in ((some.drawn, True), (some.drawn[:2], False)):
        key = lifted(scheme, np.sum([d.own for d in owns], axis=0, dtype=int).tolist())
        left = small(scheme, added(scheme, list(some.public.b), each(scheme, multiply, a, key)))
        assert (max(map(abs, left)) <= bound) == opens


# --- what nothing here stops ---


def forged(scheme: ThresholdRlwe, c1: int, round_: int) -> Sealed:
    """A "sum" of all senders whose c0 is 0, and whose first c1 is a constant."""
    total = Sealed(
        scheme.name,
        dataclasses.replace(SLOT, round=round_),
        tuple(range(scheme.cohort)),
        length(scheme),
        np.zeros(scheme.nbytes(length(scheme)), np.uint8),
    )
    half, count = scheme.halves(total)[1], scheme.counts(length(scheme))[1]
    for limb, ring in enumerate(scheme.rings):
        scheme.limbs.write(np.array([c1 % ring.q], np.uint64), half, count, limb, 0)
    return total


def test_a_server_that_lies_finds_the_key_bit_by_bit() -> None:
    """The limit that docs/threshold.md states: every party does what it is asked to.

    c1 = floor(q / 2^(k+1)) is off by q / 2 where bit k of s is 1; noise is below q / 4 here.
    """
    some = group(3, 2)
    scheme, q = some.scheme, some.scheme.slots.q
    assert 4 * scheme.slots.most << scheme.slots.log_p < q
    top = total_bound(scheme.cohort).bit_length()  # two's complement, so one bit more for the sign
    known = np.zeros(scheme.sizes.n, object)
    for bit in range(top + 1):
        c1 = q >> (bit + 1)
        total = forged(scheme, c1, bit)
        partials = some.answers(total, (0, 2))
        left = (np.array(small(scheme, summed(scheme, partials.values())), object) - c1 * known) % q
        known += (abs(2 * left - q) < q // 2).astype(int).astype(object) << bit
        with pytest.raises(ProtocolError, match="or the sum was altered"):
            combine(scheme, total, (0, 2), partials)
    found = np.where(known >> top != 0, known - (2 << top), known)
    assert found.tolist() == some.secret.tolist()


def test_a_server_that_lies_has_one_update_opened() -> None:
    """It adds zeros of its own, in the names of others, as docs/threshold.md says."""
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    lied = some.total({0: np.zeros_like(xs[0]), 1: xs[1], 2: np.zeros_like(xs[2])})
    told = some.answers(lied, (0, 2))
    opened = combine(some.scheme, lied, (0, 2), told)
    assert opened.tolist() == xs[1].tolist()
    # Parties that add up what senders have signed have another sum, and answers to both do not fit.
    theirs = some.answers(some.total(xs), (0, 2))
    with pytest.raises(ProtocolError, match="does not fit"):
        combine(some.scheme, lied, (0, 2), {**told, 2: theirs[2]})
