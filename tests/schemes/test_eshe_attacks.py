"""Attacks that give away what ESHE encrypts as printed, run against it, and against ours."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import ProtocolError
from flhe.math.prg import FieldElements
from flhe.math.ring import PrimeRing, Q
from flhe.schemes.base import Secrets
from flhe.schemes.esafl.adder import EsaflOpener, EsaflSealer
from flhe.schemes.esafl.keys import draw_own
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.keyed import JointKey
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.derive import hkdf
from flhe_lab.papers.corrections.esafl import key_from, odd, odd_places, printed
from flhe_lab.papers.esafl import Poly, multiply
from flhe_lab.papers.esafl import Q as PAPERS_Q
from flhe_lab.papers.packing import PaperPacking
from tests.laws import sum_of
from tests.rings import inverse as inverse_transform

SLOT = Slot(7, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
NOTHING = np.empty(0, np.int64)
LOW = PaperPacking(9).width
"""Bits of the zero polynomial's field, the lowest of each coefficient."""


def split_keys(c: Poly, a: Poly, both: Poly, q: int, p: int, rows: int = 24) -> Poly | None:
    """s_j from s_j + s_k, which a third client knows, and s_j's ciphertext; None if none fits.

    Whatever m is, it is less than p: c / p is a s_j / p + e modulo q / p, to one unit. Where the sum of
    keys is 1 or -1 one of them has it, where it is 2 or -2 both have half: so all subsets are tried,
    half of the positions against the other half.
    """
    places, columns, target = _equations(c, a, both, q, p, rows)
    modulus, half = q / p, len(places) // 2
    left, right = _subset_sums(columns[:half], modulus), _subset_sums(columns[half:], modulus)
    # Sorted by one coefficient, partners lie next to each other.
    left = left[order := np.argsort(left[:, 0])]
    wide = 8.0  # more than an error and half a unit ever are
    for mine, sums in enumerate(right):
        missing = (target - sums) % modulus
        for shift in (-modulus, 0.0, modulus):
            low, high = np.searchsorted(left[:, 0], missing[0] + shift + np.array([-wide, wide]))
            off = (left[low:high] - missing + modulus / 2) % modulus - modulus / 2
            for hit in np.flatnonzero(np.abs(off).max(axis=1) <= wide):
                chosen = int(order[low + hit]) | mine << half
                return _chosen(both, places, [chosen >> k & 1 for k in range(len(places))])
    return None


