"""Keys of CKKS; see `flhe.schemes.seal_keys`.

Public is TenSEAL's context too, with no key in it: parameters that nobody can decrypt with. The server
checks it byte for byte.

Source: FedML-HE, Algorithm 1 (key and crypto context), App. B.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from flhe.errors import ProtocolError
from flhe.schemes.fedml_he.presets import CKKS
from flhe.schemes.seal_format import MAX_CONTEXT
from flhe.schemes.seal_keys import SealPublic, SealSecret, Ternary, pack, unpack
from flhe.wire.fields import As, Rule
from flhe.wire.record import Form

if TYPE_CHECKING:
    from flhe.schemes.seal_sizes import SealSizes

VERSION = 1
MAX_BYTES = MAX_CONTEXT + 4096
"""Longest encoding that is read."""

_Context = Annotated[
    bytes, Rule(f"1 to {MAX_CONTEXT} bytes", lambda context: 0 < len(context) <= MAX_CONTEXT)
]


@dataclass(frozen=True, slots=True)
class CkksPublic(SealPublic):
    """The server's part.

    Parameters
    ----------
    ring, key_id
        As for `SealPublic`.
    context : bytes
        TenSEAL's context, without any key.
    """

    FORM = Form("ckks-public", MAX_BYTES, "ckks-public", VERSION)

    context: _Context = field(repr=False)

    def check(self, ring: str, sizes: SealSizes) -> None:
        """Refuse another ring, a context that holds a key, or anything unexpected; ProtocolError."""
        SealPublic.check(self, ring, sizes)
        try:
            sizes.seal.check_context(self.context)
        except ProtocolError as error:
            raise ProtocolError(f"fedml-he: public context: {error}") from None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CkksSecret(SealSecret):
    """The members' part, five coefficients a byte where it is written.

    Parameters
    ----------
    ring : str
        Preset.
    s : NDArray[int8]
        Shape (dimension,), each -1, 0 or 1; secret.
    """

    FORM = Form("ckks-secret", MAX_BYTES, "ckks-secret", VERSION)
    RINGS = CKKS
    LABEL = "ckks-key"

    ring: str
    s: Annotated[Ternary, As(pack, unpack, "the coefficients of one key")]

    @property
    def coefficients(self) -> Ternary:
        """The key."""
        return self.s

    def public(self, sizes: SealSizes) -> CkksPublic:
        """What the server gets."""
        return CkksPublic(self.ring, self.key_id, sizes.seal.context())
