"""FedmlHe: FedML-HE as a scheme; how it encrypts is in `flhe.schemes.fedml_he.adder`.

Source: FedML-HE, Algorithm 1 and Sec. 2.3; what is encrypted of an update is the codec's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flhe.errors import ConfigError
from flhe.schemes.seal_scheme import SealScheme
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.fedml_he.adder import FedmlHeAdder


@dataclass(frozen=True, slots=True)
class FedmlHe(SealScheme):
    """FedML-HE's own parameters, as for `SealScheme`."""

    FORM = Form("FedML-HE", error=ConfigError)
    name: ClassVar[str] = "fedml-he"
    title: ClassVar[str] = "FedML-HE"
    CIPHER = "CKKS"

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> FedmlHeAdder:
        """As for all schemes; `public` says which key the members use."""
        from flhe.schemes.fedml_he.adder import FedmlHeAdder

        return FedmlHeAdder.of(self, cohort, bits, public)
