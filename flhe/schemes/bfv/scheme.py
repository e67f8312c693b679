"""Bfv: BFV as a scheme; how it encrypts is in `flhe.schemes.bfv.adder`.

Source: Fan and Vercauteren (ePrint 2012/144); FLASHE, Sec. 5.4, measures it as a peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flhe.errors import ConfigError
from flhe.packages import Needs
from flhe.schemes.base import Agreement, Scheme
from flhe.schemes.bfv.presets import RINGS
from flhe.schemes.presets import SealPreset, called
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.bfv.adder import BfvAdder


@dataclass(frozen=True, slots=True)
class Bfv(Scheme):
    """BFV's own parameters.

    Parameters
    ----------
    ring : str
        Parameters of the ring, "4096" or "8192".
    """

    FORM = Form("BFV", error=ConfigError)
    name: ClassVar[str] = "bfv"
    title: ClassVar[str] = "BFV"
    agreement: ClassVar[Agreement] = "key-pair"
    dense: ClassVar[str] = "blocks of values are added up as wholes"
    slow: ClassVar[bool] = True
    # The server adds residues with NumPy.
    needs: ClassVar[Needs] = Needs(node=("tenseal", "zstandard"))

    ring: str = "4096"

    def _validate(self) -> None:
        called(self.ring, "ring", self.title, RINGS)

    @property
    def preset(self) -> SealPreset:
        """The ring itself."""
        return RINGS[self.ring]

    @property
    def security(self) -> int:
        """That of the ring."""
        return self.preset.security

    def summary(self) -> str:
        """Its ring."""
        return f"BFV ring: {self.ring}"

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> BfvAdder:
        """As for all schemes; `public` says which key the members use."""
        from flhe.schemes.bfv.adder import BfvAdder
        from flhe.schemes.bfv.keys import BfvPublic

        named_key = BfvPublic.from_bytes(public) if public else None
        return BfvAdder(self, cohort, self.or_default(bits), named_key)
