"""The lattice cross-check: against the estimator's figures, and against its own formula, spelt out."""

from __future__ import annotations

import math

import pytest

from flhe.errors import ConfigError
from flhe.sim.lattice import Cost, log2_delta, primal

ESTIMATOR = {512: 91.5, 736: 132.0, 2048: 412.0}
"""Bits by the lattice-estimator, as the documentation has them, at q = 2**64 and p = 2**32."""


def works(n: int, log2_q: float, log2_p: float, beta: int, m: int) -> bool:
    """The condition of AGVW17, in the numbers themselves where they fit a float."""
    d = m + n + 1
    sigma = 2 ** (log2_q - log2_p) / math.sqrt(12)
    delta = ((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)) ** (
        1 / (2 * (beta - 1))
    )
    return math.sqrt(beta) * sigma <= delta ** (2 * beta - d - 1) * 2 ** (log2_q * m / d)


@pytest.mark.parametrize("n", ESTIMATOR)
def test_it_is_within_a_tenth_of_the_estimator(n: int) -> None:
    assert primal(n, 64, 32).bits == pytest.approx(ESTIMATOR[n], rel=0.1)


def test_the_papers_dimension_falls_short_and_ours_do_not() -> None:
    bits = [primal(n, 64, 32).bits for n in (512, 736, 1024, 2048)]
    assert bits == sorted(bits)
    assert bits[0] < 128 < bits[1]


@pytest.mark.parametrize(("n", "log2_q", "log2_p"), [(512, 64, 32), (736, 64, 32), (300, 40, 20)])
def test_no_smaller_block_works_whatever_the_samples(n: int, log2_q: int, log2_p: int) -> None:
    cost = primal(n, log2_q, log2_p)
    assert works(n, log2_q, log2_p, cost.block_size, cost.samples)
    assert not any(works(n, log2_q, log2_p, cost.block_size - 1, m) for m in range(1, 8 * n))


def test_less_error_is_easier() -> None:
    blocks = [primal(736, 64, log2_p).block_size for log2_p in (24, 32, 40, 48)]
    assert blocks == sorted(blocks, reverse=True)
    assert len(set(blocks)) == 4


def test_the_root_hermite_factor_of_the_literature() -> None:
    """Chen and Nguyen, ASIACRYPT 2011, Table 2: simulated block sizes."""
    for beta, delta in ((106, 1.009), (133, 1.008), (168, 1.007), (216, 1.006), (286, 1.005)):
        assert 2 ** log2_delta(beta) == pytest.approx(delta, abs=2e-4)


def test_the_two_costs() -> None:
    cost = Cost(block_size=400, samples=1000, dimension=2048)
    assert cost.core_bits == pytest.approx(116.8)
    assert cost.bits == pytest.approx(116.8 + 16.4 + 14)


@pytest.mark.parametrize("parameters", [(0, 64, 32), (512, 64, 64), (512, 64, 63), (512, 64, 0)])
def test_refusals(parameters: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        primal(*parameters)
