"""FedmlHe: FedML-HE as a scheme; `flhe.schemes.fedml_he.adder` encrypts.

Source: FedML-HE, Algorithm 1 and Sec. 2.3; the codec selects the encrypted part of an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flhe.errors import ConfigError
from flhe.schemes.presets import SealScheme
from flhe.wire.record import Form


@dataclass(frozen=True, slots=True)
class FedmlHe(SealScheme):
    """FedML-HE's own parameters, as for `SealScheme`."""

    FORM = Form("FedML-HE", error=ConfigError)
    name: ClassVar[str] = "fedml-he"
    title: ClassVar[str] = "FedML-HE"
    ADDER = "flhe.schemes.fedml_he.adder:FedmlHeAdder"
    CIPHER = "CKKS"
