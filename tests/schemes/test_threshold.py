"""Threshold decryption: every set of t parties opens the sum, fewer open nothing, each answers once.

Ciphertexts and answers are read a second time with Python's integers, whole products by way of one
long integer, and the key that no party has is put together from what all of them drew.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, QuorumError, RangeError, ReuseError
from flhe.keys import canonical, threshold_keys
from flhe.keys.threshold_keys import Drawn, Revealed, ThresholdKey
from flhe.math.prime_ring import ntt_primes
from flhe.math.prime_sharing import at_zero, scaled, shares
from flhe.math.sampling import SIGMA
from flhe.schemes.base import Scheme, Sealer
from flhe.schemes.presets import BAR, ESHE
from flhe.schemes.threshold import CHECKS, PublicKey, ThresholdRlwe
from flhe.schemes.threshold_answers import Answered, Partial
from flhe.schemes.threshold_opening import Party, combine
from flhe.schemes.threshold_sealer import ThresholdSealer
from flhe.schemes.threshold_sizes import SMUDGING, Flooded, ciphertext_noise, sizes_for
from flhe.sealed import Sealed, Slot, from_bytes, to_bytes
from flhe.sim.lattice import primal_errors
from tests.laws import OTHER_SLOTS, SLOT, drawn
from tests.math.test_prime_ring import product

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

    def party(self, rank: int, **how: Any) -> Party:
        return Party(self.scheme, self.keys[rank], **how)

    def sealed(self, rank: int, x: NDArray[Any], slot: Slot = SLOT, **how: Any) -> Sealed:
        return ThresholdSealer(self.scheme, self.public, rank, **how).encrypt(
            Plain(x, NOTHING), slot
        )

    def total(self, xs: dict[int, NDArray[Any]], slot: Slot = SLOT) -> Sealed:
        total = None
        for rank, x in xs.items():
            total = self.scheme.add(total, self.sealed(rank, x, slot))
        assert total is not None
        return self.scheme.close(total)


def setup(scheme: ThresholdRlwe, crs: bytes = CRS) -> Group:
    everyone = range(scheme.cohort)
    states, commitments = zip(
        *(threshold_keys.begin(scheme, rank, crs) for rank in everyone), strict=True
    )
    revealed = [threshold_keys.reveal(scheme, state, commitments) for state in states]
    publics = [b for _, b, _ in revealed]
    keys = tuple(
        threshold_keys.finish(scheme, state, publics, [boxes[j] for _, _, boxes in revealed])
        for j, (state, _, _) in enumerate(revealed)
    )
    named = dataclasses.replace(scheme, key_id=keys[0].public.key_id)
    return Group(named, keys, states)


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


def done(_state: Answered) -> None:
    """A claim that is kept nowhere."""


def answers(group: Group, total: Sealed, chosen: Sequence[int], **how: Any) -> list[Partial]:
    """Answers of parties that remember nothing."""
    parties = [group.party(rank, **how) for rank in chosen]
    return [p.partial(Answered(), total, total.slot, chosen, done)[0] for p in parties]


# --- Python's integers ---


def residues(scheme: ThresholdRlwe, data: NDArray[np.uint8], count: int) -> list[list[int]]:
    """What lies in packed limbs, bit by bit."""
    bits = scheme.limbs.bits
    nbytes = (count * bits + 7) // 8
    numbers = (
        int.from_bytes(data[limb * nbytes : (limb + 1) * nbytes].tobytes(), "little")
        for limb in range(len(scheme.rings))
    )
    return [[whole >> bits * i & (1 << bits) - 1 for i in range(count)] for whole in numbers]


def joined(rows: Sequence[Sequence[int]], moduli: Sequence[int]) -> list[int]:
    """Numbers within q / 2 of 0, by the Chinese remainder theorem."""
    q = math.prod(moduli)
    units = [q // m * pow(q // m, -1, m) for m in moduli]
    sums = (
        sum(r * u for r, u in zip(column, units, strict=True)) % q
        for column in zip(*rows, strict=True)
    )
    return [x - q if x > q // 2 else x for x in sums]


def times(
    scheme: ThresholdRlwe, row: list[list[int]], key: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Products of one block with a polynomial, limb by limb."""
    moduli = scheme.slots.moduli
    return [[x % q for x in product(a, list(k))] for a, k, q in zip(row, key, moduli, strict=True)]


