"""Compiled loop of `flhe.math.discrete_gaussian`: words into samples, as far as floats decide."""

from __future__ import annotations

import math

import numpy as np

from flhe.math.field_kernels import inner, njit

_ULP = 2.0**-64
_ONE = math.exp(-1.0)
_OUT, _UNDECIDED = -1, -2
_SIGN = np.uint64(63)


@inner
def _happens(words, at, probability, slack):
    """Return 1 or 0 if word `at`, a uniform number's head, decides; else _OUT or _UNDECIDED."""
    if at >= words.size:
        return _OUT
    # Both conversions round by 2**-53 at most: `slack` covers that, too.
    low = np.float64(words[at]) * _ULP
    if low + 2.0 * _ULP <= probability * (1.0 - slack):
        return 1
    if low > 0.0 and low >= probability * (1.0 + slack):
        return 0
    return _UNDECIDED  # also for a probability too small for floats


@njit
def draw(words, scale, variance, slack, out):
    """Fill `out`, int32 (count,), while words last and decide.

    Returns the number of samples, the words that they took, and whether an undecided comparison
    stopped the loop. The next sample then begins at that word.
    """
    mask = np.uint64(1)
    while mask < np.uint64(scale + 1):
        mask <<= np.uint64(1)
    mask -= np.uint64(1)
    t, v = np.float64(scale), np.float64(variance)
    at = used = 0
    for j in range(out.size):
        while True:
            if at >= words.size:
                return j, used, False
            first = words[at]
            at += 1
            offset = np.int64(first & mask)
            if offset >= scale:
                continue
            said = _happens(words, at, math.exp(-np.float64(offset) / t), slack)
            at += 1
            magnitude = offset
            if said == 1:
                said = _happens(words, at, _ONE, slack)
                at += 1
                while said == 1:
                    magnitude += scale
                    said = _happens(words, at, _ONE, slack)
                    at += 1
                negative = (first >> _SIGN) == np.uint64(1)
                if said == 0 and not (negative and magnitude == 0):
                    off = np.float64(magnitude) - v / t
                    said = _happens(words, at, math.exp(-off * off / (2.0 * v)), slack)
                    at += 1
                    if said == 1:
                        out[j] = -magnitude if negative else magnitude
                        used = at
                        break
            if said < 0:
                return j, used, said == _UNDECIDED
    return out.size, used, False
