"""The lattice cross-check: against the estimator's figures, and against its own formula, spelt out."""

from __future__ import annotations

import math

import pytest

from flhe.errors import ConfigError
from flhe.math.sampling import SIGMA
from flhe.schemes.presets import ESHE
from flhe_lab.papers.lattice import Cost, log2_delta, primal, primal_errors, primal_sparse

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


# --- learning with errors ---

PAIR = SIGMA / math.sqrt(2)
"""Errors and keys of two honest members, of which everyone else knows the sums."""

STANDARD = {
    (4096, 109): 128,
    (8192, 218): 128,
    (16384, 438): 128,
    (32768, 881): 128,
    (32768, 611): 192,
}
"""Homomorphic Encryption Standard (2018), Table 1: errors of 3.2, ternary secrets."""


@pytest.mark.parametrize("ring", ESHE)
def test_every_preset_of_eshe_reaches_the_bar(ring: str) -> None:
    preset = ESHE[ring]
    bits = primal_errors(preset.dimension, preset.log_q, PAIR).bits
    assert bits >= 128
    if preset.source == "lattice-estimator":
        assert bits == pytest.approx(preset.security, rel=0.1)


@pytest.mark.parametrize(("size", "bits"), STANDARD.items(), ids=str)
def test_it_is_within_a_tenth_of_the_standard(size: tuple[int, int], bits: int) -> None:
    assert primal_errors(*size, 3.2).bits == pytest.approx(bits, rel=0.1)


def test_a_larger_modulus_does_not_reach_it() -> None:
    assert primal_errors(4096, 128, PAIR).bits < 128
    assert primal_errors(8192, 256, PAIR).bits < 128


def test_sparse_keys_are_weaker_than_the_paper_says() -> None:
    n, log_q, sigma = 32768, 478, math.sqrt(1.22)
    alone = primal_sparse(n, log_q, sigma, 64)
    assert alone < 256  # which the paper claims
    assert alone < primal_errors(n, log_q, sigma).bits
    # A curious member at N = 3 knows the support of the other two keys' sum: 128 unknowns at most,
    # errors of p, unknown plaintexts below p.
    known = primal_errors(128, 478 - 460, math.sqrt(1.22 + 1 / 12))
    assert known.block_size == 50  # the smallest that the formula is for
    assert known.bits < 50


def test_a_dense_ternary_secret_is_no_guess() -> None:
    """With two thirds of all coefficients there is nothing to gain by guessing zeros."""
    n, log_q = 4096, 109
    dense = primal_sparse(n, log_q, 3.2, 2 * n // 3)
    assert dense == pytest.approx(128, rel=0.1)
    weights = [primal_sparse(n, log_q, 3.2, w) for w in (32, 64, 128, 512, 2 * n // 3)]
    assert weights == sorted(weights)


@pytest.mark.parametrize(
    ("n", "log2_q", "sigma"), [(4096, 64, PAIR), (1024, 27, 3.2), (700, 30, 20.0)]
)
def test_the_condition_holds_for_errors_too(n: int, log2_q: int, sigma: float) -> None:
    cost = primal_errors(n, log2_q, sigma)

    def errors_work(beta: int, m: int) -> bool:
        d = m + n + 1
        slope = math.log2((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e))
        slope /= 2 * (beta - 1)
        right = (2 * beta - d - 1) * slope + log2_q * m / d
        return math.log2(math.sqrt(beta) * sigma) <= right

    assert errors_work(cost.block_size, cost.samples)
    assert not any(errors_work(cost.block_size - 1, m) for m in range(1, 8 * n, 3))


@pytest.mark.parametrize("parameters", [(0, 64, 3.2), (512, 64, 0.0), (512, 2, 5.0)])
def test_impossible_errors_are_refused(parameters: tuple[int, int, float]) -> None:
    with pytest.raises(ConfigError):
        primal_errors(*parameters)


@pytest.mark.parametrize("parameters", [(64, 20, 3.2, 65), (64, 20, 3.2, 0), (64, 20, -1.0, 5)])
def test_impossible_weights_are_refused(parameters: tuple[int, int, float, int]) -> None:
    with pytest.raises(ConfigError):
        primal_sparse(*parameters)
