"""Noise in a session: between what training changed and what is clipped and encrypted of it.

Noise is added to what is clipped already, and cut again; so the codec's own clipping finds nothing to
cut, and what training itself put beyond the thresholds is counted here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flhe.coding.clip import WARN_CLIPPED, Clip
from flhe.coding.laplace import Noise
from flhe.coding.squares import Segments
from flhe.math.prg import PIECE

logger = logging.getLogger("flhe")

if TYPE_CHECKING:
    from flhe.rounds.model import Model
    from flhe.rounds.session import Session


def noised(
    session: Session, model: Model, parts: Iterable[NDArray[np.float32]]
) -> Iterator[NDArray[np.float32]]:
    """The parts of an update, in order, each with noise; they are overwritten.

    However much lies beyond the thresholds is cut: a refusal, which the server hears of, would tell of
    the update what no noise hides.

    Raises
    ------
    RangeError
        NaN or infinity.
    """
    terms, layout = session.terms, session.layout
    assert terms.noise is not None
    noise: Noise = terms.noise.noise()
    clip = Clip(terms.clip)  # type: ignore[arg-type]  # numbers, or these terms are refused
    segments = clip.segments(clip.init(layout).shared)
    spare = session.mask(model).coords if terms.noise.scope == "clear" else None
    beyond = at = 0
    for part in parts:
        beyond += noise.add(part, segments, at, spare=spare)
        _cut(part, segments, at)  # also what is spared, or the codec would refuse
        at += part.size
        yield part
    if beyond > WARN_CLIPPED * at:
        logger.warning("more than 1% of the update was clipped; raise the clipping threshold")


def _cut(part: NDArray[np.float32], segments: Segments, at: int) -> None:
    for start, stop, alpha in segments:
        first, last = max(start - at, 0), min(stop - at, part.size)
        if first < last:
            np.clip(part[first:last], -alpha, alpha, out=part[first:last])


def add_noise(session: Session, model: Model, values: NDArray[np.float32]) -> None:
    """As `noised`, in place, of a whole vector, shape (floats,)."""
    parts = (values[at : at + PIECE] for at in range(0, values.size, PIECE))
    for _ in noised(session, model, parts):
        pass
