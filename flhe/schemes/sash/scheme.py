"""Sash: SASH as a scheme; how it encrypts is in `flhe.schemes.sash.adder`.

Source: SASH, Fig. 2 and Theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from flhe.errors import ConfigError
from flhe.schemes.base import Agreement, Reader, Scheme
from flhe.schemes.presets import RingPreset, called
from flhe.schemes.sash.presets import DEFAULT_SASH, SASH
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.sash.adder import SashAdder

Unmask = Literal["server", "clients"]


@dataclass(frozen=True, slots=True)
class Sash(Scheme):
    """SASH's own parameters.

    Parameters
    ----------
    unmask : "server" or "clients"
        Who reads sums. The server adds and holds nothing; masking-key agreement
        (`flhe.keys.agreement.masking`) gives the sum of seeds to it, which is the paper's, or to the
        clients.
    preset : str
        Parameters of the PRG; see `flhe.schemes.sash.presets`.
    """

    FORM = Form("SASH", error=ConfigError)
    name: ClassVar[str] = "sash"
    title: ClassVar[str] = "SASH"
    agreement: ClassVar[Agreement] = "masking"
    default_bits: ClassVar[int] = 0
    dense: ClassVar[str] = "one sum of seeds opens every coordinate"

    unmask: Unmask = "server"
    preset: str = DEFAULT_SASH

    def _validate(self) -> None:
        called(self.preset, "preset", self.title, SASH)

    @property
    def reader(self) -> Reader:
        """Who opens sums."""
        return self.unmask

    @property
    def parameters_of_prg(self) -> RingPreset:
        """The preset itself."""
        return SASH[self.preset]

    @property
    def security(self) -> int:
        """That of the generator of masks."""
        return self.parameters_of_prg.security

    def summary(self) -> str:
        """Who reads."""
        return f"Sums are read by: the {self.unmask}"

    def settle(self, cohort: int, bits: int) -> tuple[Self, int]:
        """0 bits take all that the cohort leaves room for."""
        return self, bits or self.adder(cohort).bits

    def elements(self, cohort: int) -> int:
        """Field elements of one seed."""
        return self.parameters_of_prg.dimension

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> SashAdder:
        """As for all schemes; there is no public key. 0 bits take all that there is room for."""
        from flhe.schemes.sash.adder import SashAdder

        return SashAdder(self, cohort, self.or_default(bits))
