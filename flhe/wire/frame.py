"""Frames: a record before data that is too long for it.

magic | be32(length of head) | head | data
"""

from __future__ import annotations

from typing import TypeVar

from flhe.wire.record import Record

R = TypeVar("R", bound=Record)


def frame(head: Record, magic: bytes = b"") -> bytes:
    """What stands before the data."""
    encoded = head.to_bytes()
    return magic + len(encoded).to_bytes(4, "big") + encoded


def unframe(kind: type[R], data: bytes | bytearray, magic: bytes = b"") -> tuple[R, int]:
    """The head, and where the data begins. Raises as `kind.from_bytes`, also where it is cut short."""
    start = len(magic) + 4
    if data[: len(magic)] != magic or len(data) < start:
        raise kind.FORM.fault("it does not start like one")
    end = start + int.from_bytes(data[start - 4 : start], "big")
    if end > len(data):
        raise kind.FORM.fault("cut short")
    return kind.from_bytes(bytes(data[start:end])), end
