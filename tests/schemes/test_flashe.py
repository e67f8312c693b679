"""FLASHE beyond the laws: what masks cost, what is prepared, modes that share none, sparse vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.math.prg import Stream
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.flashe.sparse import covered
from tests.laws import KEY, SLOT, add_up, flashe_lanes, whole


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the streams that are made."""
    made: list[int] = []
    start = Stream.__init__

    def counted(self: Stream, key: bytes, number: int, block: int = 0) -> None:
        made.append(number)
        start(self, key, number, block)

    monkeypatch.setattr(Stream, "__init__", counted)
    return made


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
    masking: Any, senders: Iterable[int], streams: list[int], numbers: list[int]
) -> None:
    scheme, total = Flashe(masking=masking).adder(9, 16), None
    for j in senders:
        numbers.clear()
        part = FlasheSealer(scheme, KEY, j).encrypt(whole([1] * 10), SLOT)
        total = scheme.add(total, part)
        assert sorted(numbers) == ([j, j + 1] if masking == "double" else [j])
    assert total is not None
    numbers.clear()
    assert set(FlasheOpener(scheme, KEY).decrypt(total).tolist()) == {len(total.senders)}
    assert sorted(numbers) == streams


def test_the_two_modes_share_no_mask() -> None:
    """A server that asked for both in one round would otherwise hold F(j + 1) alone."""

    def lanes(masking: Any, rank: int) -> Any:
        scheme = Flashe(masking=masking).adder(3, 16)
        sealed = FlasheSealer(scheme, KEY, rank).encrypt(whole([0] * 64), SLOT)
        return flashe_lanes(scheme, sealed)

    difference = (lanes("single", 1) - lanes("double", 1)) % 2**18
    assert np.count_nonzero(difference == lanes("single", 2) % 2**18) < 4


@pytest.mark.parametrize("bits", [2, 16, 32])
def test_what_is_prepared_becomes_the_ciphertext(bits: int) -> None:
    scheme = Flashe().adder(20, bits)
    sealer = FlasheSealer(scheme, KEY, 4)
    length = 2 * scheme.packing.block + 7
    sealer.prepare(SLOT, length)
    (ready,) = sealer._ready.values()
    assert ready.size == scheme.nbytes(length)  # b bits a value, not a whole lane
    sealed = sealer.encrypt(whole([1] * length), SLOT)
    assert np.shares_memory(sealed.data, ready)
    assert not sealer._ready
    assert FlasheOpener(scheme, KEY).decrypt(sealed).tolist() == [1] * length


SCHEME = Flashe(masking="adaptive").adder(3, 16)
both_modes = pytest.mark.parametrize("mode", ["double", "single"])


@both_modes
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("length", [65_535, 140_001])
def test_lengths_beyond_one_chunk_and_threads_agree(mode: str, density: float, length: int) -> None:
    rng, bound = np.random.default_rng(1), SCHEME.space.bound
    dense, extras, sent, parts = np.zeros(length, np.int64), np.zeros(3, np.int64), [], []
    for rank in (0, 2):
        coords = np.flatnonzero(rng.random(length) < density).astype(np.uint32)
        values = rng.integers(-bound, bound + 1, coords.size + 3).astype(np.int32)
        plain, support = Plain(values[3:], values[:3], coords), Support.of(coords, length)
        one, other = (
            FlasheSealer(SCHEME, KEY, rank, threads=threads).encrypt(
                plain, SLOT, mode=mode, support=support
            )
            for threads in (1, 3)
        )
        assert one.digest() == other.digest()
        parts.append(one)
        sent.append(coords)
        dense[coords] += plain.values
        extras += plain.extras
    total = SCHEME.close(add_up(SCHEME, parts, rng))
    union = np.unique(np.concatenate(sent))
    assert np.array_equal(covered(total.supports), union)
    assert total.data.size == SCHEME.nbytes(union.size + 3)
    for threads in (1, 3):
        opened = FlasheOpener(SCHEME, KEY, threads=threads).decrypt(total)
        assert np.array_equal(opened, np.concatenate([dense[union], extras]))
