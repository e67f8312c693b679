"""Flashe: FLASHE as a scheme; `flhe.schemes.flashe.adder` encrypts.

Source: FLASHE, Sec. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from flhe.coding.support import Support
from flhe.errors import ConfigError
from flhe.schemes.base import Choice, Scheme
from flhe.schemes.flashe import masking
from flhe.wire.record import Form

Masking = Literal["double", "single", "adaptive"]


@dataclass(frozen=True, slots=True)
class Flashe(Scheme):
    """FLASHE's own parameters.

    Parameters
    ----------
    masking : "double", "single" or "adaptive"
        Double masking opens fast if few members drop out (FLASHE, Theorem 2). Single masking
        encrypts fast. Adaptive masking uses the mode that the server announces for each attempt.
    """

    FORM = Form("FLASHE", error=ConfigError)
    name: ClassVar[str] = "flashe"
    title: ClassVar[str] = "FLASHE"
    ADDER = "flhe.schemes.flashe.adder:FlasheAdder"
    dense: ClassVar[str] = ""

    masking: Masking = "double"

    @property
    def security(self) -> int:
        """Security of the group key agreement over Curve25519; masks are of AES-256."""
        return 128

    def summary(self) -> str:
        """Return the masking as text."""
        return f"Masking: {self.masking}"

    @property
    def mode_ahead(self) -> str:
        """Double: mean squares are few, and come before a mode is announced."""
        return "double" if self.masking == "adaptive" else ""

    def mode_for(self, members: int, dropout: float) -> str:
        """Return the cheaper masking for the expected dropout (FLASHE, Theorem 2)."""
        if self.masking != "adaptive":
            return ""
        return masking.for_dropout(members, dropout)

    def mode_of(self, supports: Sequence[tuple[int, Support]], extras: int, readers: int) -> Choice:
        """Return the masking with fewer masks for these supports (FLASHE, Algorithm 1, Line 5)."""
        if self.masking != "adaptive":
            return Choice("", "")
        bitmaps = [(rank, support.bitmap()) for rank, support in supports]
        mode, *counts = masking.for_supports(bitmaps, extras, readers)
        other = "double" if mode == "single" else "single"
        few, many = sorted(counts)
        return Choice(mode, f"{mode} masking takes {few} masks, {other} {many}")
