"""Accountant: total privacy loss of opened sums with noise, as (epsilon, delta).

An opened sum is a Poisson-sampled Gaussian mechanism to Google's `dp-accounting`, composed by Renyi
divergences of integer orders. For those orders the bound of the sampled Gaussian holds for a
discrete Gaussian whose sums are shifted by integers. Two further terms are added:

    the sum of members' discrete Gaussians is no discrete Gaussian     epsilon, SUM a release
    integers end 12 standard deviations from what they hide            delta, TAIL a release

Neighbours differ by one record, added or left out, or by one member's vector against zeros. If sums
of both kinds are composed, neighbours differ by a record. It changes a member's vector to any other
within its norm, twice as far as to zeros, so noise of members then counts half.

Source: Canonne, Kamath, Steinke (arXiv 2004.00010), Theorem 4; Mironov, Talwar, Zhang, "Renyi
Differential Privacy of the Sampled Gaussian Mechanism" (arXiv 1908.10530), Theorem 5 and Sec. 3.3;
Kairouz, Liu, Steinke (arXiv 2102.06387), Theorem 1, for tau; docs/privacy_proof.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any

from flhe.coding.base import Mechanism
from flhe.errors import ConfigError
from flhe.packages import Needs

ORDERS = (*range(2, 128), 160, 192, 256, 384, 512, 1024)
"""Integer orders of the divergences; the bound is proven for integers only."""

SUM = 1e-50
"""Bound of 2 * 2**32 values * 10 * 1023 * exp(-16 pi^2): 4 steps of deviation and 1024 members."""

TAIL = 1e-18
"""Bound of 2**32 values * 1024 members * 2 exp(-72)."""

DEFAULT_DELTA = 1e-5

Releases = Mapping[Mechanism, int]
"""Number of sums by noise."""


def epsilon(releases: Releases, delta: float = DEFAULT_DELTA) -> float:
    """Return epsilon at `delta` of all `releases` together; infinite if delta is used up.

    Raises ConfigError: a delta that is not between 0 and 1; PackageError: dp-accounting is missing.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta}: must lie between 0 and 1, below 1 / number of records")
    count = sum(releases.values())
    if not count:
        return 0.0
    tail = TAIL * count
    left = delta * math.exp(-SUM * count) - 2 * tail
    if left <= 0:
        return math.inf
    check_package()
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    mixed = len({mechanism.of_members for mechanism in releases}) > 1
    for mechanism, times in releases.items():
        half = 0.5 if mixed and mechanism.of_members else 1.0
        event = dp_accounting.GaussianDpEvent(half * mechanism.multiplier)
        if mechanism.sampling < 1:
            event = dp_accounting.PoissonSampledDpEvent(mechanism.sampling, event)
        accountant.compose(event, times)
    first = float(accountant.get_epsilon(left))
    # Two distributions that are within t of an (e, d) pair are an (e, d + (1 + exp(e)) t) pair. Leave
    # room for an epsilon that is 1 larger, and see that it is not.
    left -= tail * math.expm1(min(first + 1, 700.0))
    found = float(accountant.get_epsilon(left)) if left > 0 else math.inf
    return found + 2 * SUM * count if found <= first + 1 else math.inf


def spent(mechanism: Mechanism | None, releases: int, delta: float) -> dict[str, Any]:
    """Return epsilon and delta of `releases` sums, by name; empty without such noise."""
    if mechanism is None:
        return {}
    return {"epsilon": epsilon({mechanism: releases}, delta), "delta": delta}


def shown(epsilon: float) -> str:
    """Return an epsilon as text, of three digits, rounded up: a lower one would not hold."""
    digits = Context(prec=3, rounding=ROUND_CEILING)
    return f"{float(digits.create_decimal(repr(float(epsilon)))):g}"


def multiplier_for(
    target: float, releases: int, *, sampling: float = 1.0, delta: float = DEFAULT_DELTA
) -> float:
    """Return the least noise multiplier, within 0.1%, that keeps the releases within `target`.

    Raises ConfigError: an epsilon that is not positive, or needs a multiplier above 1000;
    PackageError: dp-accounting is missing.
    """
    if not 0 < target < math.inf or releases < 1:
        raise ConfigError(
            f"epsilon={target}, {releases} rounds: both must be positive, epsilon finite"
        )

    def spent(multiplier: float) -> float:
        return epsilon({Mechanism(multiplier, sampling): releases}, delta)

    low, high = 0.01, 1000.0
    if spent(high) > target:
        raise ConfigError(
            f"epsilon={target:g} at delta={delta:g} in {releases} rounds: no noise multiplier up to "
            "1000 is enough; allow a larger epsilon, or train fewer rounds"
        )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high


def check_package() -> None:
    """Raise PackageError if dp-accounting is not installed."""
    Needs(node=("dp_accounting",)).check("differential privacy")
