"""Secrets: bytes that do not show themselves, and where fresh ones come from."""

from __future__ import annotations

from collections.abc import Callable

Random = Callable[[int], bytes]
"""length -> that many bytes from a CSPRNG."""


class Secret(bytes):
    """Bytes that do not show themselves: repr and str give `<32 bytes>`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"

    __str__ = __repr__
