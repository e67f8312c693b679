"""Parts of the schemes against their second implementations, anywhere at all."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.quantize import EXTRA_BITS, Quantize
from flhe.errors import AuthenticationError
from flhe.math.permutation import SMALL, Permutation
from flhe.math.ring import add
from flhe.math.shamir import Shamir
from flhe.schemes.tags import Tags
from flhe.sealed import Slot
from tests.reference.field import Q
from tests.reference.mixing import SLOTS
from tests.reference.part_formats import digits
from tests.reference.permutation import permutation
from tests.reference.shamir import lowest, point, shared
from tests.reference.wire import Tape, context, hkdf, word

KEYS = st.binary(min_size=32, max_size=32)

EDGES = st.sampled_from([SMALL - 1, SMALL, SMALL + 1, 256**2 + 257, 2**17 - 1, 3**11])


def permutes_alike(key: bytes, length: int, data: st.DataObject) -> None:
    ours = Permutation(key, length)
    theirs = permutation(key, length)
    coords = data.draw(st.lists(st.integers(0, length - 1), max_size=10))
    coords += [0, length - 1, length // 2]
    where = np.array(coords, np.uint32)
    assert ours.forward(where).tolist() == [theirs.forward(d) for d in coords]
    assert ours.inverse(where).tolist() == [theirs.inverse(d) for d in coords]


@settings(deadline=None, max_examples=80)
@given(KEYS, st.integers(1, 3000) | EDGES | st.integers(SMALL, 10**6), st.data())
def test_permutations_are_the_second_implementations(
    key: bytes, length: int, data: st.DataObject
) -> None:
    permutes_alike(key, length, data)


@pytest.mark.sweep
@settings(deadline=None, max_examples=300)
@given(KEYS, EDGES | st.integers(1, 2**31 - 1), st.data())
def test_permutations_of_any_length(key: bytes, length: int, data: st.DataObject) -> None:
    permutes_alike(key, length, data)


# --- extras in digits ---


EXTRAS = st.integers(-(2**EXTRA_BITS) + 1, 2**EXTRA_BITS - 1) | st.sampled_from(
    [0, 1, -1, 2**EXTRA_BITS - 1, -(2**EXTRA_BITS) + 1]
)


@settings(deadline=None, max_examples=150)
@given(st.integers(2, 32), st.lists(EXTRAS, max_size=5))
def test_digits_of_extras(bits: int, extras: list[int]) -> None:
    codec, expected = Quantize(bits), [d for e in extras for d in digits(bits, e)]
    assert codec.split(np.array(extras, np.int64)).tolist() == expected
    assert codec.join(np.array(expected, np.int64)).tolist() == extras


@settings(deadline=None, max_examples=150)
@given(
    st.integers(2, 32),
    st.lists(
        st.lists(st.integers(-(2**51), 2**51), min_size=2, max_size=2), min_size=1, max_size=9
    ),
    st.data(),
)
def test_sums_of_digits_by_either(bits: int, clients: list[list[int]], data: st.DataObject) -> None:
    codec, total = Quantize(bits), []
    for extras in clients:
        ours = codec.split(np.array(extras, np.int64)).tolist()
        theirs = [d for e in extras for d in digits(bits, e)]
        total.append(data.draw(st.sampled_from([ours, theirs])))
    summed = [sum(column) for column in zip(*total, strict=True)]
    expected = [sum(column) for column in zip(*clients, strict=True)]
    assert codec.join(np.array(summed, np.int64)).tolist() == expected
    half = len(summed) // 2
    by_hand = [
        sum(d << ((bits - 1) * k) for k, d in enumerate(run))
        for run in (summed[:half], summed[half:])
    ]
    assert by_hand == expected


# --- shares of seeds ---


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 9).flatmap(
        lambda n: st.integers(2, n).flatmap(
            lambda t: st.integers(1, t - 1).map(lambda c: (n, t, c))
        )
    ),
    st.integers(1, 12),
    st.data(),
)
def test_sums_of_seeds_by_either(
    three: tuple[int, int, int], count: int, data: st.DataObject
) -> None:
    """Dealers and readers of both implementations in one agreement, with any set of who answers."""
    members, threshold, privacy = three
    scheme = Shamir(*three)
    seeds, total = [], np.zeros((members, scheme.width(count)), np.uint64)
    for dealer in range(data.draw(st.integers(1, 4))):
        salt = data.draw(st.integers(0, 2**16))
        tape = hashlib.shake_256(b"seed %d %d" % (dealer, salt)).digest(8 * count + 16_000)
        seeds.append([int.from_bytes(tape[8 * i :][:8], "little") % Q for i in range(count)])
        fresh = tape[8 * count :]
        if data.draw(st.booleans()):
            part = scheme.share(np.array(seeds[-1], np.uint64), Tape(fresh))
        else:
            part = np.array(shared(*three, seeds[-1], Tape(fresh)), np.uint64)
        total = add(total, part)
    expected = [sum(column) % Q for column in zip(*seeds, strict=True)]
    ranks = data.draw(st.permutations(range(members)))
    ranks = ranks[: data.draw(st.integers(threshold, members))]
    assert scheme.combine(ranks, total[ranks], count).tolist() == expected
    points = [point(members, rank) for rank in ranks[:threshold]]
    found: list[int] = []
    for column in total[ranks[:threshold]].T.tolist():
        found += lowest(points, column, threshold - privacy)
    assert found[:count] == expected


# --- BatchCrypt's tags ---


def tag(key: bytes, slot: dict[str, object], batch: list[int], j: int, per: int) -> int:
    """Without tau: the inner product of batch j."""
    coefficients, first = hkdf(key, "tag", *context(slot)), j * (per + per % 2)
    return sum(v * word(coefficients, 0, first + k) for k, v in enumerate(batch)) % Q


@settings(deadline=None, max_examples=40)
@given(
    KEYS,
    SLOTS,
    st.integers(1, 9),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 1023), st.integers(0, 2**20), min_size=1, max_size=4),
    st.data(),
)
def test_tags_by_either(
    key: bytes,
    slot: dict[str, object],
    per: int,
    lengths: list[int],
    senders: dict[int, int],
    data: st.DataObject,
) -> None:
    """Each sender's tags are made twice; sums of them verify, and of no other set."""
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    runs = [run for run in pairwise(ends) if run[0] < run[1]]
    cuts = [(i, min(i + per, b)) for a, b in runs for i in range(a, b, per)]
    ours, masks = Tags(key, Slot(*context(slot))), hkdf(key, "tag-mask", *context(slot))
    tags, total = [0] * len(cuts), [0] * ends[-1]
    for rank, salt in senders.items():
        vector = [(salt + i) * 0x9E3779B1 % 65535 - 32767 for i in range(ends[-1])]
        expected = [
            (tag(key, slot, vector[a:b], j, per) + word(masks, rank, j)) % Q
            for j, (a, b) in enumerate(cuts)
        ]
        assert ours.make(np.array(vector, np.int32), per, runs, rank) == expected
        tags = [x + y for x, y in zip(tags, expected, strict=True)]
        total = [x + y for x, y in zip(total, vector, strict=True)]
    summed = np.array(total, np.int64)
    ours.verify(tags, summed, per, runs, sorted(senders))
    if cuts:
        other = sorted({*senders} ^ {data.draw(st.integers(0, 1023))})
        with pytest.raises(AuthenticationError):
            ours.verify(tags, summed, per, runs, other)
