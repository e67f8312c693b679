"""Rings of FedML-HE's CKKS, by name; see `flhe.schemes.presets`."""

from __future__ import annotations

from flhe.schemes.presets import SEAL, SealPreset, called

CKKS = SEAL

DEFAULT_CKKS = "4096"


def ckks_preset(name: str) -> SealPreset:
    """The preset called `name`; ConfigError naming those that there are."""
    return called(name, "ring", "CKKS", CKKS)
