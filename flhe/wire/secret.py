"""Secrets: bytes hidden in repr and str, and the source of fresh ones."""

from __future__ import annotations

from collections.abc import Callable

Random = Callable[[int], bytes]
"""length -> that many bytes from a CSPRNG."""


class Secret(bytes):
    """Bytes hidden in output: repr and str give `<32 bytes>`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"

    __str__ = __repr__