def _equations(
    c: Poly, a: Poly, both: Poly, q: int, p: int, rows: int
) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Unknown places, what each adds to `rows` coefficients of c / p, and what they add up to."""
    certain = _chosen(both, [], [])
    known = multiply(a, certain)
    target = np.array([(x - y) % q / p for x, y in zip(c[:rows], known[:rows], strict=True)]) - 0.5
    places = [i for i, x in enumerate(both) if abs(x) == 1]
    columns = [[_shifted(a, i, r) * both[i] % q / p for r in range(rows)] for i in places]
    return places, np.array(columns).reshape(-1, rows), target


def _chosen(both: Poly, places: list[int], bits: list[int]) -> Poly:
    """The key whose coefficients at `places` are the sum's, where the bits say so."""
    out = [x // 2 if abs(x) == 2 else 0 for x in both]
    for bit, i in zip(bits, places, strict=True):
        out[i] = both[i] * bit
    return out


def _shifted(a: Poly, i: int, r: int) -> int:
    """Coefficient r of x^i a."""
    return a[r - i] if r >= i else -a[r - i]


def _subset_sums(columns: NDArray[np.float64], modulus: float) -> NDArray[np.float64]:
    """Sums of all subsets, modulo `modulus`, shape (2^count, rows); subset b at row b."""
    out = np.zeros((1, columns.shape[1]))
    for column in columns:
        out = np.concatenate([out, (out + column) % modulus])
    return out


def key_from_sums(larger: Poly, smaller: Poly) -> Poly:
    """s_i: a sum of keys with it less one without it."""
    return [x - y for x, y in zip(larger, smaller, strict=True)]


def centered(x: Sequence[int], modulus: int) -> Poly:
    """The representatives nearest to zero."""
    return [(y + modulus // 2) % modulus - modulus // 2 for y in x]


def agreement(found: Sequence[int], truth: Sequence[int]) -> float:
    """Share of coefficients that are right."""
    return sum(x == y for x, y in zip(found, truth, strict=True)) / len(truth)


class Ours:
    """Three members of one epoch, with all that is secret, and `a`, which every member can compute."""

    n = 4096

    def __init__(self) -> None:
        self.scheme = Esafl(keys="joint").adder(3)
        self.owns = [draw_own(self.n) for _ in range(3)]
        self.total = np.sum(self.owns, axis=0, dtype=np.int32)
        self.group_key = secrets.token_bytes(32)
        self.slots = self.scheme.sizes.slots
        bound, length = self.scheme.space.bound, self.slots.per * (self.n + 50)
        rng = np.random.default_rng(4)  # test data only
        self.plain = [Plain(rng.integers(-bound, bound + 1, length), NOTHING) for _ in range(3)]

    def sealer(self, rank: int) -> EsaflSealer:
        return EsaflSealer(self.scheme, self.group_key, rank, self.owns[rank])

    def blocks(self, sealed: Sealed) -> list[Poly]:
        """Residues: a whole block, and 50 of a second one."""
        residues = sealed.data.view(np.uint64).tolist()
        return [residues[: self.n], residues[self.n :]]

    def a(self, block: int, slot: Slot = SLOT) -> Poly:
        key = hkdf(self.group_key, "eshe-a", *slot.context(), self.scheme.scheme.ring, 0)
        hat = FieldElements(key, Q).blocks(block, 1, self.n)[0]
        found: Poly = inverse_transform(PrimeRing(self.n), hat).tolist()
        return found

    def plaintext(self, rank: int, block: int) -> Poly:
        """m, as `flhe.coding.coefficients` has it."""
        rows = (self.plain[rank].values + self.slots.bound).reshape(-1, self.slots.per)
        rows = rows[self.n :] if block else rows[: self.n]
        return [sum(int(v) << k * self.slots.width for k, v in enumerate(row)) for row in rows]


def plaintext(n: int) -> Poly:
    """Twenty fields of random messages above one of zeros."""
    return [secrets.randbits(20 * LOW) << LOW for _ in range(n)]


def total(keys: list[Poly]) -> Poly:
    return [sum(column) for column in zip(*keys, strict=True)]


# --- p~ ---


def test_a_constant_p_hides_the_support() -> None:
    eshe = printed(n=256, p=(1 << 460) - 1, tilde=False)
    key, a = eshe.key(), odd(eshe.public())
    support = odd_places(eshe.encrypt(a, key, plaintext(256)), a)
    # Coins against coins: 192 zeros and 64 others agree with them half of the time.
    assert 80 <= int((support == (np.array(key) != 0)).sum()) <= 176


# --- sparse keys ---


def test_a_curious_client_splits_the_others_keys() -> None:
    """It knows s and a key of its own. p is the constant here: that alone does not help."""
    eshe = printed(3, n=256, weight=12, tilde=False)  # 2^12 subsets a half
    keys = [eshe.key() for _ in range(3)]
    while any(x == -y != 0 for x, y in zip(keys[1], keys[2], strict=True)):
        keys[2] = eshe.key()  # 1 and -1 look like two zeros: more to try, where there is one
    a, s, mine = eshe.polynomial(1, 2), total(keys), keys[0]
    c = eshe.encrypt(a, keys[1], plaintext(256))
    assert split_keys(c, a, key_from_sums(s, mine), PAPERS_Q, eshe.p) == keys[1]


# --- two sums ---


def test_two_sums_of_keys_differ_by_a_key() -> None:
    eshe = printed(3, n=256)
    keys = [eshe.key() for _ in range(3)]
    a, m = eshe.polynomial(1, 2), plaintext(256)
    found = key_from_sums(total(keys), total(keys[:2]))
    assert eshe.decrypt(a, found, eshe.encrypt(a, keys[2], m)) == m


# --- the same, against ours ---


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@pytest.fixture(scope="module")
def parts(ours: Ours) -> list[Sealed]:
    return [ours.sealer(j).encrypt(plain, SLOT) for j, plain in enumerate(ours.plain)]


def test_what_a_member_can_compute_is_a(ours: Ours, parts: list[Sealed]) -> None:
    """Or the attacks below would fail for want of aim: with the key, it opens the ciphertext."""
    c, m = ours.blocks(parts[1])[0], ours.plaintext(1, 0)
    masks = multiply(ours.a(0), ours.owns[1].tolist())
    noise = centered([x - y - z for x, y, z in zip(c, masks, m, strict=True)], Q)
    p = 1 << ours.slots.log_p
    assert all(x % p == 0 for x in noise)
    assert 0 < max(map(abs, noise)) <= 40 * p


def test_low_bits_tell_nothing(ours: Ours) -> None:
    """All of the plaintext known, not one slot; and `a`."""
    left, key = ours.slots.log_p, ours.owns[1].astype(np.int64)
    found = key_from(*_under_an_odd_a(ours), left)
    assert max(map(abs, found)) > 1 << (left - 4)  # uniform, and no key
    # Nor do two bits of it, though 4,096 coins fall within 6 sigma of one in four.
    hits = int((np.array(found) % 4 == key % 4).sum())
    assert abs(hits - 1024) < 6 * math.sqrt(4096 * 3 / 16)


def test_parities_tell_nothing(ours: Ours) -> None:
    odd = odd_places(*_under_an_odd_a(ours))
    assert abs(int((odd == (ours.owns[1] % 2 == 1)).sum()) - 2048) < 6 * 32


def test_no_two_ciphertexts_have_one_a(ours: Ours, parts: list[Sealed]) -> None:
    first, second = ours.blocks(parts[1])[0], ours.blocks(parts[1])[1]
    p, size = 1 << ours.slots.log_p, len(second)
    differences = [x - y for x, y in zip(first[:size], second, strict=True)]
    found = [x % p for x in centered(differences, Q)]
    pairs = zip(ours.plaintext(1, 0)[:size], ours.plaintext(1, 1), strict=True)
    assert agreement(found, [(x - y) % p for x, y in pairs]) == 0
    changed = ({"round": 2}, {"attempt": 1}, {"layout_hash": bytes(31) + b"\1"})
    others = [ours.a(0, dataclasses.replace(SLOT, **change)) for change in changed]  # type: ignore[arg-type]
    masks = [ours.a(0), ours.a(1), *others]
    assert len({tuple(a[:8]) for a in masks}) == len(masks)


@pytest.mark.parametrize("weight", [64, 0], ids=["sparse", "uniform ternary"])
def test_the_papers_keys_are_refused(ours: Ours, weight: int) -> None:
    keys = [np.array(printed(3, n=4096, weight=weight).key(), np.int8) for _ in range(3)]
    s = np.sum(keys, axis=0, dtype=np.int32)
    for own, total in ((keys[0], s), (keys[0], ours.total), (ours.owns[0], s)):
        key = JointKey(own, total).to_bytes()
        with pytest.raises(ProtocolError, match="too small, too few or too large"):
            ours.scheme.sealer(Secrets(ours.group_key, 0, key))
    with pytest.raises(ProtocolError, match="too small, too few or too large"):
        EsaflOpener(ours.scheme, ours.group_key, s).decrypt(_sum(ours, range(3)))


def test_the_sum_of_two_keys_leaves_the_width_that_the_tables_rate(ours: Ours) -> None:
    """One member's view at N = 3: s_j given s_j + s_k is as wide as 4.53 / sqrt(2) = 3.2."""
    both = np.array(key_from_sums(ours.total.tolist(), ours.owns[0].tolist()))
    left = ours.owns[1] - both / 2
    assert left.std() == pytest.approx(3.2, rel=6 / math.sqrt(2 * 4096))
    # Cut at 40, a coefficient is certain where the sum is 80 in magnitude: never, in 10^18 keys.
    assert np.abs(both).max() < 80


def _sum(ours: Ours, ranks: Iterable[int]) -> Sealed:
    slot = dataclasses.replace(SLOT, attempt=9)
    return sum_of(ours.scheme, (ours.sealer(j).encrypt(ours.plain[j], slot) for j in ranks))


def _under_an_odd_a(ours: Ours) -> tuple[Poly, Poly]:
    """c - m of one sender's block, all of m known, and an `a` without which nothing is told at all."""
    slots = (dataclasses.replace(SLOT, attempt=i) for i in range(20, 120))
    slot = next(slot for slot in slots if sum(ours.a(0, slot)) % 2)
    c = ours.blocks(ours.sealer(1).encrypt(ours.plain[1], slot))[0]
    return [x - y for x, y in zip(c, ours.plaintext(1, 0), strict=True)], ours.a(0, slot)
