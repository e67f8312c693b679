"""How hard it is to find the seed of a mask by lattice reduction: a cross-check, in bits.

A mask is learning with rounding: round(<a, k> p / q). Rounding is an error, uniform in an interval of
width q / p, so its standard deviation is q / p / sqrt(12), as in learning with errors; the seed k is
uniform modulo q. The primal attack (Kannan's embedding, after n samples have turned the seed into
errors) with m more samples is a lattice of dimension d = m + n + 1 and volume q**m. BKZ with block size
beta finds the error in it, by the geometric series assumption, if

    sqrt(beta) sigma <= delta**(2 beta - d - 1) q**(m / d)
    delta = ((pi beta)**(1 / beta) beta / (2 pi e))**(1 / (2 (beta - 1)))

A short vector in one block costs 2**(0.292 beta) at least (sieving, core-SVP), and with its overhead
and about 8 d blocks, 2**(0.292 beta + 16.4 + log2(8 d)).

The security figures in the documentation come from the lattice-estimator, which also knows other
attacks and finer models; they are what counts. A ring-LWR instance is taken for LWR of its dimension:
no attack is known that uses the ring.

Source: Albrecht, Goepfert, Virdia and Wunderer, ASIACRYPT 2017 (the condition); Alkim, Ducas,
Poeppelmann and Schwabe, USENIX Security 2016 (core-SVP); Becker, Ducas, Gama and Laarhoven, SODA 2016
(sieving); Chen, PhD thesis, 2013 (delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flhe.errors import ConfigError

SMALLEST_BLOCK = 50
"""Below it the formula for delta does not hold."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cheapest primal attack that was found.

    Parameters
    ----------
    block_size : int
        beta.
    samples : int
        m, beyond the n that turn the seed into errors.
    dimension : int
        d = m + n + 1.
    """

    block_size: int
    samples: int
    dimension: int

    @property
    def core_bits(self) -> float:
        """log2 of the cost of one block: a lower bound."""
        return 0.292 * self.block_size

    @property
    def bits(self) -> float:
        """log2 of the cost of the attack, operations."""
        return self.core_bits + 16.4 + math.log2(8 * self.dimension)


def log2_delta(block_size: int) -> float:
    """log2 of the root-Hermite factor of BKZ."""
    beta = block_size
    inner = (math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)
    return math.log2(inner) / (2 * (beta - 1))


def primal(dimension: int, log2_q: float, log2_p: float) -> Cost:
    """Cheapest primal attack on LWR with a uniform seed and any number of samples.

    Parameters
    ----------
    dimension : int
        n, the length of the seed.
    log2_q, log2_p : float
        Moduli that are rounded from and to.

    Raises
    ------
    ConfigError
        A dimension below 1, or p not below q / sqrt(12): there would be no error.
    """
    log2_sigma = log2_q - log2_p - math.log2(12) / 2
    if dimension < 1 or log2_p <= 0 or log2_sigma <= 0:
        raise ConfigError(
            f"primal({dimension}, {log2_q}, {log2_p}): needs a dimension of 1 or more and "
            "1 < p < q / sqrt(12)"
        )
    low, high = SMALLEST_BLOCK, SMALLEST_BLOCK
    while _samples(dimension, log2_q, log2_sigma, high) is None:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _samples(dimension, log2_q, log2_sigma, middle) is None:
            low = middle + 1
        else:
            high = middle
    samples = _samples(dimension, log2_q, log2_sigma, low)
    assert samples is not None
    return Cost(low, samples, samples + dimension + 1)


def _samples(n: int, log2_q: float, log2_sigma: float, beta: int) -> int | None:
    """The number of samples that is best for this block size; None if the attack fails even so.

    The right side's logarithm, (2 beta - d - 1) log2(delta) + (m / d) log2(q), is concave in d; it is
    largest at d = sqrt((n + 1) log2(q) / log2(delta)).
    """
    slope = log2_delta(beta)
    d = max(round(math.sqrt((n + 1) * log2_q / slope)), n + 2, beta)
    right = (2 * beta - d - 1) * slope + (d - n - 1) / d * log2_q
    return d - n - 1 if math.log2(beta) / 2 + log2_sigma <= right else None
