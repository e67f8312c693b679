"""The lattice cross-check: against the estimator's figures, and against its own formula, spelt out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from flhe.math.sampling import SIGMA
from flhe.schemes.esafl.scheme import ESHE
from flhe_lab.papers.lattice import Cost, log2_delta, primal, primal_errors

PAIR = SIGMA / math.sqrt(2)
"""Errors and keys of two honest members, of which everyone else knows the sums."""


@pytest.mark.parametrize(
    ("found", "bits"),
    [  # by the lattice-estimator, as the documentation has them, at q = 2**64 and p = 2**32
        (lambda: primal(512, 64, 32), 91.5),
        (lambda: primal(736, 64, 32), 132.0),
        (lambda: primal(2048, 64, 32), 412.0),
        # Homomorphic Encryption Standard (2018), Table 1: errors of 3.2, ternary secrets
        (lambda: primal_errors(4096, 109, 3.2), 128),
        (lambda: primal_errors(8192, 218, 3.2), 128),
        (lambda: primal_errors(16384, 438, 3.2), 128),
        (lambda: primal_errors(32768, 881, 3.2), 128),
        (lambda: primal_errors(32768, 611, 3.2), 192),
    ],
)
def test_it_is_within_a_tenth_of_others(found: Callable[[], Cost], bits: float) -> None:
    assert found().bits == pytest.approx(bits, rel=0.1)


@pytest.mark.parametrize("ring", ESHE)
def test_every_preset_of_eshe_reaches_the_bar(ring: str) -> None:
    preset = ESHE[ring]
    bits = primal_errors(preset.dimension, preset.log_q, PAIR).bits
    assert bits >= 128
    if preset.source == "lattice-estimator":
        assert bits == pytest.approx(preset.security, rel=0.1)


def works(n: int, log2_q: float, log2_sigma: float, beta: int, m: int) -> bool:
    """The condition of AGVW17, in logarithms."""
    d = m + n + 1
    slope = math.log2((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e))
    right = (2 * beta - d - 1) * slope / (2 * (beta - 1)) + log2_q * m / d
    return math.log2(beta) / 2 + log2_sigma <= right


@pytest.mark.parametrize(
    ("cost", "n", "log2_q", "log2_sigma"),
    [
        (primal(512, 64, 32), 512, 64, 32 - math.log2(12) / 2),
        (primal(300, 40, 20), 300, 40, 20 - math.log2(12) / 2),
        (primal_errors(4096, 64, PAIR), 4096, 64, math.log2(PAIR)),
        (primal_errors(700, 30, 20.0), 700, 30, math.log2(20)),
    ],
)
def test_no_smaller_block_works_whatever_the_samples(
    cost: Cost, n: int, log2_q: float, log2_sigma: float
) -> None:
    assert works(n, log2_q, log2_sigma, cost.block_size, cost.samples)
    smaller = (works(n, log2_q, log2_sigma, cost.block_size - 1, m) for m in range(1, 8 * n, 3))
    assert not any(smaller)


def test_the_root_hermite_factor_of_the_literature_and_the_two_costs() -> None:
    """Chen and Nguyen, ASIACRYPT 2011, Table 2: simulated block sizes."""
    for beta, delta in ((106, 1.009), (133, 1.008), (168, 1.007), (216, 1.006), (286, 1.005)):
        assert 2 ** log2_delta(beta) == pytest.approx(delta, abs=2e-4)
    cost = Cost(block_size=400, samples=1000, dimension=2048)
    assert cost.bits == pytest.approx(116.8 + 16.4 + 14)
