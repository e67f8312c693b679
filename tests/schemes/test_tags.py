"""Tags: a sum of tagged batches verifies for its senders and slot, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.errors import AuthenticationError
from flhe.math.ring import Q
from flhe.schemes.batchcrypt.batch_mac import BatchMac
from tests.laws import KEY, OTHER_KEY, OTHER_SLOTS, SLOT
from tests.reference.wire import NEAR, context, hkdf, word

TAGS = BatchMac(KEY, SLOT)
PER = 7

Vector = NDArray[Any]


def vectors(count: int, length: int = 26) -> list[Vector]:
    lanes = np.random.default_rng(1).integers(-32767, 32768, (count, length)).astype(np.int32)
    lanes[:, ::5] = -32767
    return list(lanes)


def combined(parts: list[Vector], factors: tuple[int, ...] = ()) -> tuple[list[int], Vector]:
    """Tags and values of a sum in which each part is taken so often."""
    times = factors or (1,) * len(parts)
    made = [TAGS.make(values, PER, rank) for rank, values in enumerate(parts)]
    tags = [sum(f * t for f, t in zip(times, c, strict=True)) for c in zip(*made, strict=True)]
    return tags, sum(f * p.astype(np.int64) for f, p in zip(times, parts, strict=True))


def refused(tags: list[int], values: Vector, senders: Any = (0, 1, 2), of: BatchMac = TAGS) -> None:
    with pytest.raises(AuthenticationError, match="not that of what its senders encrypted"):
        of.verify(tags, values, PER, senders)


def test_long_vectors_are_one_stream() -> None:
    """More batches than a piece of keystream has room for: cutting changes nothing."""
    (values,) = vectors(1, 40_000)
    made = TAGS.make(values, 97, 3)
    key, masks = (hkdf(KEY, label, *context(NEAR)) for label in ("tag", "tag-mask"))
    for j in (0, 82, 83, 84, 412):
        batch = values[97 * j : 97 * (j + 1)]
        product = sum(int(v) * word(key, 0, 98 * j + k) for k, v in enumerate(batch))
        assert made[j] == (product + word(masks, 3, j)) % Q


def test_sums_of_a_thousand_and_32_bits() -> None:
    bound = 2**31 - 1
    tags, total = combined([np.array([bound, -bound] * 13, np.int32)] * 1024)
    assert int(total.max()) == 1024 * bound
    TAGS.verify(tags, total, PER, range(1024))


def test_any_change_of_any_slot_or_tag_is_noticed() -> None:
    tags, total = combined(vectors(3))
    TAGS.verify(tags, total, PER, (0, 1, 2))
    for change in (1, -1, 1 << 15, (1 << 31) - 1, 1 << 32, (1 << 55) - 1, -(1 << 55)):
        for lane in range(total.size):
            bad = total.copy()
            bad[lane] += change
            refused(tags, bad)
        for j in range(4):
            refused([t + change * (i == j) for i, t in enumerate(tags)], total)


def test_a_batch_that_is_zero_cannot_be_told_from_another() -> None:
    """What a relay would do to learn whether a batch is what it guesses: add it, less the guess.

    A multiple of it, too, that leaves a multiple of Q above the slots if some bits of the tag are
    what it guesses: nothing that lies beyond what so many tags add up to is accepted.
    """
    zero = np.zeros(26, np.int32)
    tags, total = combined([*vectors(2), zero])
    refused([tags[0] + TAGS.make(zero, PER, 2)[0], *tags[1:]], total)
    inside = tags[0] // Q
    for multiple in (3 - inside, -1 - inside, -3, 1 << 32, 1 << 900, -(1 << 900)):
        refused([tags[0] + multiple * Q, *tags[1:]], total)


@pytest.mark.parametrize("tau", [0, Q - 1])
def test_sums_of_the_smallest_and_the_largest_tags_are_accepted(
    monkeypatch: pytest.MonkeyPatch, tau: int
) -> None:
    monkeypatch.setattr(
        BatchMac, "_masks", lambda self, rank, count: np.full(count, tau, np.uint64)
    )
    tags, total = combined([np.zeros(26, np.int32)] * 3)
    assert tags == [3 * tau] * 4
    TAGS.verify(tags, total, PER, (0, 1, 2))


def test_other_senders_slots_and_keys_are_noticed() -> None:
    tags, total = combined(vectors(3))
    for senders in ((), (0,), (0, 1), (0, 1, 3), (1, 2, 3), (0, 1, 2, 3)):
        refused(tags, total, senders)
    for slot in OTHER_SLOTS.values():
        refused(tags, total, of=BatchMac(KEY, slot))
    refused(tags, total, of=BatchMac(OTHER_KEY, SLOT))
