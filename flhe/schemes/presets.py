"""Named parameter sets of lattice schemes; each says where its security figure comes from.

Figures are bits of classical work, the minimum over the attacks that the lattice-estimator knows (usvp,
bdd, dual, with the MATZOV cost of gates); the bar is 128. `flhe_lab.papers.lattice` cross-checks it in
a small program of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from flhe.errors import ConfigError

Form = Literal["ring", "matrix"]
T = TypeVar("T", "SashPreset", "EshePreset", "CkksPreset")

BAR = 128
"""Bits of security below which a parameter set is refused."""


def _refused(preset: SashPreset | RingPreset, mend: str) -> None:
    if preset.security < BAR:
        raise ConfigError(
            f"{type(preset).__name__}({preset.name!r}): {preset.security} bits of security, {BAR} are "
            f"needed; {mend}"
        )


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
        _refused(self, "SASH's own mu = 512 has 91 (see flhe_lab), LWR needs mu >= 736")
        start = f"SashPreset(dimension={self.dimension})"
        if self.form == "ring" and self.dimension not in (2048, 4096, 8192):
            raise ConfigError(f"{start}: a ring of 2048, 4096 or 8192 coefficients")
        if self.form == "matrix" and not 736 <= self.dimension <= 4096:
            raise ConfigError(
                f"{start}: LWR with q = 2^64 and p = 2^32 needs mu >= 736 for 128 bits; SASH's own 512 "
                "has 91"
            )


@dataclass(frozen=True, slots=True)
class RingPreset:
    """Parameters of a ring for learning with errors: Z_q[x] / (x^dimension + 1).

    Parameters
    ----------
    name : str
        Name in terms and on command lines.
    dimension : int
        n: coefficients of a polynomial.
    log_q : int
        Most bits of the modulus: sums take as few of them as they need.
    security : int
        Bits at that modulus; see the module. A smaller modulus is harder.
    source : str
        Where that figure is from.
    """

    DIMENSIONS: ClassVar[tuple[str, tuple[int, ...]]]

    name: str
    dimension: int
    log_q: int
    security: int
    source: str

    def __post_init__(self) -> None:
        _refused(self, "take a larger dimension or a smaller modulus")
        says, dimensions = self.DIMENSIONS
        if self.dimension not in dimensions:
            raise ConfigError(f"{type(self).__name__}(dimension={self.dimension}): {says}")


@dataclass(frozen=True, slots=True)
class EshePreset(RingPreset):
    """ESHE's ring.

    Keys and errors are discrete Gaussians of one width (`flhe.math.sampling`), so a member who
    knows the sum of all keys, with all but two of the others' keys, still faces errors of 3.2 in
    the two that are left. That is the case which the figures rate.

    Parameters
    ----------
    name, dimension, log_q, security, source
        As for `RingPreset`.
    goldilocks : bool
        One limb, q = 2^64 - 2^32 + 1; else as many primes as it takes.
    """

    DIMENSIONS = "a power of two from 4096 to 32768", (4096, 8192, 16384, 32768)

    goldilocks: bool = False

    def __post_init__(self) -> None:
        RingPreset.__post_init__(self)
        if not 49 <= self.log_q <= 512 or (self.goldilocks and self.log_q != 64):
            raise ConfigError(f"EshePreset(log_q={self.log_q}): 49 to 512, and 64 for Goldilocks")


@dataclass(frozen=True, slots=True)
class CkksPreset(RingPreset):
    """The ring of FedML-HE's CKKS, with ternary keys and one modulus that fits SEAL's primes."""

    DIMENSIONS = "2048, 4096 or 8192", (2048, 4096, 8192)

    def __post_init__(self) -> None:
        RingPreset.__post_init__(self)
        if not 40 <= self.log_q <= 60:
            raise ConfigError(f"CkksPreset(log_q={self.log_q}): 40 to 60")


def _named(*presets: T) -> dict[str, T]:
    return {preset.name: preset for preset in presets}


SASH = _named(
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


ESHE = _named(
    EshePreset("goldilocks-4096", 4096, 64, 232, "lattice-estimator", goldilocks=True),
    EshePreset("rns-4096", 4096, 104, 134, "lattice-estimator"),
    EshePreset("rns-8192", 8192, 206, 134, "lattice-estimator"),
    EshePreset("rns-16384", 16384, 420, 132, "lattice-estimator"),
    EshePreset(
        "paper-32768",
        32768,
        478,
        192,
        "ESAFL, Sec. 8.1.2, which says 256; by the Homomorphic Encryption Standard (2018), Table "
        "1, up to 611 bits have 192",
    ),
)
"""Presets of ESHE. Goldilocks is the fastest; the others take fewer bytes, for narrow links; the last
one is the paper's, for its tables."""

DEFAULT_ESHE = "goldilocks-4096"


_STANDARD = "Homomorphic Encryption Standard (2018), Table 1, ternary keys"

CKKS = _named(
    CkksPreset("2048", 2048, 54, 128, f"{_STANDARD}: up to 54 bits"),
    CkksPreset("4096", 4096, 60, 192, f"{_STANDARD}: up to 75 bits; 128 up to 109"),
    CkksPreset("8192", 8192, 60, 256, f"{_STANDARD}: up to 118 bits; 128 up to 218"),
)
"""Presets of CKKS. All take as many bytes a value; larger ones have more margin in security."""

DEFAULT_CKKS = "4096"


def sash_preset(name: str) -> SashPreset:
    """The preset called `name`; ConfigError naming those that there are."""
    return _called(name, "preset", "SASH", SASH)


def eshe_preset(name: str) -> EshePreset:
    """Likewise."""
    return _called(name, "ring", "ESHE", ESHE)


def ckks_preset(name: str) -> CkksPreset:
    """Likewise."""
    return _called(name, "ring", "CKKS", CKKS)


def _called(name: str, what: str, whose: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ConfigError(f"{what} {name!r}: {whose} has {', '.join(known)}")
    return known[name]
