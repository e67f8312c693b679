"""Schemes over rings, and their named parameter sets, each with the source of its security figure.

Figures are bits of classical work, the minimum over the lattice-estimator's attacks (usvp, bdd,
dual, with the MATZOV cost of gates). `flhe_lab.papers.lattice` cross-checks them with a small
independent program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from flhe.errors import ConfigError
from flhe.packages import Needs
from flhe.plugins import MOST
from flhe.schemes.base import Agreement, Scheme


@dataclass(frozen=True, slots=True)
class RingPreset:
    """Parameters of a ring for learning with errors or rounding: Z_q[x] / (x^dimension + 1).

    `log_q` is the maximum number of bits of the modulus: sums use as few as they need. `security`
    is the bits of security at that modulus; a smaller modulus is harder to attack. `source` names
    the origin of that figure.
    """

    name: str
    dimension: int
    log_q: int
    security: int
    source: str


T = TypeVar("T", bound=RingPreset)


def named(*presets: T) -> dict[str, T]:
    """Return presets by their names."""
    return {preset.name: preset for preset in presets}


def called(name: str, what: str, whose: str, known: Mapping[str, T]) -> T:
    """Return the preset called `name`; ConfigError lists the known ones."""
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


@dataclass(frozen=True, slots=True)
class RingScheme(Scheme):
    """Scheme whose parameter `ring` names a preset from RINGS; errors call the system CIPHER."""

    CIPHER: ClassVar[str]
    RINGS: ClassVar[Mapping[str, Any]]

    ring: str

    def _validate(self) -> None:
        called(self.ring, "ring", self.CIPHER, self.RINGS)

    @property
    def preset(self) -> RingPreset:
        """The ring itself."""
        preset: RingPreset = self.RINGS[self.ring]
        return preset

    @property
    def security(self) -> int:
        """Security of the ring."""
        return self.preset.security


@dataclass(frozen=True, slots=True)
class SealScheme(RingScheme):
    """Scheme that TenSEAL encrypts, and whose members share a key in a ring of SEAL's.

    Parameters
    ----------
    ring : str
        Preset of the ring, one of RINGS.
    """

    agreement: ClassVar[Agreement] = "key-pair"
    dense: ClassVar[str] = "blocks of values are added up as wholes"
    slow: ClassVar[bool] = True
    # The server adds residues with NumPy.
    needs: ClassVar[Needs] = Needs(node=("tenseal", "zstandard"))
    RINGS: ClassVar[Mapping[str, RingPreset]] = SEAL

    ring: str = DEFAULT_SEAL

    def summary(self) -> str:
        """Return the ring as text."""
        return f"{self.CIPHER} ring: {self.ring}"
