"""Keys of ESHE: s_i, with which one member encrypts, and their sum s, with which all decrypt.

s_i is a discrete Gaussian (`flhe.math.sampling`). The paper takes ternary keys of few non-zero
coefficients. One curious member breaks those: s minus its own key reveals most of the others'
(`flhe_lab.papers.esafl`). So keys of the wrong width are refused, from every source.

If members agree on masking keys round by round, s_i is shared as field elements. Each holds several
coefficients, with room for the sum of all members'.

Source: ESAFL, Sec. 5.2.1 (HE.KeyGen), with the corrections of docs/protocol.md.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.math.ring import Q, lifted
from flhe.math.sampling import BOUND, SIGMA, draw
from flhe.schemes.seal_sizes import Digits
from flhe.wire.secret import Random

WIDTH = 0.25
"""Allowed deviation of a key's mean square: at dimension 4096 eleven standard deviations."""

Own = NDArray[np.int8]
Total = NDArray[np.int32]


def draw_own(dimension: int, random: Random = secrets.token_bytes) -> Own:
    """Draw a fresh s_i, int8 (dimension,)."""
    return draw(dimension, random)


def check_own(own: Own) -> None:
    """Refuse an invalid key of one member; ProtocolError."""
    if own.dtype != np.int8 or own.ndim != 1 or int(np.abs(own.astype(np.int16)).max()) > BOUND:
        raise ProtocolError("esafl: a key of another shape, or with a coefficient beyond 9 sigma")
    _check_width(own, 1)


def total_bound(cohort: int) -> int:
    """Return the largest coefficient of the sum of `cohort` keys: 9 sigma sqrt(N)."""
    return min(cohort * BOUND, math.ceil(9 * SIGMA * math.sqrt(cohort)))


def check_total(total: Total, cohort: int) -> None:
    """Refuse an invalid sum of `cohort` keys; ProtocolError."""
    if total.dtype != np.int32 or total.ndim != 1:
        raise ProtocolError("esafl: a sum of keys of another shape")
    if int(np.abs(total.astype(np.int64)).max()) > total_bound(cohort):
        raise ProtocolError(
            f"esafl: the sum of keys has a coefficient beyond 9 sigma sqrt({cohort}): a member's key "
            "is invalid, or was changed in transit; start over"
        )
    _check_width(total, cohort)


def _check_width(key: NDArray[np.signedinteger], cohort: int) -> None:
    mean_square = float(np.square(key.astype(np.float64)).mean())
    expected = cohort * SIGMA**2
    if not (1 - WIDTH) * expected <= mean_square <= (1 + WIDTH) * expected:
        raise ProtocolError(
            "esafl: the coefficients of a key are too small, too few or too large: it must be a "
            f"discrete Gaussian of sigma {SIGMA}, a sparse or ternary one falls to curious members; "
            "start over"
        )


# --- keys as field elements, for masking-key agreement ---


def _digits(cohort: int) -> Digits:
    """Return the layout of coefficients in an element, with room for the sum of `cohort` keys."""
    width = (cohort * BOUND).bit_length() + 1
    return Digits(width, 63 // width, BOUND)


def elements(dimension: int, cohort: int) -> int:
    """Return the number of field elements that hold one key."""
    return -(-dimension // _digits(cohort).per)


def to_elements(own: Own, cohort: int) -> NDArray[np.uint64]:
    """Return a key as field elements, (elements,): digits in base 2^k, with room for the sum."""
    digits = _digits(cohort)
    padded = np.zeros(elements(own.size, cohort) * digits.per, np.int64)
    padded[: own.size] = own
    # Below zero: Q + x, modulo 2^64, which is below Q because |x| < 2^63.
    return lifted(digits.join(padded), Q)


def from_elements(summed: NDArray[np.uint64], dimension: int, cohort: int) -> Total:
    """Return the sum of keys in a sum of their field elements, int32 (dimension,).

    Raises ProtocolError: it is not a sum of at most `cohort` keys.
    """
    if summed.shape != (elements(dimension, cohort),):
        raise ProtocolError(f"esafl: a sum of keys of {summed.shape} field elements")
    above = summed > np.uint64(Q // 2)
    signed = np.where(above, summed - np.uint64(Q), summed).view(np.int64)
    found, fits = _digits(cohort).split(signed, cohort)
    if not fits or found[dimension:].any():
        raise ProtocolError("esafl: a sum of keys that no members' keys have")
    return found[:dimension].astype(np.int32)