def opened(group: Group, total: Sealed) -> tuple[list[int], list[int]]:
    """M and E of a ciphertext of one block: c0 + c1 s = p E + M."""
    scheme, moduli = group.scheme, group.scheme.slots.moduli
    counts = scheme.counts(total.length)
    assert counts[1] == scheme.sizes.n
    c0, c1 = (residues(scheme, h, c) for h, c in zip(scheme.halves(total), counts, strict=True))
    key = [[int(x) % q for x in group.secret] for q in moduli]
    rows = [
        [(x + y) % q for x, y in zip(one, two, strict=False)]
        for one, two, q in zip(c0, times(scheme, c1, key), moduli, strict=True)
    ]
    p = 1 << scheme.slots.log_p
    numbers = joined(rows, moduli)
    return [x % p for x in numbers], [x // p for x in numbers]


def unpacked(scheme: ThresholdRlwe, messages: list[int], length: int, senders: int) -> list[int]:
    """Values out of slots."""
    slots = scheme.slots
    mask, away = (1 << slots.width) - 1, senders * slots.bound
    values = [(m >> slots.width * k & mask) - away for m in messages for k in range(slots.per)]
    return values[:length]


def smudging(group: Group, total: Sealed, partial: Partial) -> list[int]:
    """E_j of an answer, with t = 2 and one block: what is left of it without share and mask."""
    scheme, moduli = group.scheme, group.scheme.slots.moduli
    key, n = group.keys[partial.rank], scheme.sizes.n
    counts = scheme.counts(total.length)
    c1 = residues(scheme, scheme.halves(total)[1], counts[1])
    held = [
        [at_zero(key.rank, partial.chosen, q) * int(x) % q for x in row]
        for row, q in zip(key.share, moduli, strict=True)
    ]
    masks = [
        [sign * x for x in mask.block(0, n).tolist()]
        for limb, ring in enumerate(scheme.rings)
        for sign, mask in _signed(
            group.party(key.rank)._masks(partial.opening, partial.chosen, limb, ring)
        )
    ]
    known = zip(
        times(scheme, c1, held), masks, residues(scheme, partial.data, counts[0]), strict=True
    )
    p_inverse = [pow(1 << scheme.slots.log_p, -1, q) for q in moduli]
    rows = [
        [(d - x - z) * inverse % q for x, z, d in zip(product_, mask, row, strict=False)]
        for (product_, mask, row), inverse, q in zip(known, p_inverse, moduli, strict=True)
    ]
    return joined(rows, moduli)


def _signed(masks: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(1 if sign > 0 else -1, mask) for sign, mask in masks]


# --- what it is for ---


def test_two_of_two() -> None:
    both = group(2, 2)
    xs = vectors(both.scheme, 70_001)  # several pieces
    total = both.total(xs)
    out = combine(both.scheme, total, answers(both, total, (0, 1)))
    assert out.dtype == np.int32
    assert out.tolist() == (xs[0] + xs[1]).tolist()


def test_threads_make_the_same() -> None:
    both = group(2, 2)
    x = vectors(both.scheme, 140_003)[0]
    one, two = (both.sealed(0, x, threads=n, random=drawn(CRS, 0)) for n in (1, 3))
    assert np.array_equal(one.data, two.data)
    total = both.scheme.add(both.sealed(1, x), one)
    lone, many = (answers(both, total, (0, 1), threads=n, random=drawn(CRS, 1)) for n in (1, 3))
    assert lone[0].to_bytes() == many[0].to_bytes()
    assert lone[1].to_bytes() == many[1].to_bytes()


def test_every_three_of_five() -> None:
    five = group(5, 3, 16, "rns-8192")
    xs = vectors(five.scheme, 70_000)  # two blocks, the last one part empty
    total = five.total(xs)
    expected = sum(x.astype(np.int64) for x in xs.values())
    for chosen in itertools.combinations(range(5), 3):
        partials = answers(five, total, chosen, threads=2)
        out = combine(five.scheme, total, partials[::-1], threads=2)
        assert np.array_equal(out, expected)


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_any_senders_any_lengths_any_bits(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([2, 8, 16, 32]))
    some = group(4, data.draw(st.sampled_from([2, 3])), bits)
    length = data.draw(st.sampled_from([0, 1, 7, 4095, 4096, 4097, 9000]))
    senders = data.draw(st.sets(st.integers(0, 3), min_size=2))
    chosen = data.draw(st.permutations(range(4)))[: some.scheme.threshold]
    xs = {r: x for r, x in vectors(some.scheme, length).items() if r in senders}
    total = some.total(xs)
    assert total.senders == tuple(sorted(senders))
    assert total.data.size == some.scheme.nbytes(length)
    partials = answers(some, from_bytes(to_bytes(total)), chosen, min_senders=2)
    out = combine(some.scheme, total, [Partial.from_bytes(p.to_bytes()) for p in partials])
    assert out.tolist() == np.sum(list(xs.values()), axis=0, dtype=np.int64).tolist()


def test_extras_follow_values() -> None:
    both = group(2, 2)
    total = None
    for rank in range(2):
        plain = Plain(np.arange(5, dtype=np.int32), np.array([70 + rank, -3]))
        sealer = ThresholdSealer(both.scheme, both.public, rank, threads=2)
        sealer.prepare(SLOT, 7)
        total = both.scheme.add(total, sealer.encrypt(plain, SLOT))
    assert total is not None
    out = combine(both.scheme, total, answers(both, total, (0, 1)))
    assert out.tolist() == [0, 2, 4, 6, 8, 141, -6]


def test_it_is_a_scheme() -> None:
    both = group(2, 2)
    assert isinstance(both.scheme, Scheme)
    assert isinstance(ThresholdSealer(both.scheme, both.public, 0), Sealer)
    assert canonical.dumps(both.scheme.parameters())
    assert both.scheme.parameters()["key_id"] == both.public.key_id


def test_the_examples_in_the_documentation() -> None:
    """They run, one after the other, and the sums that they print are those in the comments."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "threshold.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    for group_, sums in ((names["two"], [11, 22, 33]), (names["five"], [11111, 22222, 33333])):
        assert group_ == sums


# --- against Python's integers ---


def test_ciphertexts_hold_values_below_noise() -> None:
    some = group(3, 2)
    xs = vectors(some.scheme, 5000)
    total = some.total(xs)
    messages, noise = opened(some, total)
    assert unpacked(some.scheme, messages, 5000, 3) == sum(xs.values()).tolist()  # type: ignore[union-attr]
    assert max(map(abs, noise)) <= some.scheme.slots.hidden
    # u e + e'' s + e' of three senders under a key of three parties.
    spread = SIGMA * math.sqrt(3 * (2 * 3 * some.scheme.sizes.n * SIGMA**2 + 1))
    assert 0.9 < np.std(noise) / spread < 1.1


def test_smudging_is_uniform_and_2_to_the_40_times_as_large() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 2 * some.scheme.sizes.n - CHECKS))
    slots = some.scheme.slots
    top = 1 << slots.smudging
    assert top >= slots.hidden << SMUDGING
    seen = []
    for partial in answers(some, total, (0, 2)):
        seen.append(smudging(some, total, partial))
        assert all(-top <= e < top for e in seen[-1])
        scaled_ = np.array(seen[-1], np.float64) / top
        assert abs(scaled_.mean()) < 5 * math.sqrt(1 / 3 / scaled_.size)
        counts = np.histogram(scaled_, 16, (-1, 1))[0]
        expected = scaled_.size / 16
        assert ((counts - expected) ** 2 / expected).sum() < 15 + 9 * math.sqrt(30)
    # The noise that it hides, 2^40 times smaller, and independent of it and of the other party's.
    _, noise = opened(some, total)
    assert max(map(abs, noise)) << SMUDGING <= top
    for one, two in ((seen[0], seen[1]), (seen[0], noise)):
        assert abs(np.corrcoef(np.array(one, float), np.array(two, float))[0, 1]) < 5 / 64


def test_room_is_proven() -> None:
    for ring, cohort, threshold in itertools.product(ESHE, (2, 5, 10), (2, 5)):
        if threshold > cohort or ring == "goldilocks-4096":
            continue
        sizes = sizes_for(ESHE[ring], cohort, threshold, 8)
        slots = sizes.slots
        assert isinstance(slots, Flooded)
        p, q = 1 << slots.log_p, math.prod(slots.moduli)
        assert (
            q > 2 * p * (ciphertext_noise(sizes.n, cohort) + threshold * 2**slots.smudging) + 2 * p
        )
        assert q.bit_length() <= ESHE[ring].log_q
        assert primal_errors(sizes.n, math.log2(q), SIGMA).bits > BAR
        with pytest.raises(ConfigError, match="do not fit a modulus"):
            dataclasses.replace(slots, per=slots.per + 64 // slots.width + 1)
        with pytest.raises(ConfigError, match=r"2\^40 times the noise"):
            dataclasses.replace(slots, smudging=slots.smudging - 1, hidden=slots.hidden * 2)


# --- sharing ---


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_t_shares_weigh_up_to_the_secret(threshold: int, more: int, rnd: Any) -> None:
    count, moduli = threshold + more, ntt_primes(8, 40, 2)
    rows = [
        [np.array([rnd.randrange(q) for _ in range(8)], np.uint64) for q in moduli]
        for _ in range(threshold)
    ]
    held = shares(rows[0], moduli, count, rows[1:])
    chosen = sorted(rnd.sample(range(count), threshold))
    for limb, q in enumerate(moduli):
        total = [0] * 8
        for rank in chosen:
            weighed = scaled(held[rank, limb], at_zero(rank, chosen, q), q)
            total = [(x + int(y)) % q for x, y in zip(total, weighed, strict=True)]
        assert total == rows[0][limb].tolist()


def test_fewer_shares_are_uniform_whatever_the_secret() -> None:
    """All polynomials of degree 2 over Z_17: two values together take each pair once."""
    q, everyone = 17, np.arange(17, dtype=np.uint64)
    first, second = (x.reshape(-1) for x in np.meshgrid(everyone, everyone))
    for secret in (0, 1, 11):
        value = np.full(q * q, secret, np.uint64)
        held = shares([value], [q], 5, [[first.copy()], [second.copy()]])[:, 0]
        for one, two in itertools.combinations(range(5), 2):
            assert len(set(zip(held[one].tolist(), held[two].tolist(), strict=True))) == q * q


def test_shares_are_of_the_sum_of_all_keys() -> None:
    some = group(4, 3)
    for chosen in ((0, 1, 2), (1, 2, 3), (0, 2, 3)):
        for limb, q in enumerate(some.scheme.slots.moduli):
            total = sum(
                at_zero(rank, chosen, q) * some.keys[rank].share[limb].astype(object)
                for rank in chosen
            )
            assert np.array_equal(total % q, some.secret.astype(object) % q)
    for one, two in itertools.combinations(range(4), 2):
        assert some.keys[one].pairs[two] == some.keys[two].pairs[one]
        assert some.keys[one].public.key_id == some.keys[two].public.key_id
    assert len({pair for key in some.keys for pair in key.pairs if pair}) == 6


def test_keys_travel_as_bytes() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 50))
    data = some.keys[1].to_bytes()
    again = ThresholdKey.from_bytes(data)
    assert again.to_bytes() == data
    one = answers(some, total, (0, 1))[0]
    two, _ = Party(some.scheme, again).partial(Answered(), total, SLOT, (0, 1), done)
    assert combine(some.scheme, total, [one, two]).size == 50
    fields = canonical.loads(data, len(data), "key")
    for wrong in (fields[:-1], [2, *fields[1:]], [*fields[:-1], fields[-1][1:]], [1, "esafl"]):
        with pytest.raises(ProtocolError, match="threshold key: malformed"):
            ThresholdKey.from_bytes(canonical.dumps(wrong))


def test_fewer_parties_open_nothing() -> None:
    some = group(4, 3)
    total = some.total(vectors(some.scheme, 500))
    partials = answers(some, total, (0, 1, 3))
    with pytest.raises(QuorumError, match="of parties 3 are missing"):
        combine(some.scheme, total, partials[:2])
    with pytest.raises(QuorumError, match="3 are needed"):
        combine(some.scheme, total, [])
    # Two of them, who weigh their shares as two would, and have no noise: no key.
    scheme, slots = some.scheme, some.scheme.slots
    count, whole = scheme.counts(total.length)
    rows = np.empty((len(scheme.rings), count), np.uint64)
    for limb, ring in enumerate(scheme.rings):
        parts = [
            scaled(some.keys[r].share[limb], at_zero(r, (0, 1), ring.q), ring.q) for r in (0, 1)
        ]
        key = ring.add(*parts)
        c1, c0 = np.empty(whole, np.uint64), np.empty(count, np.uint64)
        scheme.limbs.read(scheme.halves(total)[1], whole, limb, 0, c1)
        scheme.limbs.read(scheme.halves(total)[0], count, limb, 0, c0)
        rows[limb] = ring.add(c0, ring.multiply(c1, key)[:count])
    with pytest.raises(ProtocolError, match="noise beyond"):
        slots.lower(rows, total.length + CHECKS, 4)


# --- one answer ---


def test_one_answer_a_slot_and_a_ciphertext() -> None:
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    total, party = some.total(xs), some.party(0)
    kept: list[Answered] = []
    first, state = party.partial(Answered(), total, SLOT, (0, 1), kept.append)
    assert kept == [state]
    assert first.chosen == (0, 1)
    other = OTHER_SLOTS["round"]
    moved = dataclasses.replace(total, slot=other)
    for again, slot, chosen in [
        (total, SLOT, (0, 1)),
        (total, SLOT, (0, 2)),
        (some.total(xs), SLOT, (0, 1)),
        (moved, other, (0, 1)),
    ]:
        with pytest.raises(ReuseError, match="answered before"):
            party.partial(state, again, slot, chosen, kept.append)
    assert kept == [state]
    restored = Answered.from_bytes(state.to_bytes())
    with pytest.raises(ReuseError, match="answered before"):
        party.partial(restored, total, SLOT, (0, 1), done)
    _, later = party.partial(restored, some.total(xs, other), other, (0, 1), done)
    assert later.names > state.names


def test_a_ciphertext_is_known_by_its_c1() -> None:
    """All that an answer depends on: with c0 changed, noise of two answers would be averaged."""
    some, other = group(3, 2), OTHER_SLOTS["round"]
    total = some.total(vectors(some.scheme, 50))
    party, claims = some.party(0), list[Answered]()
    _, state = party.partial(Answered(), total, SLOT, (0, 1), claims.append)
    again = dataclasses.replace(total, slot=other, data=total.data.copy())
    some.scheme.halves(again)[0][0] ^= 1
    with pytest.raises(ReuseError, match="answered before"):
        party.partial(state, again, other, (0, 1), claims.append)
    some.scheme.halves(again)[1][0] ^= 1
    party.partial(state, again, other, (0, 1), claims.append)
    assert len(claims) == 2


def test_nothing_is_answered_that_was_not_kept() -> None:
    both = group(2, 2)
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return secrets.token_bytes(count)

    def full(_state: Answered) -> None:
        raise OSError("no space left")

    party, total = both.party(0, random=random), both.total(vectors(both.scheme, 9))
    with pytest.raises(OSError, match="no space"):
        party.partial(Answered(), total, SLOT, (0, 1), full)
    assert not asked
    party.partial(Answered(), total, SLOT, (0, 1), done)
    assert asked == [32]


def test_sums_that_a_party_does_not_help_to_open() -> None:
    five = group(5, 2)
    xs = vectors(five.scheme, 9)
    three, two = five.total({r: xs[r] for r in (0, 1, 4)}), five.total({0: xs[0], 3: xs[3]})
    party = five.party(1)
    assert party.min_senders == 3
    assert group(2, 2).party(0).min_senders == 2

    def refused(
        error: type[Exception], match: str, total: Sealed, slot: Slot, chosen: Sequence[int]
    ) -> None:
        claims: list[Answered] = []
        with pytest.raises(error, match=match):
            party.partial(Answered(), total, slot, chosen, claims.append)
        assert not claims

    refused(QuorumError, "2 senders, 3 are needed", two, SLOT, (0, 1))
    for slot in OTHER_SLOTS.values():
        refused(ProtocolError, "another round", three, slot, (0, 1))
    for chosen in [(0,), (0, 1, 2), (1, 1), (1, 5), (-1, 1), ()]:
        refused(ProtocolError, "exactly 2 different parties of 5", three, SLOT, chosen)
    refused(ProtocolError, "party 1 is not one", three, SLOT, (0, 2))
    refused(ProtocolError, "'esafl'", dataclasses.replace(three, scheme="esafl"), SLOT, (0, 1))
    for least in (1, 6, -1):
        with pytest.raises(ConfigError, match="min_senders"):
            five.party(0, min_senders=least)


def test_a_sum_of_fewer_than_it_says_does_not_open() -> None:
    """The zeros after the values tell how many senders there are, if a server encrypts none itself."""
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    lied = dataclasses.replace(some.total({0: xs[0], 1: xs[1]}), senders=(0, 1, 2))
    with pytest.raises(ProtocolError, match="or the sum was altered"):
        combine(some.scheme, lied, answers(some, lied, (0, 2)))


# --- answers that do not fit ---


def test_answers_that_are_no_answers() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 50))
    one, two = answers(some, total, (0, 1))
    three = answers(some, total, (1, 2))[1]
    other = answers(some, some.total(vectors(some.scheme, 50)), (0, 1))[1]
    change = functools.partial(dataclasses.replace, two)
    top = np.full_like(two.data, 255)
    for partials, match in [
        ([one, one], "two partial decryptions of party 0"),
        ([one, three], "party 2 is of another opening"),
        ([one, other], "party 1 is of another opening"),
        ([one, change(rank=2)], "party 2 is of another opening"),
        ([one, change(data=two.data[:-1])], "party 1 has another length"),
        ([one, change(data=top)], "of party 1, "),
        ([dataclasses.replace(one, chosen=(0, 1, 2)), two], "exactly 2 different"),
        ([one, two, three], "party 2 is of another opening"),
    ]:
        with pytest.raises(ProtocolError, match=match):
            combine(some.scheme, total, partials)


@pytest.mark.parametrize("start", [0, 9_000, -2_000])
def test_an_answer_that_was_altered(start: int) -> None:
    """In many coefficients: one alone is found about every other time, as q is hardly too large."""
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 5000))
    one, two = answers(some, total, (0, 2))
    data = two.data.copy()
    data[start:][:2_000] ^= 1
    with pytest.raises(ProtocolError, match="a partial decryption does not fit"):
        combine(some.scheme, total, [one, dataclasses.replace(two, data=data)])


def test_parties_that_were_shown_different_sums_open_neither() -> None:
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    here, there = some.total(xs), some.total(xs)
    one, two = answers(some, here, (0, 1))[0], answers(some, there, (0, 1))[1]
    with pytest.raises(ProtocolError, match="does not fit"):
        combine(some.scheme, here, [one, dataclasses.replace(two, opening=one.opening)])


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_short_sum_is_known_from_garbage(length: int) -> None:
    """However short: zeros follow the values. Noise alone would not tell, see `CHECKS`."""
    some = group(2, 2)
    total = some.total(vectors(some.scheme, length))
    assert combine(some.scheme, total, answers(some, total, (0, 1))).size == length
    for _ in range(20):
        again = some.total(vectors(some.scheme, length))
        one, two = answers(some, total, (0, 1))[0], answers(some, again, (0, 1))[1]
        with pytest.raises(ProtocolError, match="a partial decryption does not fit"):
            combine(some.scheme, total, [one, dataclasses.replace(two, opening=one.opening)])


def test_a_key_of_another_group_opens_nothing() -> None:
    some, others = group(3, 2), setup(ThresholdRlwe(3, 2, 16, SMALL))
    total = some.total(vectors(some.scheme, 50))
    with pytest.raises(ConfigError, match="not the one that the parameters name"):
        Party(some.scheme, others.keys[0])
    with pytest.raises(ConfigError, match="not the one that the parameters name"):
        ThresholdSealer(some.scheme, others.public, 0)
    with pytest.raises(ProtocolError, match="does not fit"):
        combine(some.scheme, total, answers(others, total, (0, 1)))


# --- setup ---


def agreed(cohort: int = 3) -> tuple[ThresholdRlwe, list[Any], list[bytes]]:
    scheme = ThresholdRlwe(cohort, 2, 16, SMALL)
    states, commitments = zip(
        *(threshold_keys.begin(scheme, r, CRS, drawn(CRS, r)) for r in range(cohort)), strict=True
    )
    return scheme, list(states), list(commitments)


def test_setup_answers_the_same_when_asked_twice() -> None:
    scheme, states, commitments = agreed()
    for state in states:
        first, again = (threshold_keys.reveal(scheme, state, commitments) for _ in range(2))
        assert first[1:] == again[1:]
    assert agreed()[2] == commitments
    assert len(set(commitments)) == 3


def test_setup_refuses() -> None:
    scheme, states, commitments = agreed()
    reveal, finish = threshold_keys.reveal, threshold_keys.finish
    with pytest.raises(ProtocolError, match="2 commitments, all 3"):
        reveal(scheme, states[0], commitments[:2])
    with pytest.raises(ProtocolError, match="own commitment was changed"):
        reveal(scheme, states[0], [bytes(32), *commitments[1:]])
    done_ = [reveal(scheme, state, commitments) for state in states]
    publics, boxes = [b for _, b, _ in done_], [shares_[0] for _, _, shares_ in done_]
    state: Revealed = done_[0][0]

    def changed(items: list[bytes], item: bytes) -> list[bytes]:
        return [items[0], item, items[2]]

    with pytest.raises(ProtocolError, match="2 public parts and 3 shares"):
        finish(scheme, state, publics[:2], boxes)
    with pytest.raises(ProtocolError, match="rank 1 is not the one that it committed to"):
        finish(scheme, state, changed(publics, publics[2]), boxes)
    for box, match in [
        (canonical.dumps([1, publics[0][:-1], bytes(32)]), "rank 1 has another length"),
        (canonical.dumps([1, b"\xff" * len(publics[0]), bytes(32)]), "from rank 1, "),
        (canonical.dumps([2, publics[0], bytes(32)]), "rank 1 is malformed"),
        (canonical.dumps([1, publics[0], bytes(31)]), "rank 1 is malformed"),
    ]:
        with pytest.raises(ProtocolError, match=match):
            finish(scheme, state, publics, changed(boxes, box))
    for crs, named in [(bytes(31), scheme), (CRS, dataclasses.replace(scheme, key_id=bytes(32)))]:
        with pytest.raises(ConfigError, match="threshold keys: takes"):
            threshold_keys.begin(named, 0, crs)
    with pytest.raises(ProtocolError, match="cohort of 3"):
        threshold_keys.begin(scheme, 3, CRS)


def test_nothing_secret_in_sight() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 5))
    held = [some.drawn[0], some.keys[0], some.party(0), answers(some, total, (0, 1))[0]]
    texts = [repr(x) for x in held]
    for name in ("own=", "share=", "pairs=", "random=", "data=", "array("):
        assert not any(name in text for text in texts), name
    key = some.keys[0]
    for secret in (*key.pairs[1:], key.share[0, :4].tobytes()):
        assert not any(repr(bytes(secret))[2:-1] in text for text in texts)
    # A party keeps no part of its own key: the share is all that it needs.
    assert {f.name for f in dataclasses.fields(key)} == {"rank", "share", "pairs", "public"}


# --- what is refused ---


def test_parameters_that_are_refused() -> None:
    cases: list[tuple[int, int, dict[str, Any], str]] = [
        (3, 1, {}, "threshold must be 2 to the cohort"),
        (3, 4, {}, "threshold must be 2 to the cohort"),
        (1, 1, {}, "threshold must be 2 to the cohort"),
        (3, 2, {"bits": 1}, "bits must be 2 to 32"),
        (3, 2, {"key_id": bytes(8)}, "32 bytes"),
        (3, 2, {"ring": "goldilocks-4096"}, "does not fit log q = 64"),
        (64, 33, {}, "noise of more than 63 bits"),
        (3, 2, {"ring": "none"}, "ESHE has"),
    ]
    for cohort, threshold, how, match in cases:
        with pytest.raises(ConfigError, match=match):
            ThresholdRlwe(cohort, threshold, **how)


def test_vectors_that_are_refused() -> None:
    both = group(2, 2)
    sealer = ThresholdSealer(both.scheme, both.public, 0)
    plain = Plain(np.zeros(4, np.int32), NOTHING)
    with pytest.raises(RangeError):
        sealer.encrypt(Plain(np.array([1 << 15], np.int32), NOTHING), SLOT)
    with pytest.raises(ProtocolError, match="mode"):
        sealer.encrypt(plain, SLOT, mode="double")
    with pytest.raises(ProtocolError, match="sparse"):
        sealer.encrypt(plain, SLOT, support=Support.of(np.arange(4, dtype=np.uint32), 9))
    sealer.encrypt(plain, SLOT)
    with pytest.raises(ReuseError, match="encrypted a vector before"):
        sealer.encrypt(plain, SLOT)


def test_ciphertexts_that_are_refused() -> None:
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    total, part = some.sealed(0, xs[0]), some.sealed(1, xs[1])
    before = total.data.copy()
    change = functools.partial(dataclasses.replace, part)
    for wrong, match in [
        (change(scheme="esafl"), "'esafl'"),
        (change(mode="x"), "mode"),
        (change(senders=(3,)), "cohort of 3"),
        (change(data=part.data[1:]), "50 values take"),
        (change(data=np.full_like(part.data, 255)), "below its modulus|after the last"),
        (change(slot=OTHER_SLOTS["attempt"]), "slot is not the total's"),
    ]:
        with pytest.raises(ProtocolError, match=match):
            some.scheme.add(total, wrong)
        assert np.array_equal(total.data, before)
    with pytest.raises(ReuseError, match="already in the sum"):
        some.scheme.add(total, some.sealed(0, xs[0]))


@pytest.mark.parametrize(
    "decode", [Answered.from_bytes, Partial.from_bytes], ids=["answered", "partial"]
)
def test_bytes_that_are_nothing(decode: Callable[[bytes], Any]) -> None:
    def samples() -> Iterator[object]:
        yield from ([], [1], [2, "threshold-answered", []], [1, "threshold-answered", [bytes(31)]])
        for header in ([1, 0, [0, True], b""], [1, "0", [0], b""], [1, 0, [0]], [2, 0, [0], b""]):
            yield [canonical.dumps(header), b""]

    for sample in samples():
        with pytest.raises(ProtocolError, match="malformed"):
            decode(canonical.dumps(sample))
