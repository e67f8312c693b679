"""SecAgg: pairwise masks on the vectors themselves; the server opens the sum.

    y_u = x_u + PRG(b_u) + sum over v < u of PRG(s_uv) - sum over v > u of PRG(s_uv)    mod 2**b

b = bits + ceil(log2 cohort), at most 32: a sum of `cohort` values of `bits` bits, sign included, never
wraps, and exactly b bits a value travel. Masks are lanes of 32 bits, of which the low b count.

Keys, shares and the set of senders are steps of `pairwise`, and who masks with whom is its graph:
complete for SecAgg, regular for SecAgg+. Here is what lies between: values to lanes, lanes to the
sum. A client makes as many streams as it has neighbours, and the server one for each client, and for
each that dropped out one for each neighbour: for what that costs see `flhe_lab.bench.secure_sums`.

Source: Bonawitz et al., CCS 2017, Fig. 4; Bell et al., CCS 2020.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roster.roster import MAX_MEMBERS
from flhe.math.buffers import empty
from flhe.schemes.base import Adder, Scheme
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import SealerShell
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX
from flhe.wire.record import Form
from flhe_lab.variants.secagg.pairwise import Masked, Shared, mask
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.server import unmask_sum

NAME = "secagg"


@dataclass(frozen=True, slots=True)
class Kind(Scheme):
    """What it says of itself; there is nothing to choose."""

    FORM = Form("SecAgg", error=ConfigError)
    name: ClassVar[str] = NAME
    title: ClassVar[str] = "SecAgg"
    dense: ClassVar[str] = "masks cover dense ones only"


@dataclass(frozen=True, slots=True)
class SecAgg(Adder):
    """Public parameters."""

    cohort: int  # N, members of the epoch, 3 to 1024
    bits: int = 16  # Bits of one encoded value, sign included, 2 to 32 - ceil(log2 N)
    scheme: Scheme = field(default=Kind(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        most = 32 - (self.cohort - 1).bit_length()
        if not 3 <= self.cohort <= MAX_MEMBERS or not 2 <= self.bits <= most:
            raise ConfigError(
                f"SecAgg(cohort={self.cohort}, bits={self.bits}): cohort must be 3 to {MAX_MEMBERS}, "
                f"bits must be 2 to {most}"
            )

    @property
    def lane_bits(self) -> int:
        """b: bits that one value takes on the wire."""
        return self.bits + (self.cohort - 1).bit_length()

    @property
    def packing(self) -> Packing:
        """How values lie in the ciphertext."""
        return Packing(self.lane_bits)

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return self.packing.nbytes(length)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        self.packing.add(total.data, part.data, part.length)
        return total.data

    def plan(self, epoch: Epoch, slot: Slot, length: int, **among: Any) -> Plan:
        """The plan of one slot's sum of vectors of `length` values; `among` as in `Plan.of`."""
        return Plan.of(
            epoch,
            purpose=NAME,
            round=slot.round,
            attempt=slot.attempt,
            length=length,
            elements=False,
            layout_hash=_digest(slot),
            **among,
        )


@dataclass(slots=True)
class SecAggSealer(SealerShell):
    """One client's side of one slot: what it holds after the shares have come.

    `masked` is for `pairwise.consist`, once a vector is encrypted.
    """

    adder: SecAgg  # Public parameters
    shared: Shared = field(repr=False)  # After `pairwise.share`
    boxes: Mapping[int, bytes] = field(repr=False)  # "mask-share" of neighbours, by rank
    masked: Masked | None = field(default=None, repr=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = self.shared.member.rank

    def _seal(
        self, plain: Plain, slot: Slot, ready: Any, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        length = plain.values.size + plain.extras.size
        plan, packing = self.shared.member.plan, self.adder.packing
        if (plan.layout_hash, plan.length) != (_digest(slot), length):
            raise ProtocolError("secagg: the shares were made for another slot, or another length")
        values = np.concatenate([plain.values, plain.extras]).astype(packing.signed)
        self.masked, lanes = mask(self.shared, self.boxes, np.zeros(length, np.uint32))
        return packing.pack(values, lanes.view(np.uint32), empty(packing.nbytes(length), np.uint8))


@dataclass(frozen=True, slots=True)
class SecAggOpener:
    """The server's side of one slot: the messages that it carried, and the answers."""

    adder: SecAgg  # What was agreed
    plan: Plan  # What was agreed
    keys: Mapping[int, bytes] = field(repr=False)  # As for `unmask_sum`
    sharers: Iterable[int]  # The same
    answers: Iterable[bytes] = field(repr=False)  # The same

    def decrypt(self, total: Sealed) -> NDArray[np.int32]:
        """Open a sum: signed integers, shape (total.length,).

        Raises what `unmask_sum` does, and ProtocolError for another slot or length.
        """
        if (self.plan.layout_hash, self.plan.length) != (_digest(total.slot), total.length):
            raise ProtocolError("secagg: the sum is of another slot than the answers, or length")
        packing = self.adder.packing
        lanes = packing.unpack(
            total.data, np.zeros(total.length, np.uint32), empty(total.length, np.int32)
        ).view(np.uint32)
        opened = unmask_sum(
            self.plan,
            lanes,
            keys=self.keys,
            sharers=self.sharers,
            senders=total.senders,
            answers=self.answers,
        )
        signed: NDArray[np.int32] = packing.signed_of(opened)
        return signed


def _digest(slot: Slot) -> bytes:
    """What a plan binds of a slot."""
    return hashlib.sha256(dumps([PREFIX + "secagg-slot", *slot.context()])).digest()
