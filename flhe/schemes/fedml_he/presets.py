"""Named rings of FedML-HE's CKKS; see `flhe.schemes.presets`."""

from __future__ import annotations

from dataclasses import dataclass

from flhe.errors import ConfigError
from flhe.schemes.presets import RingPreset, called, named


@dataclass(frozen=True, slots=True)
class CkksPreset(RingPreset):
    """The ring of FedML-HE's CKKS, with ternary keys and one modulus that fits SEAL's primes."""

    DIMENSIONS = "2048, 4096 or 8192", (2048, 4096, 8192)

    def __post_init__(self) -> None:
        RingPreset.__post_init__(self)
        if not 40 <= self.log_q <= 60:
            raise ConfigError(f"CkksPreset(log_q={self.log_q}): 40 to 60")


_STANDARD = "Homomorphic Encryption Standard (2018), Table 1, ternary keys"

CKKS = named(
    CkksPreset("2048", 2048, 54, 128, f"{_STANDARD}: up to 54 bits"),
    CkksPreset("4096", 4096, 60, 192, f"{_STANDARD}: up to 75 bits; 128 up to 109"),
    CkksPreset("8192", 8192, 60, 256, f"{_STANDARD}: up to 118 bits; 128 up to 218"),
)
"""Presets of CKKS. All take as many bytes a value; larger ones have more margin in security."""

DEFAULT_CKKS = "4096"


def ckks_preset(name: str) -> CkksPreset:
    """The preset called `name`; ConfigError naming those that there are."""
    return called(name, "ring", "CKKS", CKKS)
