"""Moved: see `flhe.testing`."""

from flhe.testing import UNAVAILABLE, InProcessGrid, _Packed

__all__ = ["UNAVAILABLE", "InProcessGrid", "_Packed"]
