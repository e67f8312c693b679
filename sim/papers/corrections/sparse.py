"""What FLASHE's text gets wrong or leaves open of sparse updates, thresholds and dropouts.

Source: Jiang, Wang, Liu, "FLASHE", arXiv 2109.00675, Sec. 3.6, 4 and 5.2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from flhe_lab.papers.corrections.proof import Found, shows

COUNT = 10_000
"""Values of an update."""


@shows("flashe-signed-threshold")
def _threshold() -> Found:
    rng = np.random.default_rng(5)  # test data
    update, share = rng.standard_normal(COUNT), 0.1
    threshold = np.sort(update)[-int(share * COUNT)]  # "s% largest in dw"
    printed = float(np.mean(np.abs(update) > threshold))
    by_size = float(np.mean(np.abs(update) >= np.sort(np.abs(update))[-int(share * COUNT)]))
    return Found(
        f"s = 10%, {COUNT:,} values of a bell around zero: as printed {printed:.0%} are sent, by "
        f"magnitude {by_size:.0%}.",
        printed > 1.9 * share and by_size == share,
    )


@shows("flashe-ties")
def _ties() -> Found:
    def run(above: Callable[[float, float], bool]) -> tuple[int, float]:
        residual, sent = 0.0, 0
        for _ in range(rounds):
            residual += 0.01
            threshold = residual  # the largest of a layer of one value
            if above(abs(residual), threshold):
                residual, sent = 0.0, sent + 1
        return sent, residual

    rounds = 100
    (sent, waits), (mended, left) = run(operator.gt), run(operator.ge)
    return Found(
        f"A layer of one value, or of equal ones: none is above the largest. In {rounds} rounds "
        f"it is sent {sent} times, and {waits:.2f} waits in the residual. Where what equals the "
        f"threshold is chosen too, it is sent {mended} times, and {left:.2f} waits.",
        sent == 0 and mended == rounds and left == 0,
    )


@shows("flashe-one-order")
def _permuted() -> Found:
    length, keep = 10_000, 1_000
    rng = np.random.default_rng(6)  # test data
    support = rng.choice(length, keep, replace=False)
    # Most of what is large in one round is large in the next one too.
    later = np.concatenate([support[: keep * 8 // 10], rng.choice(length, keep * 2 // 10)])
    common = []
    orders = [rng.permutation(length) for _ in range(2)]  # what the clients' secret would give
    for first, second in (orders[:1] * 2, orders):
        seen = np.intersect1d(first[support], second[later])
        common.append(seen.size / keep)
    return Found(
        f"Two supports of one client, 80% alike: the server sees {common[0]:.0%} in common under "
        f"one order for both rounds, {common[1]:.0%} under two orders, where chance gives 10%.",
        common[0] > 0.75 and common[1] < 0.2,
    )


@shows("flashe-history")
def _history() -> Found:
    from flhe.coding.aciq import ratio

    rng, shares = np.random.default_rng(7), []  # test data
    for cohort in (10, 100):
        updates = rng.standard_normal((cohort, 20_000))
        sigma = float(updates.mean(axis=0).std())
        shares.append([float(np.mean(np.abs(updates) > ratio(b) * sigma)) for b in (8, 16)])
    fitted = [float(np.mean(np.abs(updates) > ratio(b))) for b in (8, 16)]
    return Found(
        f"Independent updates: with the spread of their mean, {shares[0][0]:.0%} of all values "
        f"are clipped at 8 bits and {shares[0][1]:.0%} at 16 with 10 clients, {shares[1][0]:.0%} "
        f"and {shares[1][1]:.0%} with 100; with their own spread {max(fitted):.2%} at most.",
        shares[0][0] > 0.2 and shares[1][0] > 0.6 and max(fitted) < 1e-3,
    )


@shows("flashe-crossover")
def _crossover() -> Found:
    from flhe_lab.bench.mask_counts import crossover

    small = [n for n in range(2, 101) if crossover(n) < 0.3]
    at = {n: crossover(n) for n in (3, 5, 8, 80)}
    return Found(
        f"By Theorem 2 itself it is {at[3]:.2f} for 3 clients, {at[5]:.2f} for 5, {at[8]:.2f} for "
        f"8, and below 0.3 for all N up to {max(small)}; for the 80 of Sec. 6.5, where 0.4 is "
        f"reported, {at[80]:.2f}.",
        max(small) == 8 and at[3] < 1e-9 and at[80] > 0.47,
    )
