"""What a server computes of what it has: differences, gradients of losses, counts out of fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from flhe_lab.server_audit.script import Seen
from flhe_lab.server_audit.task import Floats

EPSILON = 1e-3
"""How far a chosen model lies from the first one."""
FEW = 8
"""Questions after which the server gives up, if all answers were one."""
EXACT = 1e-9
"""How far a fraction may be off that was told as a float."""


def cosine(guess: Floats | None, truth: Floats) -> float:
    """Cosine of the angle between a guess and the truth; 0 of no guess, or of one that is 0."""
    if guess is None or not (norm := float(np.linalg.norm(guess))):
        return 0.0
    return float(guess @ truth) / norm / float(np.linalg.norm(truth))


def difference(more: Seen, less: Seen) -> Floats | None:
    """What is in one sum and not in the other; None where the server reads not both."""
    if more.mean is None or less.mean is None or more.weight is None or less.weight is None:
        return None
    return more.mean * more.weight - less.mean * less.weight


def downhill(loss: Callable[[Floats], float | None], at: Floats) -> Floats | None:
    """Minus the gradient of a loss at `at`, of one question a value; None where nothing is told."""
    base = loss(at)
    if base is None:
        return None
    found = np.zeros(at.size)
    for i in range(at.size):
        asked = at.copy()
        asked[i] = np.float32(asked[i] + EPSILON)  # as it travels
        told = loss(asked)
        if told is None:
            return None  # a site that stops answering tells no more by being asked on
        found[i] = (base - told) / (asked[i] - at[i])
        if i + 1 >= FEW and not found.any():
            return None  # it evaluates a model of its own, whatever it is sent
    return found


def denominator(fractions: Iterable[float], most: int, off: float = EXACT) -> int | None:
    """The least number, up to `most`, of which all `fractions` are whole parts; None for none.

    `off` is how far each may be off. A common divisor of all numerators and the count hides itself.
    """
    told = np.array(list(fractions))
    if not told.size:
        return None
    parts = np.arange(1, most + 1)
    counted = told[:, None] * parts
    fits = (np.abs(counted - np.rint(counted)) <= off * parts).all(axis=0)
    return int(parts[fits.argmax()]) if fits.any() else None
