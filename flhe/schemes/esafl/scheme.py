"""Esafl: ESAFL as a scheme; `flhe.schemes.esafl.adder` encrypts.

Source of the members' keys (`keys`):
    round    fresh for each ciphertext; masking-key agreement (`flhe.keys.agreement.masking`) gives
             the members the sum of the senders' keys, in two short exchanges
    joint    made by the members, once an epoch (`flhe.keys.agreement.joint`): no further exchange,
             but only sums of all members open. If the members drop a late member, its update opens
             to anybody who kept the old sum of keys
    dealt    made offline by a trusted dealer, who can open everything; otherwise as joint

Keys and errors are discrete Gaussians of one width (`flhe.math.sampling`). So a member who knows
the sum of all keys, and all but two of the others' keys, still faces errors of 3.2 in those two.
The security figures rate that case.

Source: ESAFL, Sec. 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from flhe.errors import ConfigError
from flhe.schemes.base import Agreement
from flhe.schemes.presets import RingPreset, RingScheme, named
from flhe.wire.record import Form

ESHE = named(
    RingPreset("goldilocks-4096", 4096, 64, 232, "lattice-estimator"),
    RingPreset("rns-4096", 4096, 104, 134, "lattice-estimator"),
    RingPreset("rns-8192", 8192, 206, 134, "lattice-estimator"),
    RingPreset("rns-16384", 16384, 420, 132, "lattice-estimator"),
    RingPreset(
        "paper-32768",
        32768,
        478,
        192,
        "ESAFL, Sec. 8.1.2, which says 256; by the Homomorphic Encryption Standard (2018), Table "
        "1, up to 611 bits have 192",
    ),
)
"""Presets of ESHE. Goldilocks, of the one limb q = 2^64 - 2^32 + 1, is the fastest; the others take
fewer bytes, for narrow links; the last one is the paper's, for its tables."""

DEFAULT_ESHE = "goldilocks-4096"

Keys = Literal["round", "joint", "dealt"]


@dataclass(frozen=True, slots=True)
class Esafl(RingScheme):
    """ESAFL's own parameters.

    Parameters
    ----------
    ring : str
        Parameters of the ring; one of ESHE.
    keys : "round", "joint" or "dealt"
        Source of the keys; see the module.
    """

    FORM = Form("ESAFL", error=ConfigError)
    name: ClassVar[str] = "esafl"
    title: ClassVar[str] = "ESAFL"
    CIPHER = "ESHE"
    RINGS: ClassVar = ESHE
    ADDER = "flhe.schemes.esafl.adder:EsaflAdder"
    dense: ClassVar[str] = "coefficients are added up as wholes"

    ring: str = DEFAULT_ESHE
    keys: Keys = "round"

    @property
    def agreement(self) -> Agreement:
        """A key for each member; with fresh keys, the sum of the senders' keys for each sum."""
        return "masking" if self.keys == "round" else "joint"

    @property
    def dealt(self) -> bool:
        """True if a trusted dealer makes the keys offline."""
        return self.keys == "dealt"

    @classmethod
    def dealing(cls, **parameters: Any) -> Self:
        """Return the scheme with dealt keys."""
        return cls(**parameters, keys="dealt")

    def summary(self) -> str:
        """Return the ring and the source of keys as text."""
        return f"Ring: {self.ring}, keys: {self.keys}"

    def elements(self, cohort: int) -> int:
        """Return the field elements of one key, if keys are shared."""
        from flhe.schemes.esafl import keys

        return keys.elements(self.preset.dimension, cohort)
