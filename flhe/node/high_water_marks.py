"""High-water marks: rounds of a federation that are over on this node, whatever becomes of its keys.

    runs/<id>/floor    canonical CBOR [1, opened, ranged, reached]

The marks of an epoch are in the file that holds its keys, and go with it: when the next epoch begins,
when the node leaves, when the file is damaged. What they said is kept here first.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from flhe.errors import StoreError
from flhe.wire.fields import U32
from flhe.wire.record import Form, Record

VERSION = 1
MAX_BYTES = 64


@dataclass(frozen=True, slots=True)
class HighWaterMarks(Record):
    """Rounds that are over: the last whose sum, and mean squares, were opened or may have been.

    And the last that anything was encrypted in, `reached`.
    """

    FORM = Form(
        "floor",
        MAX_BYTES,
        version=VERSION,
        row=True,
        damaged=StoreError(
            "what says which rounds are over is damaged here: begin another federation"
        ),
    )

    opened: U32 = 0
    ranged: U32 = 0
    reached: U32 = 0

    def raised(self, other: HighWaterMarks) -> HighWaterMarks:
        """The higher of both, mark by mark."""
        return HighWaterMarks(*map(max, astuple(self), astuple(other)))
