"""Esafl: ESAFL as a scheme; how it encrypts is in `flhe.schemes.esafl.adder`.

Where the members' keys come from (`keys`):
    round    fresh for each ciphertext; masking-key agreement (`flhe.keys.agreement.masking`) gives
             the members the sum of the senders' keys, in two short exchanges
    joint    made by the members, once an epoch (`flhe.keys.agreement.joint`): no exchange more, but
             sums of all members only, and the late update of a member that the others went on
             without opens to whoever kept the old sum of keys
    dealt    likewise, by somebody trusted, offline, who can open everything

Source: ESAFL, Sec. 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from flhe.errors import ConfigError
from flhe.schemes.base import Agreement, Scheme
from flhe.schemes.esafl.presets import DEFAULT_ESHE, ESHE, EshePreset
from flhe.schemes.presets import called
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.esafl.adder import EsaflAdder

Keys = Literal["round", "joint", "dealt"]


@dataclass(frozen=True, slots=True)
class Esafl(Scheme):
    """ESAFL's own parameters.

    Parameters
    ----------
    ring : str
        Parameters of the ring; see `flhe.schemes.esafl.presets`.
    keys : "round", "joint" or "dealt"
        Where keys come from; see the module.
    """

    FORM = Form("ESAFL", error=ConfigError)
    name: ClassVar[str] = "esafl"
    title: ClassVar[str] = "ESAFL"
    dense: ClassVar[str] = "coefficients are added up as wholes"

    ring: str = DEFAULT_ESHE
    keys: Keys = "round"

    def _validate(self) -> None:
        called(self.ring, "ring", "ESHE", ESHE)

    @property
    def agreement(self) -> Agreement:
        """A key for each member, or with fresh ones, the sum of those of each sum."""
        return "masking" if self.keys == "round" else "joint"

    @property
    def dealt(self) -> bool:
        """Whether somebody trusted deals the keys offline."""
        return self.keys == "dealt"

    @classmethod
    def dealing(cls, **parameters: Any) -> Self:
        """The scheme with keys that are dealt."""
        return cls(**parameters, keys="dealt")

    @property
    def preset(self) -> EshePreset:
        """The preset itself."""
        return ESHE[self.ring]

    @property
    def security(self) -> int:
        """That of the ring."""
        return self.preset.security

    def summary(self) -> str:
        """Ring, and where keys come from."""
        return f"Ring: {self.ring}, keys: {self.keys}"

    def settle(self, cohort: int, bits: int) -> tuple[Self, int]:
        """0 bits take all that cost no more on the wire than 16 do."""
        return self, bits or self.adder(cohort, 0).bits

    def elements(self, cohort: int) -> int:
        """Field elements of one key, where it is shared."""
        from flhe.schemes.esafl import keys

        return keys.elements(self.preset.dimension, cohort)

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> EsaflAdder:
        """As for all schemes; `public` is what the members call the sum of their keys."""
        from flhe.schemes.esafl.adder import EsaflAdder

        return EsaflAdder(self, cohort, self.or_default(bits), public)
