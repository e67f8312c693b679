"""Named parameters of SASH's generator of masks; see `flhe.schemes.presets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flhe.errors import ConfigError
from flhe.schemes.presets import called, check_security, named

Form = Literal["ring", "matrix"]


@dataclass(frozen=True, slots=True)
class SashPreset:
    """Parameters of the seed-homomorphic PRG, learning with rounding from Z_q to Z_p.

    Parameters
    ----------
    name : str
        Name in terms and on command lines.
    form : "ring" or "matrix"
        Ring-LWR over Z_q[x]/(x^dimension + 1), or LWR with a matrix, which is the paper's form.
    dimension : int
        mu: field elements of one seed.
    security : int
        Bits; see the module.
    source : str
        Where that figure is from.
    """

    name: str
    form: Form
    dimension: int
    security: int
    source: str

    def __post_init__(self) -> None:
        check_security(self, "SASH's own mu = 512 has 91 (see flhe_lab), LWR needs mu >= 736")
        start = f"SashPreset(dimension={self.dimension})"
        if self.form == "ring" and self.dimension not in (2048, 4096, 8192):
            raise ConfigError(f"{start}: a ring of 2048, 4096 or 8192 coefficients")
        if self.form == "matrix" and not 736 <= self.dimension <= 4096:
            raise ConfigError(
                f"{start}: LWR with q = 2^64 and p = 2^32 needs mu >= 736 for 128 bits; SASH's own 512 "
                "has 91"
            )


SASH = named(
    SashPreset(
        "ring-2048",
        "ring",
        2048,
        412,
        "lattice-estimator, as LWE of dimension 2048 (258 counting what the carries of a sum over "
        "10^7 values tell)",
    ),
    SashPreset("lwr-736", "matrix", 736, 132, "lattice-estimator"),
    SashPreset(
        "lwr-1024",
        "matrix",
        1024,
        132,
        "lattice-estimator at dimension 736, a lower bound here",
    ),
)
"""Presets of SASH. q = 2^64 - 2^32 + 1 and p = 2^32 in all of them."""

DEFAULT_SASH = "ring-2048"


def sash_preset(name: str) -> SashPreset:
    """The preset called `name`; ConfigError naming those that there are."""
    return called(name, "preset", "SASH", SASH)
