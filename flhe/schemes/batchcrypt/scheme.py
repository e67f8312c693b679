"""BatchCrypt as a scheme; `flhe.schemes.batchcrypt.adder` encrypts.

Source: BatchCrypt, Sec. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from flhe.errors import ConfigError
from flhe.packages import Needs
from flhe.schemes.base import Agreement, Scheme
from flhe.schemes.batchcrypt.keys import KEY_BITS, check_key_bits
from flhe.schemes.limit import Limit, Value
from flhe.wire.record import Form

DEFAULT_KEY_BITS = 3072
SUBGROUP = Limit(
    name="paillier-subgroup",
    needs="true or false",
    takes=lambda _: True,
    stricter=min,
    default=False,
    simulated=True,
    help="BatchCrypt may use the subgroup variant of Paillier, which takes one more assumption.",
)


@dataclass(frozen=True, slots=True)
class BatchCrypt(Scheme):
    """BatchCrypt's own parameters.

    Parameters
    ----------
    key_bits : int
        |n|, bits: 3072 (128 bits of security), 2048 (112; the paper's) or 4096.
    subgroup : bool
        The subgroup variant of Paillier: encrypts and opens several times faster, and takes one more
        assumption (`flhe.schemes.batchcrypt.keys`). A site must allow it: `flhe-paillier-subgroup`.
    advance : bool
        Advance scaling (Sec. 4.3): the bits of a value have room for the sum of all members. Each
        member quantizes with ceil(log2 N) bits less, and a slot is as many bits narrower.
    """

    FORM = Form("BatchCrypt", error=ConfigError)
    name: ClassVar[str] = "batchcrypt"
    title: ClassVar[str] = "BatchCrypt"
    ADDER = "flhe.schemes.batchcrypt.adder:BatchCryptAdder"
    agreement: ClassVar[Agreement] = "key-pair"
    dense: ClassVar[str] = "batches are added up as wholes"
    slow: ClassVar[bool] = True
    limits: ClassVar[tuple[Limit, ...]] = (SUBGROUP,)
    # The server multiplies ciphertexts of thousands of bits.
    needs: ClassVar[Needs] = Needs(node=("gmpy2",), server=("gmpy2",))
    key_bits: int = DEFAULT_KEY_BITS
    advance: bool = False
    subgroup: bool = False

    def _validate(self) -> None:
        check_key_bits(self.key_bits)

    @property
    def security(self) -> int:
        """Security in bits, by the modulus."""
        return KEY_BITS[self.key_bits]

    def summary(self) -> str:
        """Return the key length as text."""
        variant = f", subgroup of {2 * self.security}-bit orders" if self.subgroup else ""
        return f"Paillier modulus: {self.key_bits} bits{variant}"

    def check_limits(self, limits: Mapping[str, Value]) -> tuple[str, str] | None:
        """Return the limit against the subgroup variant, if the site sets it."""
        if not self.subgroup or limits[SUBGROUP.name]:
            return None
        return SUBGROUP.name, (
            "the server asked for the subgroup variant of Paillier, which this node does not take: "
            "leave subgroup out of the strategy"
        )

    def settle(self, cohort: int, bits: int) -> tuple[Self, int]:
        """Return the bits left of a value under advance scaling; the sum then has room."""
        if not self.advance:
            return self, bits
        left = bits - (cohort - 1).bit_length()
        if left < 2:
            raise ConfigError(
                f"advance scaling with bits={bits}: {cohort} members leave {left} bits of each value; "
                "use more bits, or leave advance out"
            )
        return replace(self, advance=False), left
