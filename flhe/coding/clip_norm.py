"""ClipNorm: scale a whole update down to a maximum L2 norm.

    y = x * min(1, l2 / ||x||)

This bounds a member's effect on a sum, which noise must hide.

Source: McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, Sec.
2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flhe.coding.aciq import MAX_ALPHA, MIN_ALPHA
from flhe.coding.base import Codec, Plain, Reals, Space, State
from flhe.errors import ConfigError, MisfitError, logger

_WITHIN = 1 - 2.0**-20
"""Fraction of the bound that norms are scaled to: float32 then rounds none of them above it."""


@dataclass(frozen=True, slots=True)
class ClipNorm(Codec):
    """Scale an update down to the L2 norm `l2`, in the update's own units, 1e-30 to 1e30."""

    name: ClassVar[str] = "clip-norm"

    l2: float

    def __post_init__(self) -> None:
        if not MIN_ALPHA <= self.l2 <= MAX_ALPHA:  # false for NaN
            raise ConfigError(f"ClipNorm({self.l2}): must lie between {MIN_ALPHA} and {MAX_ALPHA}")

    @property
    def norm_bound(self) -> float:
        """Bound on the L2 norm."""
        return self.l2

    def summary(self) -> str:
        """Return the bound as text."""
        return f"clipped to an L2 norm of {self.l2:g}"

    def parameters(self) -> dict[str, Any]:
        """Return the bound, as exact text."""
        return {"name": self.name, "l2": float(self.l2).hex()}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> ClipNorm:
        """Invert `parameters`, without the name."""
        return cls(float.fromhex(stored["l2"]))

    def out(self, space: Space) -> Reals:
        """Return reals within the bound: no value is larger than the norm."""
        if not isinstance(space, Reals):
            raise MisfitError(f"ClipNorm takes reals, got {space}; put it before the noise")
        return Reals(min(self.l2, space.bound))

    def encode(self, plain: Plain, state: State) -> tuple[Plain, State]:
        """Clip float32 (length,); zeros for a vector that is not finite.

        Nothing is refused: a refusal would reveal data, with no noise to hide it.
        """
        norm = math.sqrt(np.sum(np.square(plain.values, dtype=np.float64)))
        if not math.isfinite(norm):
            logger.warning("the update holds NaN or infinity: zeros are sent in its place")
            return plain._replace(values=np.zeros_like(plain.values)), state
        if norm <= self.l2 * _WITHIN:
            return plain, state
        factor = np.float32(self.l2 * _WITHIN / norm)
        return plain._replace(values=plain.values * factor), state

    def decode(self, total: Plain, senders: object, state: State) -> tuple[Plain, State]:
        """Return the sum unchanged: clipping is not undone."""
        return total, state
