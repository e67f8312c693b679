"""JointKey: what a member holds where each has a key of its own, and all know the sum of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.wire.fields import array
from flhe.wire.record import Form, Record

if TYPE_CHECKING:
    from flhe.schemes.base import JointAdder

VERSION = 1
MAX_BYTES = 1 << 20
"""Longest encoding, bytes: 160 KiB at the largest dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class JointKey(Record):
    """A member's own key s_i, and the sum s of all members', both (dimension,) and secret."""

    FORM = Form("joint key", MAX_BYTES, "eshe-key", VERSION, row=True)

    own: Annotated[NDArray[np.int8], array(np.int8)] = field(repr=False)
    total: Annotated[NDArray[np.int32], array(np.int32)] = field(repr=False)

    def _validate(self) -> None:
        if self.own.shape != self.total.shape:
            raise ProtocolError("joint key: own key and sum are of different dimensions")

    def check(self, adder: JointAdder) -> None:
        """Refuse keys that no honest member has; ProtocolError."""
        if self.own.shape != (adder.dimension,):
            raise ProtocolError(f"{adder.name}: a key of another dimension than {adder.dimension}")
        adder.check_own(self.own)
        adder.check_total(self.total)
