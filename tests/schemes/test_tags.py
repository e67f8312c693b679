"""Tags: a sum of tagged batches verifies for its senders and slot, and nothing else does."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import AuthenticationError
from flhe.schemes.batchcrypt.batch_mac import Tags
from flhe.schemes.sealed import Slot
from flhe.wire.derive import hkdf

KEY = bytes(range(32))
AT = Slot(5, bytes(32), bytes(16), 2, 1, bytes(32), bytes(32))
TAGS = Tags(KEY, AT)
Q = 2**64 - 2**32 + 1
PER = 7

Vector = NDArray[Any]


def vectors(count: int, length: int = 26, bits: int = 16, seed: int = 1) -> list[Vector]:
    rng = np.random.default_rng(seed)
    bound = (1 << (bits - 1)) - 1
    out = []
    for _ in range(count):
        lanes = rng.integers(-bound, bound + 1, length).astype(np.int32)
        lanes[rng.random(lanes.size) < 0.2] = -bound
        out.append(lanes)
    return out


def summed(parts: list[Vector], per: int = PER) -> tuple[list[int], Vector]:
    made = [TAGS.make(values, per, rank) for rank, values in enumerate(parts)]
    total: Vector = np.sum([p.astype(np.int64) for p in parts], axis=0)
    return [sum(column) for column in zip(*made, strict=True)], total


def refused(tags: list[int], values: Vector, senders: Any = (0, 1, 2), of: Tags = TAGS) -> None:
    with pytest.raises(AuthenticationError, match="not that of what its senders encrypted"):
        of.verify(tags, values, PER, senders)


def stream(label: str, number: int, length: int) -> list[int]:
    """Words of a keystream, by the library's own parts alone."""
    start = number.to_bytes(8, "big") + bytes(8)
    cipher = Cipher(algorithms.AES(hkdf(KEY, label, *AT.context())), modes.CTR(start))
    data = cipher.encryptor().update(bytes(8 * length))
    return [int.from_bytes(data[8 * i :][:8], "little") for i in range(length)]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 12),
    st.integers(0, 160),
    st.integers(0, 1023),
    st.integers(2, 32),
)
def test_they_are_what_the_law_says(per: int, length: int, rank: int, bits: int) -> None:
    (values,) = vectors(1, length, bits)
    batches = [values[i : i + per] for i in range(0, length, per)]
    stride = per + per % 2
    words = stream("tag", 0, stride * len(batches))
    masks = stream("tag-mask", rank, len(batches))
    expected = [
        (mask + sum(int(v) * words[j * stride + k] for k, v in enumerate(batch))) % Q
        for j, (batch, mask) in enumerate(zip(batches, masks, strict=True))
    ]
    assert TAGS.make(values, per, rank) == expected


def test_long_vectors_are_one_stream() -> None:
    """More batches than a piece of keystream has room for: cutting changes nothing."""
    (values,) = vectors(1, 40_000)
    made = TAGS.make(values, 97, 3)
    words, masks = stream("tag", 0, 98 * 413), stream("tag-mask", 3, 413)
    for j in (0, 82, 83, 84, 412):
        batch = values[97 * j : 97 * (j + 1)]
        product = sum(int(v) * words[98 * j + k] for k, v in enumerate(batch))
        assert made[j] == (product + masks[j]) % Q


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(2, 32), st.integers(0, 2**32 - 1))
def test_sums_verify(count: int, bits: int, seed: int) -> None:
    tags, total = summed(vectors(count, bits=bits, seed=seed))
    TAGS.verify(tags, total, PER, range(count))


def test_sums_of_a_thousand_and_32_bits() -> None:
    bound = 2**31 - 1
    parts = [np.array([bound, -bound] * 13, np.int32)] * 1024
    tags, total = summed(parts)
    assert int(total.max()) == 1024 * bound
    TAGS.verify(tags, total, PER, range(1024))


