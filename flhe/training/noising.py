"""Noise in a session: between what training changed and what is clipped and encrypted of it.

Noise is added to what is clipped already, and cut again; so the codec's own clipping finds nothing to
cut, and what training itself put beyond the thresholds is counted here.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from flhe.coding.clip import WARN_CLIPPED
from flhe.training.facts import Facts
from flhe.training.model import Model

logger = logging.getLogger("flhe")


def add_noise(session: Facts, model: Model, values: NDArray[np.float32]) -> None:
    """Cut an update to its thresholds and add the terms' noise, in place, shape (floats,).

    However much lies beyond the thresholds is cut: a refusal, which the server hears of, would tell of
    the update what no noise hides.

    Raises
    ------
    RangeError
        NaN or infinity.
    """
    terms, layout = session.terms, session.layout
    assert terms.noise is not None
    segments = terms.codec.segments(layout)
    spare = session.mask(model).coords if terms.noise.scope == "clear" else None
    beyond = terms.noise.add(values, segments, spare=spare)
    for start, stop, alpha in segments:  # also what is spared, or the codec would refuse
        np.clip(values[start:stop], -alpha, alpha, out=values[start:stop])
    if beyond > WARN_CLIPPED * values.size:
        logger.warning("more than 1% of the update was clipped; raise the clipping threshold")
