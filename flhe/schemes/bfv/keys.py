"""Keys of BFV; see `flhe.schemes.seal_keys`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from flhe.schemes.bfv.presets import RINGS
from flhe.schemes.seal_keys import SealPublic, SealSecret, Ternary
from flhe.wire.arrays import array
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.seal_sizes import SealSizes

VERSION = 1
MAX_BYTES = 1 << 14
"""Longest encoding that is read; a key of the larger ring takes 8 KiB."""


@dataclass(frozen=True, slots=True)
class BfvPublic(SealPublic):
    """The server's part."""

    FORM = Form("bfv-public", MAX_BYTES, "bfv-public", VERSION)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BfvSecret(SealSecret):
    """The members' part.

    Parameters
    ----------
    ring : str
        Preset.
    coefficients : NDArray[int8]
        Shape (dimension,), each -1, 0 or 1; secret.
    """

    FORM = Form("bfv-secret", MAX_BYTES, "bfv-secret", VERSION)
    RINGS = RINGS
    LABEL = "bfv-key"

    ring: str
    coefficients: Annotated[Ternary, array(np.int8)]

    def public(self, sizes: SealSizes) -> BfvPublic:
        """What the server gets."""
        return BfvPublic(self.ring, self.key_id)
