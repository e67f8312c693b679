"""SealScheme: what schemes that TenSEAL encrypts declare alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flhe.packages import Needs
from flhe.schemes.base import Agreement, Scheme
from flhe.schemes.presets import DEFAULT_SEAL, SEAL, RingPreset, called


@dataclass(frozen=True, slots=True)
class SealScheme(Scheme):
    """One whose members share a key in a ring of SEAL's.

    Parameters
    ----------
    ring : str
        Preset of the ring, one of RINGS.
    """

    agreement: ClassVar[Agreement] = "key-pair"
    dense: ClassVar[str] = "blocks of values are added up as wholes"
    slow: ClassVar[bool] = True
    # The server adds residues with NumPy.
    needs: ClassVar[Needs] = Needs(node=("tenseal", "zstandard"))
    CIPHER: ClassVar[str]
    """What TenSEAL calls it."""
    RINGS: ClassVar[Mapping[str, RingPreset]] = SEAL

    ring: str = DEFAULT_SEAL

    def _validate(self) -> None:
        called(self.ring, "ring", self.CIPHER, self.RINGS)

    @property
    def preset(self) -> RingPreset:
        """The ring itself."""
        return self.RINGS[self.ring]

    @property
    def security(self) -> int:
        """That of the ring."""
        return self.preset.security

    def summary(self) -> str:
        """Its ring."""
        return f"{self.CIPHER} ring: {self.ring}"
