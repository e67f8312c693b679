"""Values that no codec takes: NaN and infinity."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from flhe.errors import NotFiniteError

AT_ALPHA = np.float32(1 + 2**-22)
"""What alpha / alpha may come to in float32: a value at the threshold is not beyond it."""


def raise_not_finite() -> NoReturn:
    """Refuse NaN and infinity: coercing them would send a wrong update without a word."""
    raise NotFiniteError(
        "the update holds NaN or infinity; lower the learning rate or clip gradients"
    )
