"""Bfv: BFV as a scheme; `flhe.schemes.bfv.adder` encrypts.

Source: Fan and Vercauteren (ePrint 2012/144); FLASHE, Sec. 5.4, measures it as a peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flhe.errors import ConfigError
from flhe.schemes.presets import SEAL, SealScheme
from flhe.wire.record import Form


@dataclass(frozen=True, slots=True)
class Bfv(SealScheme):
    """BFV's own parameters, as for `SealScheme`."""

    FORM = Form("BFV", error=ConfigError)
    name: ClassVar[str] = "bfv"
    title: ClassVar[str] = "BFV"
    ADDER = "flhe.schemes.bfv.adder:BfvAdder"
    CIPHER = "BFV"
    # Rings with more than 128 bits of security.
    RINGS: ClassVar = {name: SEAL[name] for name in ("4096", "8192")}
