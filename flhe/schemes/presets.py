"""Named parameter sets of lattice schemes; each says where its security figure comes from.

Figures are bits of classical work, the minimum over the attacks that the lattice-estimator knows (usvp,
bdd, dual, with the MATZOV cost of gates). `flhe_lab.papers.lattice` cross-checks it in a small program
of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from flhe.errors import ConfigError
from flhe.plugins import MOST


@dataclass(frozen=True, slots=True)
class RingPreset:
    """Parameters of a ring for learning with errors or rounding: Z_q[x] / (x^dimension + 1).

    `log_q` are the most bits of the modulus: sums take as few of them as they need. `security` are bits
    at that modulus; a smaller one is harder. `source` says where that figure is from.
    """

    name: str
    dimension: int
    log_q: int
    security: int
    source: str


T = TypeVar("T", bound=RingPreset)


def named(*presets: T) -> dict[str, T]:
    """Presets by their names."""
    return {preset.name: preset for preset in presets}


def called(name: str, what: str, whose: str, known: Mapping[str, T]) -> T:
    """The preset called `name`; ConfigError naming those that there are."""
    if name not in known:
        raise ConfigError(f"{what} {name[:MOST]!r}: {whose} has {', '.join(known)}")
    return known[name]


_STANDARD = "Homomorphic Encryption Standard (2018), Table 1, ternary keys"

SEAL = named(
    RingPreset("2048", 2048, 53, 128, "lattice-estimator; 54 bits have 126.3"),
    RingPreset("4096", 4096, 60, 192, f"{_STANDARD}: up to 75 bits; 128 up to 109"),
    RingPreset("8192", 8192, 60, 256, f"{_STANDARD}: up to 118 bits; 128 up to 218"),
)
"""Rings of schemes that SEAL encrypts, with ternary keys and one modulus that fits its primes. All take
as many bytes a value; larger ones have more margin in security."""

DEFAULT_SEAL = "4096"
