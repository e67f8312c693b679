"""Support: its two codings bit by bit, its size, and that nothing else is accepted."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.support import HEADER, MAX_LENGTH, Support
from flhe.wire import canonical


def array(coords: list[int]) -> NDArray[np.uint32]:
    return np.array(coords, np.uint32)


def header(kind: int, count: int) -> bytes:
    return bytes([kind]) + count.to_bytes(4, "big")


def to_bytes(bits: list[int]) -> bytes:
    padded = bits + [0] * (-len(bits) % 8)
    octets = [padded[at : at + 8] for at in range(0, len(padded), 8)]
    return bytes(sum(bit << i for i, bit in enumerate(octet)) for octet in octets)


def rice(coords: list[int], p: int) -> list[int]:
    bits: list[int] = []
    before = -1
    for c in coords:
        gap, before = c - before - 1, c
        bits += [0] * (gap >> p) + [1] + [gap >> i & 1 for i in range(p)]
    return bits


def reference(coords: list[int], length: int) -> bytes:
    """The shortest of all codings: of equal ones the bitmap, then the lowest parameter."""
    members = set(coords)
    codings = [header(0, len(coords)) + to_bytes([int(d in members) for d in range(length)])]
    gaps = [b - a - 1 for a, b in zip([-1, *coords], coords, strict=False)]
    cost = [sum((g >> p) + 1 + p for g in gaps) for p in range(32)]
    p = cost.index(min(cost))
    codings.append(header(1 + p, len(coords)) + to_bytes(rice(coords, p)))
    return min(codings, key=len)


@st.composite
def sets(draw: st.DrawFn, most: int = 400) -> tuple[list[int], int]:
    length = draw(st.integers(0, most))
    count = draw(st.integers(0, length))
    seed = draw(st.integers(0, 2**32 - 1))
    spread = draw(st.sampled_from([1, 1, 3]))  # evenly, or close to the start
    order = np.random.default_rng(seed).permutation(max(length // spread, min(count, length)))
    return sorted(order[:count].tolist()), length


@given(sets())
@settings(max_examples=150, deadline=None)
def test_codes_as_the_reference_and_back(given_set: tuple[list[int], int]) -> None:
    coords, length = given_set
    support = Support.of(array(coords), length)
    assert support.data == reference(coords, length)
    assert support.count == len(coords)
    again = Support.from_bytes(support.data, length)
    assert again == support
    assert again.coords.tolist() == coords
    assert again.coords.dtype == np.uint32
    assert Support(length, len(coords), support.data).coords.tolist() == coords
    words = support.bitmap().tolist()
    assert len(words) == -(-length // 64)
    assert [d for d in range(length) if words[d // 64] >> d % 64 & 1] == coords
    assert sum(w.bit_count() for w in words) == len(coords)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000, MAX_LENGTH])
def test_extreme_sets(length: int) -> None:
    for coords in ([], [0], [length - 1], list(range(min(length, 70)))):
        support = Support.of(array(coords), length)
        assert Support.from_bytes(support.data, length).coords.tolist() == coords
    assert Support.of(array([]), length).data == header(1, 0)
    assert Support.of(array([]), 0).data == header(0, 0)


@pytest.mark.parametrize(("share", "over"), [(0.01, 1.01), (0.1, 1.02), (0.2, 1.03)])
def test_random_sets_take_little_more_than_their_entropy(share: float, over: float) -> None:
    length = 200_000
    coords = np.random.default_rng(1).choice(length, int(share * length), replace=False)
    support = Support.of(np.sort(coords).astype(np.uint32), length)
    entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    assert 8 * len(support.data) / length <= over * entropy
    assert Support.from_bytes(support.data, length) == support


@pytest.mark.parametrize("run", [1, 7, 500, 10_000])
def test_no_set_takes_more_than_the_bound(run: int) -> None:
    length = 100_000
    every = np.arange(length)
    coords = every[every % (10 * run) < run].astype(np.uint32)
    bound = min(coords.size * (1 + p) + (length - coords.size) / 2**p for p in range(32))
    assert 8 * (len(Support.of(coords, length).data) - HEADER) <= bound + 7


@given(sets(200), st.data())
@settings(max_examples=150, deadline=None)
def test_mutations_are_refused_or_the_one_encoding(
    given_set: tuple[list[int], int], data: st.DataObject
) -> None:
    coords, length = given_set
    told = bytearray(Support.of(array(coords), length).data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(told) - 1)) if told else 0
        match data.draw(st.sampled_from(["flip", "set", "cut", "grow"])):
            case "flip" if told:
                told[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set" if told:
                told[at] = data.draw(st.sampled_from([0, 1, 2, 3, 32, 33, 128, 255]))
            case "cut":
                del told[at:]
            case "grow":
                told += data.draw(st.binary(min_size=1, max_size=9))
    try:
        support = Support.from_bytes(bytes(told), length)
    except errors.ProtocolError:
        return
    assert support.data == told
    assert Support.of(support.coords, length).data == told
    assert reference(support.coords.tolist(), length) == told


@given(st.binary(max_size=40), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_noise_is_refused_or_the_one_encoding(told: bytes, length: int) -> None:
    try:
        support = Support.from_bytes(told, length)
    except errors.ProtocolError:
        return
    assert reference(support.coords.tolist(), length) == told


LENGTH = 100


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (b"", "0 bytes"),
        (b"\1\0\0\0", "4 bytes"),
        (header(0, 0) + bytes(14), "19 bytes"),
        (header(33, 1) + b"\1", "kind 33"),
        (header(255, 1) + b"\1", "kind 255"),
        (header(0, 1) + bytes(12) + b"\x10", "bitmap"),  # a coordinate beyond the layout
        (header(0, 51) + b"\xff" * 12 + b"\x0f", "bitmap"),  # 100 coordinates, not 51
        (header(0, 96) + b"\xff" * 12, "bitmap"),  # a byte short
        (header(0, 1) + b"\1" + bytes(12), "longer encoding"),
        (header(2, 1) + b"\1", "longer encoding"),  # parameter 1 where 0 is as good
        (header(1, 2**32 - 1) + b"\1", "more coordinates"),
        (header(1, 9) + b"\xff", "more coordinates"),
        (header(1, 101) + b"\xff" * 13, "more coordinates"),
        (header(1, 2) + b"\1", "code"),  # one code, not two
        (header(1, 1) + b"\3", "code"),  # two codes, not one
        (header(1, 1) + b"\1\0", "code"),  # a byte too many
        (header(1, 0) + b"\0", "code"),
        (header(1, 1) + bytes(13), "code"),  # a unary part that never ends
        (header(32, 1) + b"\1\0\0\x80", "code"),  # far beyond the layout
        (header(4, 1) + b"\x80", "code"),  # cut in the low bits
        (header(1, 1) + bytes(12) + b"\x10", "code"),  # coordinate 100
    ],
)
def test_what_is_no_encoding_is_refused(told: bytes, match: str) -> None:
    with pytest.raises(errors.ProtocolError, match=match):
        Support.from_bytes(told, LENGTH)


@pytest.mark.parametrize("p", range(32))
def test_hostile_runs_of_zeros_do_not_wrap(p: int) -> None:
    """Zeros shifted by a large parameter must leave the layout, not come round to its start."""
    length = 1 << 20
    for zeros in (1 << 16, 1 << 18, 1 << 19):
        told = header(1 + p, 1) + to_bytes([0] * zeros + [1] + [0] * p)
        with pytest.raises(errors.ProtocolError):
            Support.from_bytes(told, length)


@pytest.mark.parametrize("coords", [[3, 3], [4, 3], [100], [5, 2**32 - 1]])
def test_sets_that_are_none_cannot_be_coded(coords: list[int]) -> None:
    with pytest.raises(errors.ConfigError, match="ascend and lie below 100"):
        Support.of(array(coords), LENGTH)


def test_impossible_lengths_are_refused() -> None:
    for length in (-1, MAX_LENGTH + 1):
        with pytest.raises(errors.ConfigError, match="length"):
            Support.of(array([]), length)
        with pytest.raises(errors.ConfigError, match="length"):
            Support.from_bytes(header(1, 0), length)


def test_coordinates_cannot_be_changed_behind_its_back() -> None:
    given_coords = array([1, 2, 50])
    support = Support.of(given_coords, LENGTH)
    given_coords[0] = 7
    assert support.coords.tolist() == [1, 2, 50]
    for kept in (support, Support.from_bytes(support.data, LENGTH)):
        with pytest.raises(ValueError, match="read-only"):
            kept.coords[0] = 3


def test_digest_covers_the_set_and_its_length() -> None:
    support = Support.of(array([1, 2, 50]), LENGTH)
    fields = ["flhe/v1/support", LENGTH, support.data]
    assert support.digest() == hashlib.sha256(canonical.dumps(fields)).digest()
    others = [
        Support.of(array([1, 2, 50]), LENGTH + 1),
        Support.of(array([1, 2, 51]), LENGTH),
        Support.of(array([]), LENGTH),
    ]
    assert len({s.digest() for s in (support, *others)}) == 4
    assert "data" not in repr(support)
