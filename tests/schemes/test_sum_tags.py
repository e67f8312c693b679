"""Sum tags: what they are, in plain integers, and that every change of a sum is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.math.ring import Q
from flhe.math.tag_kernels import BLOCK, polynomials
from flhe.schemes import sum_mac as sum_tags
from flhe.schemes.sealed import Slot
from flhe.schemes.sum_mac import SumMac
from flhe.wire.derive import hkdf
from tests.laws import KEY, OTHER_KEY, OTHER_SLOTS, SLOT

BITS = 16
FLOATS = 40


def tags(key: bytes = KEY, floats: int = FLOATS, slot: Slot = SLOT, threads: int = 1) -> SumMac:
    return SumMac(key, slot, floats, threads)


def plain(seed: int, count: int = FLOATS, extras: int = 15, dtype: Any = np.int16) -> Plain:
    bound = np.iinfo(dtype).max
    drawn = np.random.default_rng(seed).integers(-bound, bound, count + extras, dtype, True)
    return Plain(drawn[:count], drawn[count:])


def made(one: Plain, rank: int, bits: int, by: SumMac) -> NDArray[Any]:
    """The digits of one sender's tags."""
    tagged = by.tagged(one, rank, bits)
    assert tagged.values is one.values
    assert tagged.extras[: one.extras.size].tolist() == one.extras.tolist()
    return tagged.extras[one.extras.size :]


def fits(total: Plain, digits: NDArray[Any], senders: list[int], by: SumMac) -> tuple[bool, ...]:
    """Whether each tag of a sum is that of its senders."""
    whole = total._replace(extras=np.concatenate([total.extras, digits]))
    plain, found = by.matching(whole, senders, BITS)
    assert plain.extras.tolist() == total.extras.tolist()
    return found


def by_hand(one: Plain, rank: int, floats: int) -> list[int]:
    """The formula of the module, term by term."""
    keys = hkdf(KEY, "sum-tag", *SLOT.context())
    masks = hkdf(KEY, "sum-tag-mask", *SLOT.context(), rank, b"")
    coords = range(one.values.size) if one.coords is None else one.coords.tolist()
    behind = one.values.size if one.coords is None else floats
    terms = [*zip(coords, one.values.tolist(), strict=True)]
    terms += [(behind + i, x) for i, x in enumerate(one.extras.tolist())]
    out = []
    for at in (0, 16):
        k, tau = (int.from_bytes(secret[at : at + 16], "little") for secret in (keys, masks))
        out.append((tau + sum(pow(k, d + 1, Q) * x for d, x in terms)) % Q)
    return out


def summed(senders: list[int]) -> tuple[Plain, NDArray[Any]]:
    """What their vectors and digits come to."""
    values: Any = np.zeros(FLOATS, np.int64)
    extras, digits = np.zeros(15, np.int64), np.zeros(sum_tags.lanes(BITS), np.int64)
    for rank in senders:
        one = plain(rank)
        values += one.values
        extras += one.extras
        digits += made(one, rank, BITS, tags())
    return Plain(values, extras), digits


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1300])
@pytest.mark.parametrize("threads", [1, 3])
def test_tags_are_the_formula(dtype: Any, count: int, threads: int) -> None:
    one, bits = plain(count, count, 9, dtype), 16 if dtype == np.int16 else 24
    digits = made(one, 4, bits, tags(floats=count, threads=threads))
    assert sum_tags.join(digits, bits) == by_hand(one, 4, count)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_widest_integers_are_exact(dtype: Any) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    one = Plain(np.array([least, most] * 700, dtype), np.array([least, most, -1], np.int64))
    digits = made(one, 0, 32, tags(floats=1400))
    assert sum_tags.join(digits, 32) == by_hand(one, 0, 1400)


@pytest.mark.parametrize("value", [-(1 << 22), (1 << 22) - 1, -(1 << 22) - 1, 1 << 22])
@pytest.mark.parametrize("half", [-(1 << 31), (1 << 31) - 1])
def test_no_sum_of_a_block_overflows(value: int, half: int) -> None:
    """The largest powers of all, next to the values from which on they are cut into digits."""
    values, ones = np.full(3 * BLOCK + 5, value, np.int32), np.ones(2, np.uint64)
    table = np.full((4, BLOCK), half, np.int64)
    wanted = value * (half + (half << 32)) * values.size % Q
    assert polynomials(values, True, table, ones) == (wanted, wanted)


