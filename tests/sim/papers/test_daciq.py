"""dACIQ: the table is the minimum of the formula, and the formula is what our quantizer does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flhe.coding.aciq import RATIOS
from flhe.coding.base import Plain
from flhe.coding.chain import chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe_lab.papers.daciq import best, error
from tests.laws import random_source

SIZE = 1_000_000
DATA = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)


@pytest.mark.parametrize("bits", range(2, 33))
def test_the_table_is_the_minimum(bits: int) -> None:
    assert best(lambda c: error(bits, c)) == pytest.approx(RATIOS[bits], abs=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_the_codec_errs_as_expected_and_least_at_the_table(bits: int) -> None:
    layout = Layout((Entry("w", (SIZE,), "float32"),))

    def measured(c: float) -> tuple[float, float]:
        """Mean squared error of the real codec on N(0, 1), and the standard error of that mean."""
        codec = chain(Clip(c), Quantize(bits, random=random_source(bits, SIZE)))
        state = codec.init(layout)
        encoded, _ = codec.encode(Plain(DATA, np.empty(0, np.int64)), state)
        opened, _ = codec.decode(encoded, (0,), state)
        squares = (opened.values - DATA.astype(np.float64)) ** 2
        return float(squares.mean()), float(squares.std()) / math.sqrt(SIZE)

    errors = {}
    for factor in (1.0, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.4):
        errors[factor], noise = measured(RATIOS[bits] * factor)
        assert abs(errors[factor] - error(bits, RATIOS[bits] * factor)) < 5 * noise
    least, noise = measured(RATIOS[bits])
    assert least <= min(errors.values()) + 5 * noise
    # Away from it the difference is more than noise: the sampled minimum is where the table says.
    assert all(errors[f] > least for f in (0.7, 0.8, 1.2, 1.4))
