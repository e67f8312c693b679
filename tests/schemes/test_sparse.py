"""FLASHE on sparse vectors: of any length, on any threads, and under supports that were altered."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.flashe.sparse import covered
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, SLOT, add_up

SCHEME = Flashe(masking="adaptive").adder(3, 16)
both_modes = pytest.mark.parametrize("mode", ["double", "single"])


@dataclasses.dataclass
class Case:
    """One round of sparse vectors, three extras behind each."""

    length: int
    density: float
    mode: str

    def __post_init__(self) -> None:
        rng, bound = np.random.default_rng(1), SCHEME.space.bound
        self.plains, self.supports = [], []
        for _ in range(3):
            coords = np.flatnonzero(rng.random(self.length) < self.density).astype(np.uint32)
            values = rng.integers(-bound, bound + 1, coords.size + 3).astype(np.int32)
            self.plains.append(Plain(values[3:], values[:3], coords))
            self.supports.append(Support.of(coords, self.length))

    def total(self, senders: tuple[int, ...], threads: int = 1) -> Sealed:
        """Closed sum of some of them, added in a random order and grouping."""
        parts = [
            FlasheSealer(SCHEME, KEY, rank, threads=threads).encrypt(
                self.plains[rank], SLOT, mode=self.mode, support=self.supports[rank]
            )
            for rank in senders
        ]
        return SCHEME.close(add_up(SCHEME, parts, np.random.default_rng(2)))

    def expected(self, senders: tuple[int, ...]) -> NDArray[np.int64]:
        """Dense sums of the coordinates."""
        dense = np.zeros(self.length, np.int64)
        for i in senders:
            np.add.at(dense, self.plains[i].coords, self.plains[i].values)
        return dense


@both_modes
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("length", [65_535, 140_001])
def test_lengths_beyond_one_chunk_and_threads_agree(mode: str, density: float, length: int) -> None:
    case = Case(length, density, mode)
    for senders in ((0, 2), (0, 1, 2)):
        total = case.total(senders)
        assert total.digest() == case.total(senders, threads=3).digest()
        coords, dense = covered(total.supports), case.expected(senders)
        extras = np.sum([case.plains[i].extras for i in senders], axis=0)
        assert total.data.size == SCHEME.nbytes(coords.size + 3)
        sent = np.concatenate([case.plains[i].coords for i in senders])
        assert np.array_equal(coords, np.unique(sent))
        for threads in (1, 3):
            opened = FlasheOpener(SCHEME, KEY, threads=threads).decrypt(total)
            assert np.array_equal(opened, np.concatenate([dense[coords], extras]))
