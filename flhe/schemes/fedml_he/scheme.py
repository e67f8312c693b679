"""FedmlHe: FedML-HE as a scheme; how it encrypts is in `flhe.schemes.fedml_he.adder`.

Source: FedML-HE, Algorithm 1 and Sec. 2.3; what is encrypted of an update is the codec's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flhe.errors import ConfigError
from flhe.packages import Needs
from flhe.schemes.base import Agreement, Scheme
from flhe.schemes.fedml_he.presets import DEFAULT_CKKS, ckks_preset
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.fedml_he.adder import FedmlHeAdder


@dataclass(frozen=True, slots=True)
class FedmlHe(Scheme):
    """FedML-HE's own parameters.

    Parameters
    ----------
    ring : str
        Parameters of CKKS; see `flhe.schemes.fedml_he.presets`.
    """

    FORM = Form("FedML-HE", error=ConfigError)
    name: ClassVar[str] = "fedml-he"
    title: ClassVar[str] = "FedML-HE"
    agreement: ClassVar[Agreement] = "key-pair"
    dense: ClassVar[str] = "blocks of values are added up as wholes"
    slow: ClassVar[bool] = True
    # The server adds residues with NumPy.
    needs: ClassVar[Needs] = Needs(node=("tenseal", "zstandard"))

    ring: str = DEFAULT_CKKS

    def _validate(self) -> None:
        ckks_preset(self.ring)

    @property
    def security(self) -> int:
        """That of the ring."""
        return ckks_preset(self.ring).security

    def summary(self) -> str:
        """Its ring."""
        return f"CKKS ring: {self.ring}"

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> FedmlHeAdder:
        """As for all schemes; `public` is TenSEAL's context, and which key the members use."""
        from flhe.schemes.fedml_he.adder import FedmlHeAdder
        from flhe.schemes.fedml_he.keys import CkksPublic

        context = CkksPublic.from_bytes(public) if public else None
        return FedmlHeAdder(self, cohort, self.or_default(bits), context)
