"""FLASHE beyond the laws: what its masks are, what they cost, and what never shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.coding.base import Plain
from flhe.math.prg import AesCtr, Stream
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT
from tests.reference.flashe import FlasheBook
from tests.reference.wire import numbers

NOTHING = np.empty(0, np.int32)


def encrypt(scheme: Flashe, rank: int, plain: list[int], prg: Any = None) -> Sealed:
    sealer = FlasheSealer(scheme, KEY, rank, prg or AesCtr())
    return sealer.encrypt(Plain(np.array(plain, np.int32), NOTHING), SLOT)


def lanes_of(scheme: Flashe, sealed: Sealed) -> list[int]:
    packing = scheme.packing
    out = np.empty(sealed.length, packing.signed)
    zero = np.zeros(sealed.length, packing.lane)
    return [v % 2**packing.bits for v in packing.unpack(sealed.data, zero, out).tolist()]


@pytest.mark.parametrize("cohort", [2, 3, 8])
def test_a_full_sum_keeps_its_first_and_last_mask(cohort: int) -> None:
    """With j + 1 taken modulo N, all masks of a full sum would cancel and the server would read it."""
    scheme, plain = Flashe(cohort, 16), numbers(200, 16, 1)
    single = FlasheBook(cohort, 16, "double")
    total = None
    for j in range(cohort):
        total = scheme.add(total, encrypt(scheme, j, plain))
    assert total is not None
    rest = [
        (lane - cohort * m) % 2**single.b
        for lane, m in zip(lanes_of(scheme, total), plain, strict=True)
    ]
    masks = [single.masks(j, range(200)) for j in range(cohort)]
    assert rest == [sum(mask[d] for mask in masks) % 2**single.b for d in range(200)]
    assert sum(r != 0 for r in rest) > 190


@given(st.sets(st.integers(0, 40), min_size=1))
def test_masks_telescope_over_runs(senders: set[int]) -> None:
    double, single = Flashe(41), Flashe(41, masking="single")
    plus, minus = double.mask_terms(senders)
    terms: dict[int, int] = {}
    for j in senders:
        terms[j] = terms.get(j, 0) + 1
        terms[j + 1] = terms.get(j + 1, 0) - 1
    assert sorted(plus) == sorted(j for j, sign in terms.items() if sign == 1)
    assert sorted(minus) == sorted(j for j, sign in terms.items() if sign == -1)
    assert len(plus) == len(minus) == sum(j - 1 not in senders for j in senders)
    assert single.mask_terms(senders) == (sorted(senders), [])


class Counting:
    """A Prg that counts streams."""

    name = "counting"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def stream(self, key: bytes, number: int, block: int = 0) -> Stream:
        self.numbers.append(number)
        return AesCtr().stream(key, number, block)


@pytest.mark.parametrize(
    ("masking", "senders", "streams"),
    [
        ("double", range(9), [0, 9]),
        ("double", [0, 1, 2, 5, 6], [0, 3, 5, 7]),
        ("double", [0, 2, 4], [0, 1, 2, 3, 4, 5]),
        ("single", [0, 1, 2, 5, 6], [0, 1, 2, 5, 6]),
    ],
)
def test_opening_costs_two_streams_a_run(
    masking: Any, senders: Iterable[int], streams: list[int]
) -> None:
    scheme, total = Flashe(9, 16, masking), None
    for j in senders:
        prg = Counting()
        total = scheme.add(total, encrypt(scheme, j, [1] * 10, prg))
        assert sorted(prg.numbers) == ([j, j + 1] if masking == "double" else [j])
    assert total is not None
    prg = Counting()
    assert set(FlasheOpener(scheme, KEY, prg).decrypt(total).tolist()) == {len(total.senders)}
    assert sorted(prg.numbers) == streams


def test_the_two_modes_share_no_mask() -> None:
    """A server that asked for both in one round would otherwise hold F(j + 1) alone."""
    double, single = Flashe(3, 16, "double"), Flashe(3, 16, "single")
    both = [lanes_of(scheme, encrypt(scheme, 1, [0] * 64)) for scheme in (double, single)]
    difference = [(f - masked) % 2**18 for masked, f in zip(*both, strict=True)]
    next_mask = lanes_of(single, encrypt(single, 2, [0] * 64))
    assert sum(a == b for a, b in zip(difference, next_mask, strict=True)) < 4


@pytest.mark.parametrize("bits", [2, 16, 31])
def test_lane_width_is_part_of_the_derivation(bits: int) -> None:
    narrow, wide = (
        lanes_of(Flashe(n, bits), encrypt(Flashe(n, bits), 0, [0] * 40)) for n in (4, 5)
    )
    assert narrow != [lane % 2 ** Flashe(4, bits).lane_bits for lane in wide]


def test_the_size_that_the_paper_reports() -> None:
    """16384 values, w = 16, N = 10: 40 KiB, exactly 20 bits a value."""
    scheme = Flashe(10, 16)
    assert scheme.lane_bits == 20
    assert encrypt(scheme, 3, [0] * 16384).data.size == scheme.nbytes(16384) == 40_960


@pytest.mark.parametrize(
    "parameters",
    [
        (1, 16),
        (0, 16),
        (-3, 16),
        (1025, 16),
        (3, 1),
        (3, 33),
        (3, 0),
        (3, 16, "triple"),
        (3, 16, ""),
    ],
)
def test_parameters_that_cannot_be(parameters: tuple[Any, ...]) -> None:
    with pytest.raises(errors.ConfigError, match=r"must be|masking is"):
        Flashe(*parameters)


@pytest.mark.parametrize("bits", [2, 16, 32])
def test_what_is_prepared_becomes_the_ciphertext(bits: int) -> None:
    scheme = Flashe(20, bits)
    sealer = FlasheSealer(scheme, KEY, 4)
    length = 2 * scheme.packing.block + 7
    sealer.prepare(SLOT, length)
    (ready,) = sealer._ready.values()
    assert ready.size == scheme.nbytes(length)  # b bits a value, not a whole lane
    sealed = sealer.encrypt(Plain(np.ones(length, np.int32), NOTHING), SLOT)
    assert np.shares_memory(sealed.data, ready)
    assert not sealer._ready
    assert FlasheOpener(scheme, KEY).decrypt(sealed).tolist() == [1] * length
