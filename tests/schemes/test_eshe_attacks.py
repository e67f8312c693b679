"""Attacks that give away what ESHE encrypts as printed, run against it, and against ours."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from flhe.coding.coefficients import Coefficients
from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import Q
from flhe.schemes.base import Secrets
from flhe.schemes.esafl.adder import EsaflOpener
from flhe.schemes.esafl.presets import ESHE
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.joint_key import JointKey
from flhe.schemes.sealed import Sealed
from flhe_lab.papers.corrections.esafl import odd, printed
from flhe_lab.papers.esafl import Poly, multiply
from flhe_lab.papers.esafl import Q as PAPERS_Q
from flhe_lab.papers.packing import PaperPacking
from tests.schemes.eshe_attacks import (
    SLOT,
    Ours,
    agreement,
    centered,
    difference_of_plaintexts,
    key_from_low_bits,
    key_from_sums,
    split_keys,
    split_keys_by_lattice,
    support_from_parity,
)

SIZES = [256, pytest.param(1 << 15, marks=pytest.mark.sweep)]
LOW = PaperPacking(9).width
"""Bits of the zero polynomial's field, the lowest of each coefficient."""


def plaintext(n: int) -> Poly:
    """Twenty fields of random messages above one of zeros."""
    return [secrets.randbits(20 * LOW) << LOW for _ in range(n)]


def total(keys: list[Poly]) -> Poly:
    return [sum(column) for column in zip(*keys, strict=True)]


# --- p and q both even ---


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("tilde", [True, False])
def test_one_ciphertext_and_a_give_the_key(n: int, tilde: bool) -> None:
    """Round 1's `a` is a^0, which is public: that is the server, after one upload."""
    eshe = printed(n=n, tilde=tilde)
    a, key, m = eshe.public(), eshe.key(), plaintext(n)
    found, left = key_from_low_bits(eshe.encrypt(a, key, m), a, [0] * n, LOW)
    assert left >= 2  # a trit
    assert found == key
    # Which opens everything that this client ever sends.
    a = eshe.polynomial(7, 3)
    assert eshe.decrypt(a, found, eshe.encrypt(a, key, m)) == m


def test_an_even_a_only_costs_bits() -> None:
    eshe = printed(n=256)
    key, even = eshe.key(), eshe.public()
    even[0] ^= sum(even) & 1
    found, left = key_from_low_bits(eshe.encrypt(even, key, plaintext(256)), even, [0] * 256, LOW)
    assert left < LOW
    assert found == key


# --- p~ ---


@pytest.mark.parametrize("n", SIZES)
def test_the_support_of_a_key_leaks(n: int) -> None:
    eshe = printed(n=n, p=(1 << 460) - 1)
    key, a = eshe.key(), odd(eshe.public())
    support = support_from_parity(eshe.encrypt(a, key, plaintext(n)), a, [0] * n)
    assert np.array_equal(support, np.array(key) != 0)


def test_a_constant_p_hides_the_support() -> None:
    eshe = printed(n=256, p=(1 << 460) - 1, tilde=False)
    key, a = eshe.key(), odd(eshe.public())
    support = support_from_parity(eshe.encrypt(a, key, plaintext(256)), a, [0] * 256)
    # Coins against coins: 192 zeros and 64 others agree with them half of the time.
    assert 80 <= int((support == (np.array(key) != 0)).sum()) <= 176


# --- one a for all blocks ---


def test_differences_of_a_rounds_ciphertexts_open() -> None:
    eshe = printed(n=256)
    a, key = eshe.polynomial(2, 9), eshe.key()
    first, second = plaintext(256), plaintext(256)
    parts = eshe.encrypt(a, key, first), eshe.encrypt(a, key, second)
    found = difference_of_plaintexts(*parts, PAPERS_Q, eshe.p)
    assert found == [(x - y) % eshe.p for x, y in zip(first, second, strict=True)]


# --- sparse keys ---


@pytest.mark.parametrize(
    ("attack", "n", "weight"),
    [
        (split_keys, 256, 12),  # 2^12 subsets a half
        pytest.param(split_keys_by_lattice, 1 << 15, 64, marks=pytest.mark.sweep),
    ],
)
def test_a_curious_client_splits_the_others_keys(attack: Any, n: int, weight: int) -> None:
    """It knows s and a key of its own. p is the constant here: that alone does not help."""
    eshe = printed(3, n=n, weight=weight, tilde=False)
    keys = [eshe.key() for _ in range(3)]
    while any(x == -y != 0 for x, y in zip(keys[1], keys[2], strict=True)):
        keys[2] = eshe.key()  # 1 and -1 look like two zeros: more to try, where there is one
    a, s, mine = eshe.polynomial(1, 2), total(keys), keys[0]
    c = eshe.encrypt(a, keys[1], plaintext(n))
    assert attack(c, a, key_from_sums(s, mine), PAPERS_Q, eshe.p) == keys[1]


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


def test_low_bits_tell_nothing(ours: Ours, parts: list[Sealed]) -> None:
    """All of the plaintext known, not one slot; and `a`."""
    c, a, m = ours.blocks(parts[1])[0], ours.a(0), ours.plaintext(1, 0)
    key = ours.owns[1].astype(np.int64)
    found, left = key_from_low_bits(c, a, m, ours.slots.log_p)
    assert left > 2
    assert max(map(abs, found)) > 1 << (left - 4)  # uniform, and no key
    # Nor do two bits of it, though 4,096 coins fall within 6 sigma of one in four.
    hits = int((np.array(found) % 4 == key % 4).sum())
    assert abs(hits - 1024) < 6 * math.sqrt(4096 * 3 / 16)


def test_parities_tell_nothing(ours: Ours) -> None:
    slots = (dataclasses.replace(SLOT, attempt=i) for i in range(20, 120))
    slot = next(slot for slot in slots if sum(ours.a(0, slot)) % 2)  # or nothing is told at all
    c = ours.blocks(ours.sealer(1).encrypt(ours.plain[1], slot))[0]
    odd = support_from_parity(c, ours.a(0, slot), ours.plaintext(1, 0))
    assert abs(int((odd == (ours.owns[1] % 2 == 1)).sum()) - 2048) < 6 * 32


@pytest.mark.parametrize("moduli", [(1 << 63,), (Q - 1,), (1 << 62, Q >> 2 | 1)])
def test_an_even_q_is_refused(ours: Ours, moduli: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="even modulus"):
        Coefficients(ours.slots.bound, 3, 2, moduli)


@pytest.mark.parametrize("ring", ESHE)
def test_p_and_q_have_no_common_factor(ring: str) -> None:
    slots = Esafl(ring=ring, keys="joint").adder(9).sizes.slots
    assert math.gcd(slots.q, 1 << slots.log_p) == 1


def test_no_two_ciphertexts_have_one_a(ours: Ours, parts: list[Sealed]) -> None:
    first, second = ours.blocks(parts[1])[0], ours.blocks(parts[1])[1]
    p, size = 1 << ours.slots.log_p, len(second)
    found = difference_of_plaintexts(first[:size], second, Q, p)
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
    total: Sealed | None = None
    for j in ranks:
        total = ours.scheme.add(total, ours.sealer(j).encrypt(ours.plain[j], slot))
    assert total is not None
    return total
