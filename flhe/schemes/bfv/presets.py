"""Rings of BFV, by name; see `flhe.schemes.presets`."""

from __future__ import annotations

from flhe.schemes.presets import SEAL

RINGS = {name: SEAL[name] for name in ("4096", "8192")}
"""Those of SEAL's with more than 128 bits of security."""
