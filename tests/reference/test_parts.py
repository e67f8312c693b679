"""Parts of the schemes against their second implementations, anywhere at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.quantize import EXTRA_BITS, Quantize
from flhe.errors import AuthenticationError
from flhe.math.permutation import SMALL, Permutation
from flhe.schemes.batchcrypt.batch_mac import Tags
from flhe.schemes.sealed import Slot
from tests.reference.field import Q
from tests.reference.mixing import SLOTS
from tests.reference.part_formats import digits
from tests.reference.permutation import permutation
from tests.reference.wire import context, hkdf, word

KEYS = st.binary(min_size=32, max_size=32)

EDGES = st.sampled_from([SMALL - 1, SMALL, SMALL + 1, 256**2 + 257, 2**17 - 1, 3**11])


def permutes_alike(key: bytes, length: int, data: st.DataObject) -> None:
    ours = Permutation(key, length)
    theirs = permutation(key, length)
    coords = data.draw(st.lists(st.integers(0, length - 1), max_size=10))
    coords += [0, length - 1, length // 2]  # a shuffle's inverse is searched for
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
    st.integers(0, 60),
    st.dictionaries(st.integers(0, 1023), st.integers(0, 2**20), min_size=1, max_size=4),
    st.data(),
)
def test_tags_by_either(
    key: bytes,
    slot: dict[str, object],
    per: int,
    length: int,
    senders: dict[int, int],
    data: st.DataObject,
) -> None:
    """Each sender's tags are made twice; sums of them verify, and of no other set."""
    cuts = [(i, min(i + per, length)) for i in range(0, length, per)]
    ours, masks = Tags(key, Slot(*context(slot))), hkdf(key, "tag-mask", *context(slot))
    tags, total = [0] * len(cuts), [0] * length
    for rank, salt in senders.items():
        vector = [(salt + i) * 0x9E3779B1 % 65535 - 32767 for i in range(length)]
        expected = [
            (tag(key, slot, vector[a:b], j, per) + word(masks, rank, j)) % Q
            for j, (a, b) in enumerate(cuts)
        ]
        assert ours.make(np.array(vector, np.int32), per, rank) == expected
        tags = [x + y for x, y in zip(tags, expected, strict=True)]
        total = [x + y for x, y in zip(total, vector, strict=True)]
    summed = np.array(total, np.int64)
    ours.verify(tags, summed, per, sorted(senders))
    if cuts:
        other = sorted({*senders} ^ {data.draw(st.integers(0, 1023))})
        with pytest.raises(AuthenticationError):
            ours.verify(tags, summed, per, other)
