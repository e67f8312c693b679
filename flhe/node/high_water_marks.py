"""Floor: rounds of a federation that are over on this node, whatever becomes of its keys.

    runs/<id>/floor    canonical CBOR [1, opened, ranged, reached]

The marks of an epoch are in the file that holds its keys, and go with it: when the next epoch begins,
when the node leaves, when the file is damaged. What they said is kept here first.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe.errors import ProtocolError, StoreError
from flhe.wire import canonical

VERSION = 1
MAX_BYTES = 64


@dataclass(frozen=True, slots=True)
class Floor:
    """Rounds that are over.

    Parameters
    ----------
    opened : int
        Last round whose sum was opened, or may have been.
    ranged : int
        Last round whose mean squares were.
    reached : int
        Last round that anything was encrypted in.
    """

    opened: int = 0
    ranged: int = 0
    reached: int = 0

    def raised(self, other: Floor) -> Floor:
        """The higher of both, mark by mark."""
        return Floor(
            max(self.opened, other.opened),
            max(self.ranged, other.ranged),
            max(self.reached, other.reached),
        )

    def to_bytes(self) -> bytes:
        """Encode."""
        return canonical.dumps([VERSION, self.opened, self.ranged, self.reached])

    @classmethod
    def from_bytes(cls, data: bytes) -> Floor:
        """Inverse of `to_bytes`; StoreError for anything else: nobody knows what was opened then."""
        try:
            fields = canonical.loads(data, MAX_BYTES, "floor")
        except ProtocolError:
            fields = None
        match fields:
            case [1, int(opened), int(ranged), int(reached)] if all(
                type(field) is int and field >= 0
                for field in fields  # True is an int too
            ):
                return cls(opened, ranged, reached)
        raise StoreError(
            "what says which rounds are over is damaged here: begin another federation"
        )
