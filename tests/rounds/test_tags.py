"""Tags: a sum of tagged vectors verifies for its senders and slot, and nothing else does."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import AuthenticationError
from flhe.keys.derive import hkdf
from flhe.rounds import tags
from flhe.sealed import Slot

KEY = bytes(range(32))
AT = Slot(5, bytes(32), bytes(16), 2, 1, bytes(32), bytes(32))
Q = 2**64 - 2**32 + 1


def vectors(
    bits: int, count: int, values: int, extras: int, seed: int = 1
) -> tuple[list[Plain], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    bound = (1 << (bits - 1)) - 1
    plains = []
    for _ in range(count):
        lanes = rng.integers(-bound, bound + 1, values + extras).astype(np.int32)
        lanes[rng.random(lanes.size) < 0.2] = bound
        narrow = lanes[:values].astype(np.int16) if bits <= 16 else lanes[:values]
        plains.append(Plain(narrow, lanes[values:]))
    total = np.zeros(values + extras + tags.lanes(bits), np.int64)
    for rank, plain in enumerate(plains):
        tagged = tags.tagged(plain, bits, KEY, AT, rank)
        assert np.array_equal(tagged.values, plain.values)
        assert max(abs(int(x)) for x in tagged.extras) <= bound
        total += np.concatenate([tagged.values, tagged.extras]).astype(np.int64)
    return plains, total


def independent(plain: Plain, bits: int, rank: int) -> list[int]:
    """The law itself, in Python's integers."""
    lanes = [*map(int, plain.values), *map(int, plain.extras)]
    cipher = Cipher(algorithms.AES(hkdf(KEY, "tag", *AT.context())), modes.CTR(bytes(16)))
    stream = cipher.encryptor().update(bytes(8 * len(lanes)))
    tag = int.from_bytes(hkdf(KEY, "tag-mask", *AT.context(), rank, length=8), "little")
    tag += sum(int.from_bytes(stream[8 * d :][:8], "little") * x for d, x in enumerate(lanes))
    tag %= Q
    digits = []
    while len(digits) < tags.lanes(bits):
        digits.append(tag % 2 ** (bits - 1))
        tag //= 2 ** (bits - 1)
    assert tag == 0
    return digits


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 32), st.integers(0, 300), st.integers(0, 9), st.integers(0, 1023))
def test_they_are_what_the_law_says(bits: int, values: int, extras: int, rank: int) -> None:
    (plain,), _ = vectors(bits, 1, values, extras)
    tagged = tags.tagged(plain, bits, KEY, AT, rank)
    assert tagged.extras[extras:].tolist() == independent(plain, bits, rank)


def test_long_vectors_are_cut_anywhere() -> None:
    """More than one step of keystream, and extras that begin in the middle of one."""
    (plain,), _ = vectors(16, 1, 70_001, 13)
    tagged = tags.tagged(plain, 16, KEY, AT, 3)
    assert tagged.extras[13:].tolist() == independent(plain, 16, 3)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 32), st.integers(1, 20), st.integers(0, 60), st.integers(1, 9))
def test_sums_verify(bits: int, count: int, values: int, extras: int) -> None:
    plains, total = vectors(bits, count, values, extras)
    lanes = tags.verified(total, bits, KEY, AT, tuple(range(count)))
    exact = sum(np.concatenate([p.values, p.extras]).astype(np.int64) for p in plains)
    assert np.array_equal(lanes, exact)


def test_sums_of_a_thousand_and_32_bits_do_not_overflow() -> None:
    bound = 2**31 - 1
    lanes = np.array([bound, -bound, bound, 5], np.int32)
    total = np.zeros(4 + tags.lanes(32), np.int64)
    for rank in range(1024):
        tagged = tags.tagged(Plain(lanes[:2], lanes[2:]), 32, KEY, AT, rank)
        total += np.concatenate([tagged.values, tagged.extras]).astype(np.int64)
    assert (
        tags.verified(total, 32, KEY, AT, range(1024)).tolist()
        == (1024 * lanes.astype(int)).tolist()
    )


@pytest.mark.parametrize("bits", [2, 16, 32])
def test_any_change_of_any_lane_is_noticed(bits: int) -> None:
    _, total = vectors(bits, 3, 20, 6)
    tags.verified(total, bits, KEY, AT, (0, 1, 2))
    changes: list[int] = [1, -1, 1 << 15, 1 << 30, -(1 << 31)]
    for lane in range(total.size):
        for change in changes:
            bad = total.copy()
            bad[lane] += change
            with pytest.raises(AuthenticationError, match="not that of what its senders"):
                tags.verified(bad, bits, KEY, AT, (0, 1, 2))


def test_no_multiple_of_anything_fits_a_lane_unnoticed() -> None:
    """The modulus is above what a slot holds: a change of a lane is never one by 0."""
    _, total = vectors(16, 3, 20, 6)
    for change in (1 << 31, (1 << 31) - 1, (1 << 61) - 1, 1 << 32, (1 << 32) - 1, (1 << 55) - 1):
        bad = total.copy()
        bad[4] += change
        with pytest.raises(AuthenticationError):
            tags.verified(bad, 16, KEY, AT, (0, 1, 2))


def test_lanes_that_change_places_are_noticed() -> None:
    _, total = vectors(16, 3, 20, 6)
    for other in (np.roll(total, 1), np.roll(total, -1), total[::-1].copy(), 2 * total, -total):
        with pytest.raises(AuthenticationError):
            tags.verified(other, 16, KEY, AT, (0, 1, 2))


def test_other_senders_slots_and_keys_are_noticed() -> None:
    _, total = vectors(16, 3, 20, 6)
    for senders in ((0,), (0, 1), (0, 1, 3), (1, 2, 3), (0, 1, 2, 3)):
        with pytest.raises(AuthenticationError):
            tags.verified(total, 16, KEY, AT, senders)
    changes: list[dict[str, Any]] = [
        {"round": 3}, {"attempt": 0}, {"run_id": 6}, {"epoch": bytes([1]) * 16},
        {"layout_hash": bytes([1]) * 32}, {"history": bytes([1]) * 32},
        {"roster_hash": bytes([1]) * 32},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(AuthenticationError):
            tags.verified(total, 16, KEY, dataclasses.replace(AT, **change), (0, 1, 2))
    with pytest.raises(AuthenticationError):
        tags.verified(total, 16, bytes(32), AT, (0, 1, 2))


def test_one_vector_twice_under_two_names_is_noticed() -> None:
    (plain,), _ = vectors(16, 1, 20, 6)
    one = tags.tagged(plain, 16, KEY, AT, 0)
    lanes = np.concatenate([one.values, one.extras]).astype(np.int64)
    with pytest.raises(AuthenticationError):
        tags.verified(2 * lanes, 16, KEY, AT, (0, 1))


def test_equal_vectors_of_two_senders_have_unrelated_tags() -> None:
    (plain,), _ = vectors(16, 1, 20, 6)
    seen = {tuple(tags.tagged(plain, 16, KEY, AT, rank).extras[6:].tolist()) for rank in range(50)}
    assert len(seen) == 50
