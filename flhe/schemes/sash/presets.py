"""Named parameters of SASH's generator of masks; see `flhe.schemes.presets`.

The paper's own form, a matrix in place of the ring, is in `flhe_lab.papers.sash`. With q = 2^64 and
mu = 736 it is rated 132 bits; but the rounding errors of an opened sum tell of the last two honest
senders, and leave 101, 93 or 86 bits at 10^6, 10^7 or 10^8 values (with mu = 1024 145, 132 or 121).
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe.errors import ConfigError
from flhe.schemes.presets import called, check_security, named


@dataclass(frozen=True, slots=True)
class SashPreset:
    """Parameters of the seed-homomorphic PRG: ring learning with rounding from Z_q to Z_p.

    Over Z_q[x] / (x^dimension + 1), with q = 2^64 - 2^32 + 1 and p = 2^32.

    Parameters
    ----------
    name : str
        Name in terms and on command lines.
    dimension : int
        mu: field elements of one seed; 2048, 4096 or 8192.
    security : int
        Bits; see the module.
    source : str
        Where that figure is from.
    """

    name: str
    dimension: int
    security: int
    source: str

    def __post_init__(self) -> None:
        check_security(self, "SASH's own mu = 512 has 91 (see flhe_lab)")
        if self.dimension not in (2048, 4096, 8192):
            raise ConfigError(
                f"SashPreset(dimension={self.dimension}): a ring of 2048, 4096 or 8192 coefficients"
            )


SASH = named(
    SashPreset(
        "ring-2048",
        2048,
        258,
        "lattice-estimator, as LWE of dimension 2048: 412, and 258 counting what the carries of a sum "
        "over 10^7 values tell",
    ),
)
"""Presets of SASH."""

DEFAULT_SASH = "ring-2048"


def sash_preset(name: str) -> SashPreset:
    """The preset called `name`; ConfigError naming those that there are."""
    return called(name, "preset", "SASH", SASH)