@given(coords=st.sets(st.integers(0, 2999), max_size=60), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_sparse_tags_go_by_coordinates(coords: set[int], seed: int) -> None:
    one = plain(seed, len(coords), 5, np.int32)
    one = one._replace(coords=np.array(sorted(coords), np.uint32))
    digits = made(one, 1, 30, tags(floats=3000, threads=2))
    assert sum_tags.join(digits, 30) == by_hand(one, 1, 3000)


@pytest.mark.parametrize("bits", [2, 3, 16, 24, 31, 32])
def test_digits_are_values_and_recompose(bits: int) -> None:
    for tag in (0, 1, Q - 1, 0x0123456789ABCDEF):
        digits = np.array(sum_tags.split([tag, Q - 1 - tag], bits), np.int64)
        assert digits.size == sum_tags.lanes(bits)
        assert digits.min() >= 0
        assert digits.max() < 1 << (bits - 1)
        assert sum_tags.join(digits, bits) == [tag, Q - 1 - tag]
        assert sum_tags.join(1000 * digits, bits) == [1000 * tag, 1000 * (Q - 1 - tag)]


@given(at=st.integers(0, FLOATS + 15 - 1), change=st.integers(-(1 << 40), 1 << 40).filter(bool))
@settings(max_examples=40)
def test_one_integer_that_changed(at: int, change: int) -> None:
    total, digits = summed([0, 2, 3])
    (total.values if at < FLOATS else total.extras)[at % FLOATS if at >= FLOATS else at] += change
    assert fits(total, digits, [0, 2, 3], tags()) == (False, False)


@pytest.mark.parametrize("change", [1, -1, 1 << 15, 7])
def test_a_tag_that_changed(change: int) -> None:
    for at in range(sum_tags.lanes(BITS)):
        total, digits = summed([0, 1])
        digits[at] += change
        first = at >= sum_tags.lanes(BITS) // 2
        assert fits(total, digits, [0, 1], tags()) == (first, not first)


@pytest.mark.parametrize("tau", [0, Q - 1])
def test_the_smallest_and_the_largest_tags_match(monkeypatch: pytest.MonkeyPatch, tau: int) -> None:
    monkeypatch.setattr(SumMac, "_masks", lambda self, rank, bound: [tau, tau])
    zero = Plain(np.zeros(FLOATS, np.int16), np.zeros(15, np.int16))
    digits = sum(made(zero, rank, BITS, tags()).astype(np.int64) for rank in (0, 1))
    assert fits(zero, digits, [0, 1], tags()) == (True, True)


def test_a_tag_is_no_residue() -> None:
    """Of all the numbers that are alike modulo Q, one passes: else half of a guess would do."""
    total, digits = summed([0, 1])
    for change in (Q, -Q, 2 * Q):
        more = digits.copy()
        limbs = sum_tags.lanes(BITS) // 2
        more[limbs - 1] += change >> (BITS - 1) * (limbs - 1)
        more[0] += change - ((change >> (BITS - 1) * (limbs - 1)) << (BITS - 1) * (limbs - 1))
        tag = sum_tags.join(more, BITS)[0]
        assert tag % Q == sum_tags.join(digits, BITS)[0] % Q
        assert fits(total, more, [0, 1], tags())[0] == (0 <= tag < 2 * Q)


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ([0, 1], [0, 1, 2]),  # one left out, and still named
        ([0, 1, 2], [0, 1]),  # one brought in
        ([0, 1, 1], [0, 1]),  # one twice
        ([0, 1, 1], [0, 1, 2]),  # one in the place of another
        ([0, 1], [0, 3]),
    ],
)
def test_other_senders_than_those_named(added: list[int], named: list[int]) -> None:
    total, digits = summed(added)
    assert fits(total, digits, named, tags()) == (False, False)


@pytest.mark.parametrize("field", sorted(OTHER_SLOTS))
def test_tags_of_another_slot_or_key(field: str) -> None:
    total, digits = summed([0, 1])
    other = tags(slot=OTHER_SLOTS[field])
    assert fits(total, digits, [0, 1], other) == (False, False)
    assert fits(total, digits, [0, 1], tags(OTHER_KEY)) == (False, False)


def test_tags_of_a_slot_differ_by_sender() -> None:
    assert len({bytes(made(plain(0), rank, BITS, tags())) for rank in range(20)}) == 20
    assert repr(KEY) not in repr(tags())
