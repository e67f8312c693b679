"""How hard it is to find a secret by lattice reduction: a cross-check, in bits.

A mask of SASH is learning with rounding: round(<a, k> p / q). Rounding is an error, uniform in an
interval of width q / p, so its standard deviation is q / p / sqrt(12), as in learning with errors; the
seed k is uniform modulo q. ESHE is learning with errors, whose secret is as small as its errors. The
primal attack (Kannan's embedding; n samples turn a uniform secret into errors) with m more samples is
a lattice of dimension d = m + n + 1 and volume q**m. BKZ with block size beta finds the error in it, by
the geometric series assumption, if

    sqrt(beta) sigma <= delta**(2 beta - d - 1) q**(m / d)
    delta = ((pi beta)**(1 / beta) beta / (2 pi e))**(1 / (2 (beta - 1)))

A short vector in one block costs 2**(0.292 beta) at least (sieving, core-SVP), and with its overhead
and about 8 d blocks, 2**(0.292 beta + 16.4 + log2(8 d)).

Secrets smaller than the errors are scaled up to them, which multiplies the volume by sigma / sigma_s a
coefficient. Where only w of n coefficients are not zero, whoever guesses k zeros is left with n - k
coefficients, and is right with probability C(n - k, w) / C(n, w).

The security figures in the documentation come from the lattice-estimator, which also knows other
attacks and finer models; they are what counts. An instance over a ring is taken for one without, of
its dimension: no attack is known that uses the ring.

Source: Albrecht, Goepfert, Virdia and Wunderer, ASIACRYPT 2017 (the condition); Alkim, Ducas,
Poeppelmann and Schwabe, USENIX Security 2016 (core-SVP); Becker, Ducas, Gama and Laarhoven, SODA 2016
(sieving); Chen, PhD thesis, 2013 (delta); Bai and Galbraith, ACISP 2014 (scaling); Albrecht,
EUROCRYPT 2017 (guessing zeros).
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass

SMALLEST_BLOCK = 50
"""Below it the formula for delta does not hold."""

GUESSES = 64
"""Numbers of guessed zeros that are tried, evenly spaced."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cheapest primal attack that was found."""

    block_size: int  # beta
    samples: int  # m, beyond the n that turn the secret into errors
    dimension: int  # d = m + n + 1

    @property
    def bits(self) -> float:
        """log2 of the cost of the attack, operations."""
        return 0.292 * self.block_size + 16.4 + math.log2(8 * self.dimension)


def log2_delta(block_size: int) -> float:
    """log2 of the root-Hermite factor of BKZ."""
    beta = block_size
    inner = (math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)
    return math.log2(inner) / (2 * (beta - 1))


def primal(dimension: int, log2_q: float, log2_p: float) -> Cost:
    """Cheapest primal attack on LWR with a uniform seed and any number of samples.

    `dimension` is n, the length of the seed; moduli are rounded from and to.
    """
    log2_sigma = log2_q - log2_p - math.log2(12) / 2
    return _cheapest(dimension, log2_q, log2_sigma, 0.0)


def primal_errors(dimension: int, log2_q: float, sigma: float) -> Cost:
    """Cheapest primal attack on LWE whose secret is as its errors are, and any number of samples.

    `dimension` is n, the length of the secret; `sigma` its standard deviation, and that of errors.
    """
    return _cheapest(dimension, log2_q, math.log2(sigma), 0.0)


def primal_sparse(dimension: int, log2_q: float, sigma: float, weight: int) -> float:
    """Bits of the cheapest attack that guesses zeros of a ternary secret and finds the rest.

    `dimension` is n, the length of the secret; `sigma` the standard deviation of an error; `weight` is
    w, coefficients of the secret that are not zero.
    """
    best = math.inf
    for step in range(GUESSES):
        left = max(weight, dimension - dimension * step // GUESSES)
        log2_right = _log2_binomial(left, weight) - _log2_binomial(dimension, weight)
        scale = math.log2(sigma) - math.log2(weight / left) / 2
        bits = _cheapest(left, log2_q, math.log2(sigma), scale).bits - log2_right
        best = min(best, bits)
    return best


def _log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def _cheapest(n: int, log2_q: float, log2_sigma: float, log2_scale: float) -> Cost:
    """Smallest block size that works; the secret's n coefficients are scaled by 2**log2_scale."""
    samples = functools.partial(_samples, n, log2_q, log2_sigma, log2_scale)
    blocks = range(SMALLEST_BLOCK, 1 << 30)
    size = blocks[bisect_left(blocks, True, key=lambda beta: samples(beta) is not None)]
    found = samples(size)
    assert found is not None
    return Cost(size, found, found + n + 1)


def _samples(n: int, log2_q: float, log2_sigma: float, log2_scale: float, beta: int) -> int | None:
    """The number of samples that is best for this block size; None if the attack fails even so.

    The right side's logarithm, (2 beta - d - 1) log2(delta) + (m log2(q) + n log2(scale)) / d, is
    concave in d; it is largest at d = sqrt(((n + 1) log2(q) - n log2(scale)) / log2(delta)).
    """
    slope = log2_delta(beta)
    best = ((n + 1) * log2_q - n * log2_scale) / slope
    d = max(round(math.sqrt(best)), n + 2, beta)
    right = (2 * beta - d - 1) * slope + ((d - n - 1) * log2_q + n * log2_scale) / d
    return d - n - 1 if math.log2(beta) / 2 + log2_sigma <= right else None
