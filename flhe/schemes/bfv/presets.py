"""Rings of BFV, by name."""

from __future__ import annotations

from dataclasses import dataclass

from flhe.schemes.presets import RingPreset, named

_STANDARD = "Homomorphic Encryption Standard (2018), Table 1, ternary keys"


@dataclass(frozen=True, slots=True)
class BfvPreset(RingPreset):
    """A ring of BFV, with ternary keys and one modulus that fits SEAL's primes."""

    DIMENSIONS = "4096 or 8192", (4096, 8192)


RINGS = named(
    BfvPreset("4096", 4096, 60, 192, f"{_STANDARD}: up to 75 bits; 128 up to 109"),
    BfvPreset("8192", 8192, 60, 256, f"{_STANDARD}: up to 118 bits; 128 up to 218"),
)
"""Rings by name. Both take as many bytes a value; the larger one has more margin in security."""
