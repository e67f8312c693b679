"""Public parameters of FedML-HE, and the addition that needs nothing else; see `flhe.schemes.fedml_he.ring`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.limb_packing import LimbPacking
from flhe.errors import ConfigError, ProtocolError
from flhe.schemes.fedml_he.keys import CkksPublic
from flhe.schemes.fedml_he.sizes import CkksSizes, sizes_for
from flhe.schemes.presets import DEFAULT_CKKS, ckks_preset
from flhe.schemes.sealed import Sealed
from flhe.schemes.shell import Shell

NAME = "fedml-he"
MAX_COHORT = 1024


@dataclass(frozen=True, slots=True)
class Ckks(Shell):
    """Public parameters; all that the server has.

    Parameters
    ----------
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    ring : str
        Parameters of the ring; see `flhe.schemes.presets`.
    public : CkksPublic, optional
        TenSEAL's context without a key, and which key the epoch's members use. None before they have
        one.
    """

    name: ClassVar[str] = NAME
    dense: ClassVar[str] = "slots hold dense vectors only"

    cohort: int
    bits: int = 16
    ring: str = DEFAULT_CKKS
    public: CkksPublic | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.cohort <= MAX_COHORT:
            raise ConfigError(f"Ckks(cohort={self.cohort}): cohort must be 2 to {MAX_COHORT}")
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"Ckks(bits={self.bits}): bits must be 2 to 32")
        sizes = self.sizes
        if self.public is not None:
            self.public.check(self.ring, sizes)

    @property
    def sizes(self) -> CkksSizes:
        """Ring, modulus, scale and slots."""
        return sizes_for(ckks_preset(self.ring), self.cohort, self.bits)

    @property
    def limbs(self) -> LimbPacking:
        """How residues lie in the ciphertext."""
        return self.sizes.limbs

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: what the key is called among them."""
        sizes = self.sizes
        return {
            "name": NAME,
            "cohort": self.cohort,
            "bits": self.bits,
            "ring": self.ring,
            "key_id": b"" if self.public is None else self.public.key_id,
            "modulus": sizes.q.to_bytes(8, "big"),
            "scale_bits": sizes.scale_bits,
            "slot_bits": sizes.width,
            "slots": sizes.per,
        }

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values: half of each block's, the last one whole."""
        return self.limbs.nbytes(self.sizes.count(length))

    def check_public(self, data: bytes) -> CkksPublic:
        """The public part that a server was given; ProtocolError unless it holds no key.

        Byte for byte it must be the context of this ring, with this modulus, and nothing else.
        """
        public = CkksPublic.from_bytes(data)
        public.check(self.ring, self.sizes)
        return public

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        count = self.sizes.count(part.length)
        self.limbs.add(total.data, part.data, count, [self.sizes.ring])
        return total.data

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme, a residue that is not below the modulus."""
        Shell.check(self, sealed)
        try:
            self.limbs.check(sealed.data, self.sizes.count(sealed.length))
        except ProtocolError as error:
            whose = f"of sender {sealed.senders[0]}" if len(sealed.senders) == 1 else "of a sum"
            raise ProtocolError(f"fedml-he: the ciphertext {whose}: {error}") from None
