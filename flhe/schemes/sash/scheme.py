"""Sash: SASH as a scheme; `flhe.schemes.sash.adder` encrypts.

`flhe_lab.papers.sash` has the paper's own mask generator, a matrix in place of the ring. With q =
2^64 and mu = 736 its rating is 132 bits. But the rounding errors of an opened sum reveal data about
the last two honest senders. They leave 101, 93 or 86 bits at 10^6, 10^7 or 10^8 values (with mu =
1024 145, 132 or 121).

Source: SASH, Fig. 2 and Theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flhe.errors import ConfigError
from flhe.schemes.base import Agreement, Reader, Scheme
from flhe.schemes.presets import RingPreset, called, named
from flhe.wire.record import Form

Unmask = Literal["server", "clients"]

SASH = named(
    RingPreset(
        "ring-2048",
        2048,
        64,
        258,
        "lattice-estimator, as LWE of dimension 2048: 412, and 258 counting what the carries of a sum "
        "over 10^7 values tell",
    ),
)
"""Rings over q = 2^64 - 2^32 + 1; mu, the field elements of one seed, is the dimension. SASH's own
mu = 512 has 91 bits of security (`flhe_lab.papers.sash`)."""

DEFAULT_SASH = "ring-2048"


@dataclass(frozen=True, slots=True)
class Sash(Scheme):
    """SASH's own parameters.

    Parameters
    ----------
    unmask : "server" or "clients"
        The reader of sums. The server adds and holds no key; masking-key agreement
        (`flhe.keys.agreement.masking`) gives the sum of seeds to the server, as in the paper, or to
        the clients.
    preset : str
        Parameters of the PRG, one of SASH.
    """

    FORM = Form("SASH", error=ConfigError)
    name: ClassVar[str] = "sash"
    title: ClassVar[str] = "SASH"
    ADDER = "flhe.schemes.sash.adder:SashAdder"
    agreement: ClassVar[Agreement] = "masking"
    default_bits: ClassVar[int] = 0
    dense: ClassVar[str] = "one sum of seeds opens every coordinate"

    unmask: Unmask = "server"
    preset: str = DEFAULT_SASH

    def _validate(self) -> None:
        called(self.preset, "preset", self.title, SASH)

    @property
    def reader(self) -> Reader:
        """The role that opens sums."""
        return self.unmask

    @property
    def parameters_of_prg(self) -> RingPreset:
        """The PRG's preset."""
        return SASH[self.preset]

    @property
    def security(self) -> int:
        """Security of the generator of masks."""
        return self.parameters_of_prg.security

    def summary(self) -> str:
        """Return the reader of sums as text."""
        return f"Sums are read by: the {self.unmask}"

    def elements(self, cohort: int) -> int:
        """Return the field elements of one seed."""
        return self.parameters_of_prg.dimension
