"""What SASH's text gets wrong or leaves open, shown on its generator and its equations.

Source: Liu et al., "SASH: Efficient Secure Aggregation Based on SHPRG For Federated Learning".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe_lab.papers.corrections.proof import Told, fixed, shows
from flhe_lab.papers.sash import MU, SECURITY, lwr_masks, mask


def _seed(client: int) -> NDArray[np.uint64]:
    return np.frombuffer(fixed(client)(8 * MU), "<u8").astype(np.uint64)


@shows("sash-parameters")
def _parameters() -> Told:
    from flhe_lab.papers.lattice import primal

    bits, ours = primal(MU, 64, 32).bits, primal(2048, 64, 32).bits
    estimated = SECURITY
    return bits < 100 and ours > 128, locals()


@shows("sash-bias")
def _bias() -> Told:
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
    cut_mean, cut_min, cut_max = cut.mean(), cut.min(), cut.max()
    near_mean, near_min, near_max = near.mean(), near.min(), near.max()
    exact = np.mean(near == 0)
    shown = (
        abs(cut_mean + (cohort - 1) / 2) < 1
        and -cohort < cut_min <= cut_max < 0
        and abs(near_mean) < 0.5
        and near_min < 0 < near_max
        and np.abs(near).max() <= (cohort + 1) / 2
        and bool(exact < 0.5)
    )
    return shown, locals()


@shows("sash-range")
def _range() -> Told:
    bits, cohort = 16, 100
    low, high = -1.0, 1.0

    def quantize(m: float) -> int:
        return int(2**bits * (m - low) / (high - low))

    top, p = quantize(high), cohort * (2**bits - 1) + 1
    wrapped = cohort * top % p * (high - low) / 2**bits + cohort * low
    zeros = cohort * quantize(-1e-6)
    back = zeros * (high - low) / 2**bits + cohort * low
    size, right = top.bit_length(), cohort * high
    return size > bits and wrapped < -90, locals()


@shows("sash-offset")
def _offset() -> Told:
    bits, low, high = 16, -1.0, 1.0
    cohort, survivors = 100, 70
    total = sum(int(2**bits * (0.25 - low) / (high - low)) for _ in range(survivors))
    scaled = total * (high - low) / 2**bits
    printed, right = (scaled + n * low for n in (cohort, survivors))
    as_printed, as_meant = printed / survivors, right / survivors
    return abs(as_meant - 0.25) < 1e-4 and printed < 0, locals()


@shows("sash-two-sums")
def _twice() -> Told:
    values = np.random.default_rng(4).integers(0, 1 << 16, 200, np.uint32)  # test data
    seeds = [_seed(j) for j in range(5)]
    upload = values + mask(seeds[4], values.size)
    read = upload - mask(np.sum(seeds, axis=0) - np.sum(seeds[:4], axis=0), values.size)
    share = float(np.mean(read == values))
    return share == 1, locals()


@shows("sash-collusion")
def _collusion() -> Told:
    cohort = 99
    dropouts = cohort // 3
    threshold = cohort - dropouts  # shares that are there when so many are gone
    follows = threshold - 1  # fewer shares than it takes say nothing
    # One that lies asks two disjoint sets of honest clients: 2 t > N + c keeps it from having both.
    lies = 2 * threshold - cohort - 1
    return follows == 2 * cohort // 3 - 1 and lies == cohort // 3 - 1, locals()


@shows("sash-inflation")
def _inflation() -> Told:
    cohort, bits = 500, 16
    needs = bits + (cohort - 1).bit_length()
    secagg, ours = needs / bits, 32 / bits
    return needs < 32, locals()


@shows("sash-matrix")
def _matrix() -> Told:
    values = 1_000_000
    whole = values * MU * 8
    ring = values * 8
    gigabytes, each, megabytes = whole / 1e9, MU * 8, ring / 1e6
    return whole > 4e9 > ring, locals()


@shows("sash-neighbours")
def _neighbours() -> Told:
    from flhe_lab.papers.sash_plus import LIMIT, bounds_of

    cohort, told, enough = 500, 100, 150
    colluders = (cohort - 1) // 3
    odds = LIMIT.denominator.bit_length() - 1
    _, fewest = bounds_of(cohort, enough, colluders) or (0, cohort)
    refused = bounds_of(cohort, told, colluders) is None
    there = "is no threshold" if refused else "is a threshold"
    return refused and fewest < cohort, locals()
