"""Pieces: reading bytes that lie in several buffers, without joining them.

A box of gigabytes comes off the wire in pieces (64 MiB each), whose borders have nothing to do with
what is in them. What lies within one piece is given as a view; what crosses a border is copied, and
no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


class ChunkReader:
    """A cursor over one buffer or several; they must keep their content until it is at the end.

    `left` is the number of bytes that were not taken yet.
    """

    def __init__(self, data: Buffer | Sequence[Buffer]) -> None:
        buffers = [data] if isinstance(data, Buffer) else data
        views = (memoryview(buffer).cast("B") for buffer in buffers)
        self._views = [view for view in views if len(view)]
        self._index = 0  # of the piece that is next
        self._at = 0  # within it
        self.left = sum(len(view) for view in self._views)

    def take(self, count: int) -> Buffer:
        """Return the next `count` bytes, or as many as are left."""
        count = min(count, self.left)
        self.left -= count
        parts: list[memoryview] = []
        while count:
            view = self._views[self._index]
            part = view[self._at : self._at + count]
            parts.append(part)
            count -= len(part)
            self._at += len(part)
            if self._at == len(view):
                self._index, self._at = self._index + 1, 0
        return parts[0] if len(parts) == 1 else b"".join(parts)
