"""What SASH's text gets wrong or leaves open, shown on its generator and its equations.

Source: Liu et al., "SASH: Efficient Secure Aggregation Based on SHPRG For Federated Learning".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe_lab.papers.corrections.proof import Found, fixed
from flhe_lab.papers.sash import MU, SECURITY, lwr_masks, mask


def _seed(client: int) -> NDArray[np.uint64]:
    return np.frombuffer(fixed(client)(8 * MU), "<u8").astype(np.uint64)


def _sash_parameters() -> Found:
    from flhe_lab.papers.lattice import primal

    bits, ours = primal(MU, 64, 32).bits, primal(2048, 64, 32).bits
    return Found(
        f"mu = {MU}, q = 2^64, p = 2^32: {bits:.0f} bits by this cross-check, {SECURITY} by the "
        f"lattice-estimator; 2048 has {ours:.0f}.",
        bits < 100 and ours > 128,
    )


def _sash_bias() -> Found:
    cohort, count = 50, 200
    rows = np.frombuffer(fixed(99)(8 * count * MU), np.uint64)
    seeds = [_seed(j) for j in range(cohort)]
    all_seeds: NDArray[np.uint64] = np.sum(seeds, axis=0)
    off = []
    for half in (0, 1 << 31):  # floor(x), and floor(x + 1/2), which is to nearest
        matrix = np.column_stack([rows.reshape(count, MU), np.full(count, half, np.uint64)])
        # One entry more, 1 in every seed, adds the half to each product.
        *parts, whole = (
            lwr_masks(np.append(seed, np.uint64(1)), matrix) for seed in (*seeds, all_seeds)
        )
        # What is left in a sum when the masks are taken off, modulo 2^32.
        off.append((np.sum(parts, axis=0, dtype=np.uint32) - whole).astype(np.int32))
    cut, near = off
    return Found(
        f"{cohort} clients, {count} values. Truncated: sums are off by {cut.mean():.1f} steps on "
        f"average, {cut.min()} to {cut.max()}, none of them right. To nearest: by "
        f"{near.mean():.1f} on average, {near.min()} to {near.max()}, {np.mean(near == 0):.0%} of "
        "them right.",
        abs(cut.mean() + (cohort - 1) / 2) < 1
        and -cohort < cut.min() <= cut.max() < 0
        and abs(near.mean()) < 0.5
        and near.min() < 0 < near.max()
        and np.abs(near).max() <= (cohort + 1) / 2
        and bool(np.mean(near == 0) < 0.5),
    )


def _sash_range() -> Found:
    bits, cohort = 16, 100
    low, high = -1.0, 1.0

    def quantize(m: float) -> int:
        return int(2**bits * (m - low) / (high - low))

    top, p = quantize(high), cohort * (2**bits - 1) + 1
    wrapped = cohort * top % p * (high - low) / 2**bits + cohort * low
    zeros = cohort * quantize(-1e-6)
    back = zeros * (high - low) / 2**bits + cohort * low
    return Found(
        f"m_max becomes {top}, of {top.bit_length()} bits. {cohort} clients at m_max, p = N (2^w "
        f"- 1) + 1: the sum is {wrapped:.2f} instead of {cohort * high:g}. Flooring costs half a "
        f"step on average, a whole one at worst: {cohort} times -0.000001 add up to {back:.4f}.",
        top.bit_length() > bits and wrapped < -90,
    )


def _sash_offset() -> Found:
    bits, low, high = 16, -1.0, 1.0
    cohort, survivors = 100, 70
    total = sum(int(2**bits * (0.25 - low) / (high - low)) for _ in range(survivors))
    scaled = total * (high - low) / 2**bits
    printed, right = (scaled + n * low for n in (cohort, survivors))
    return Found(
        f"{survivors} of {cohort} clients, each with 0.25: the mean comes out as "
        f"{printed / survivors:.3f} with N m_min, as {right / survivors:.3f} with N_2 m_min.",
        abs(right / survivors - 0.25) < 1e-4 and printed < 0,
    )


def _sash_two_sums() -> Found:
    values = np.random.default_rng(4).integers(0, 1 << 16, 200, np.uint32)  # test data
    seeds = [_seed(j) for j in range(5)]
    upload = values + mask(seeds[4], values.size)
    read = upload - mask(np.sum(seeds, axis=0) - np.sum(seeds[:4], axis=0), values.size)
    share = float(np.mean(read == values))
    return Found(
        f"Seeds of five, then of four of them: the difference is the fifth one's, and {share:.0%} "
        "of its values are read exactly.",
        share == 1,
    )


def _sash_collusion() -> Found:
    cohort = 99
    dropouts = cohort // 3
    threshold = cohort - dropouts  # shares that are there when so many are gone
    follows = threshold - 1  # fewer shares than it takes say nothing
    # One that lies asks two disjoint sets of honest clients: 2 t > N + c keeps it from having both.
    lies = 2 * threshold - cohort - 1
    return Found(
        f"N = {cohort}, {dropouts} may drop out, so {threshold} shares open: {follows} may "
        f"collude with a server that follows the protocol, {lies} with one that lies about who is "
        "there.",
        follows == 2 * cohort // 3 - 1 and lies == cohort // 3 - 1,
    )


def _sash_inflation() -> Found:
    cohort, bits = 500, 16
    needs = bits + (cohort - 1).bit_length()
    return Found(
        f"Arithmetic: N = {cohort}, w = {bits}, so a sum has {needs} bits, so SecAgg's factor is "
        f"{needs / bits:.2f} besides its keys; SASH takes 32 bits for its security, "
        f"{32 / bits:.2f}.",
        needs < 32,
    )


def _sash_matrix() -> Found:
    values = 1_000_000
    whole = values * MU * 8
    ring = values * 8
    return Found(
        f"Arithmetic: for {values:,} parameters, A has {MU} x {values:,} words, "
        f"{whole / 1e9:.1f} GB, to be stored or to be made again for each mask, {MU * 8:,} bytes a "
        f"value; SecAgg makes 4 bytes a value and neighbour. A ring takes {ring / 1e6:.0f} MB.",
        whole > 4e9 > ring,
    )


def _sash_neighbours() -> Found:
    from flhe_lab.papers.sash_plus import LIMIT, bounds_of

    cohort, told, enough = 500, 100, 150
    colluders = (cohort - 1) // 3
    odds = LIMIT.denominator.bit_length() - 1
    _, fewest = bounds_of(cohort, enough, colluders) or (0, cohort)
    refused = bounds_of(cohort, told, colluders) is None
    return Found(
        f"N = {cohort}, {colluders} collude, odds of 2^-{odds} for a graph: for k = {told} there "
        f"{'is no threshold' if refused else 'is a threshold'} that withstands them. For k = "
        f"{enough} there is one, if {fewest} or more are left.",
        refused and fewest < cohort,
    )