def test_any_change_of_any_slot_or_tag_is_noticed() -> None:
    tags, total = summed(vectors(3))
    TAGS.verify(tags, total, PER, (0, 1, 2))
    for change in (1, -1, 1 << 15, (1 << 31) - 1, 1 << 32, (1 << 55) - 1, -(1 << 55)):
        for lane in range(total.size):
            bad = total.copy()
            bad[lane] += change
            refused(tags, bad)
        for j in range(4):
            refused([t + change * (i == j) for i, t in enumerate(tags)], total)


def test_slots_and_batches_that_change_places_are_noticed() -> None:
    tags, total = summed(vectors(3))
    for other in (np.roll(total, 1), np.roll(total, -1), total[::-1].copy(), 2 * total, -total):
        refused(tags, other)
    refused([2 * t for t in tags], 2 * total)
    swapped = total.copy()
    swapped[:7], swapped[7:14] = total[7:14], total[:7]
    refused([tags[1], tags[0], *tags[2:]], swapped)  # each with its own tag


def test_one_vector_for_another_is_noticed() -> None:
    """One sender's twice, another's left out; one taken away again."""
    parts = vectors(3)
    made = [TAGS.make(values, PER, rank) for rank, values in enumerate(parts)]
    for factors in ((2, 1, 0), (0, 2, 1), (1, 1, 2), (3, 0, 0), (2, 2, -1), (0, 0, 0)):
        tags = [
            sum(f * t for f, t in zip(factors, c, strict=True)) for c in zip(*made, strict=True)
        ]
        total: Vector = sum(f * p.astype(np.int64) for f, p in zip(factors, parts, strict=True))
        refused(tags, total)


def test_a_batch_that_is_zero_cannot_be_told_from_another() -> None:
    """What a relay would do to learn whether a batch is what it guesses: add it, less the guess.

    A multiple of it, too, that leaves a multiple of Q above the slots if some bits of the tag are
    what it guesses: nothing that lies beyond what so many tags add up to is accepted.
    """
    zero = np.zeros(26, np.int32)
    parts = [*vectors(2), zero]
    tags, total = summed(parts)
    own = TAGS.make(zero, PER, 2)
    refused([tags[0] + own[0], *tags[1:]], total)
    for multiple in (3, -1, -3, 1 << 32, 1 << 900, -(1 << 900)):
        refused([tags[0] + multiple * Q, *tags[1:]], total)


@pytest.mark.parametrize("tau", [0, Q - 1])
def test_sums_of_the_smallest_and_the_largest_tags_are_accepted(
    monkeypatch: pytest.MonkeyPatch, tau: int
) -> None:
    monkeypatch.setattr(Tags, "_masks", lambda self, rank, count: np.full(count, tau, np.uint64))
    tags, total = summed([np.zeros(26, np.int32)] * 3)
    assert tags == [3 * tau] * 4
    TAGS.verify(tags, total, PER, (0, 1, 2))


def test_other_senders_slots_and_keys_are_noticed() -> None:
    tags, total = summed(vectors(3))
    for senders in ((), (0,), (0, 1), (0, 1, 3), (1, 2, 3), (0, 1, 2, 3)):
        refused(tags, total, senders)
    changes: list[dict[str, Any]] = [
        {"round": 3},
        {"attempt": 0},
        {"run_id": 6},
        {"epoch": bytes([1]) * 16},
        {"layout_hash": bytes([1]) * 32},
        {"history": bytes([1]) * 32},
        {"roster_hash": bytes([1]) * 32},
    ]
    assert {name for change in changes for name in change} == {
        f.name for f in dataclasses.fields(Slot)
    }
    for change in changes:
        refused(tags, total, of=Tags(KEY, dataclasses.replace(AT, **change)))
    refused(tags, total, of=Tags(bytes(32), AT))


def test_equal_vectors_of_two_senders_have_unrelated_tags() -> None:
    (values,) = vectors(1)
    made = [tag for rank in range(50) for tag in TAGS.make(values, PER, rank)]
    assert len(set(made)) == len(made)
    assert max(made) > Q // 2


def test_the_key_does_not_show() -> None:
    assert repr(KEY) not in repr(TAGS)
    assert "group_key" not in repr(TAGS)
