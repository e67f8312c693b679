"""Tags: a sum of tagged batches verifies for its senders and slot, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.errors import AuthenticationError
from flhe.schemes.batchcrypt.batch_mac import Tags
from flhe.schemes.sealed import Slot
from tests.laws import OTHER_SLOTS
from tests.reference.wire import hkdf, word

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


def test_long_vectors_are_one_stream() -> None:
    """More batches than a piece of keystream has room for: cutting changes nothing."""
    (values,) = vectors(1, 40_000)
    made = TAGS.make(values, 97, 3)
    key, masks = (hkdf(KEY, label, *AT.context()) for label in ("tag", "tag-mask"))
    for j in (0, 82, 83, 84, 412):
        batch = values[97 * j : 97 * (j + 1)]
        product = sum(int(v) * word(key, 0, 98 * j + k) for k, v in enumerate(batch))
        assert made[j] == (product + word(masks, 3, j)) % Q


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
    for slot in OTHER_SLOTS.values():
        refused(tags, total, of=Tags(KEY, slot))
    refused(tags, total, of=Tags(bytes(32), AT))
