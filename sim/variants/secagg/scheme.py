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

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing
from flhe.coding.spaces import Integers
from flhe.errors import ConfigError, ProtocolError, ReuseError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roster.roster import MAX_MEMBERS
from flhe.math.buffers import empty
from flhe.schemes.base import check_integers
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX
from flhe_lab.variants.secagg import pairwise
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.pairwise import Masked, Plan, Shared
from flhe_lab.variants.secagg.server import unmask_sum

NAME = "secagg"


@dataclass(frozen=True, slots=True)
class SecAgg:
    """Public parameters.

    Parameters
    ----------
    cohort : int
        N, members of the epoch, 3 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32 - ceil(log2 N).
    """

    cohort: int
    bits: int = 16

    def __post_init__(self) -> None:
        if not 3 <= self.cohort <= MAX_MEMBERS:
            raise ConfigError(f"SecAgg(cohort={self.cohort}): cohort must be 3 to {MAX_MEMBERS}")
        most = 32 - (self.cohort - 1).bit_length()
        if not 2 <= self.bits <= most:
            raise ConfigError(
                f"SecAgg(bits={self.bits}): bits must be 2 to {most} for {self.cohort} clients"
            )

    @property
    def name(self) -> str:
        """Name on the wire."""
        return NAME

    @property
    def lane_bits(self) -> int:
        """b: bits that one value takes on the wire."""
        return self.bits + (self.cohort - 1).bit_length()

    @property
    def packing(self) -> Packing:
        """How values lie in the ciphertext."""
        return Packing(self.lane_bits)

    @property
    def space(self) -> Integers:
        """Integers of `bits` bits, symmetric."""
        return Integers((1 << (self.bits - 1)) - 1)

    def plan(
        self,
        epoch: Epoch,
        slot: Slot,
        length: int,
        *,
        graph: Graph | None = None,
        threshold: int | None = None,
    ) -> Plan:
        """The plan of one slot's sum of vectors of `length` values; see `Plan.of`."""
        if epoch.size != self.cohort:
            raise ConfigError(f"SecAgg(cohort={self.cohort}): the epoch has {epoch.size} members")
        return Plan.of(
            epoch,
            purpose=NAME,
            round=slot.round,
            attempt=slot.attempt,
            length=length,
            elements=False,
            graph=graph,
            threshold=threshold,
            layout_hash=_digest(slot),
        )


@dataclass(slots=True)
class SecAggSealer:
    """One client's side of one slot: what it holds after the shares have come.

    Parameters
    ----------
    scheme : SecAgg
        Public parameters.
    shared : Shared
        After `pairwise.share`.
    boxes : mapping of int to bytes
        "mask-share" of neighbours, by rank.

    Attributes
    ----------
    masked : Masked or None
        For `pairwise.consist`, once a vector is encrypted.
    """

    scheme: SecAgg
    shared: Shared = field(repr=False)
    boxes: Mapping[int, bytes] = field(repr=False)
    masked: Masked | None = field(default=None, repr=False)

    def encrypt(self, plain: Plain, slot: Slot) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Raises
        ------
        ReuseError
            A second vector.
        RangeError
            A value outside the space, which would run into its neighbour's sum.
        ProtocolError
            Another slot or length than that of the shares, and what `pairwise.mask` refuses.
        """
        for part in (plain.values, plain.extras):
            check_integers(NAME, part, self.scheme.space)
        if self.masked is not None:
            raise ReuseError("secagg: these masks have encrypted a vector before")
        plan, packing = self.shared.plan, self.scheme.packing
        values = np.concatenate([plain.values, plain.extras]).astype(packing.signed)
        if (plan.layout_hash, plan.length, plan.purpose) != (_digest(slot), values.size, NAME):
            raise ProtocolError("secagg: the shares were made for another slot, or another length")
        zeros = np.zeros(values.size, np.uint32)
        self.masked, lanes = pairwise.mask(self.shared, self.boxes, zeros)
        data = packing.pack(
            values, lanes.view(np.uint32), empty(packing.nbytes(values.size), np.uint8)
        )
        return Sealed(NAME, slot, (self.shared.rank,), values.size, data)


@dataclass(frozen=True, slots=True)
class SecAggOpener:
    """The server's side of one slot: the messages that it carried, and the answers.

    Parameters
    ----------
    scheme, plan
        What was agreed.
    keys, sharers, answers
        As for `unmask_sum`.
    """

    scheme: SecAgg
    plan: Plan
    keys: Mapping[int, bytes] = field(repr=False)
    sharers: Iterable[int]
    answers: Iterable[bytes] = field(repr=False)

    def decrypt(self, total: Sealed) -> NDArray[np.int32]:
        """Open a sum: signed integers, shape (total.length,).

        Raises what `unmask_sum` does, and ProtocolError for another slot or length.
        """
        if (self.plan.layout_hash, self.plan.length) != (_digest(total.slot), total.length):
            raise ProtocolError("secagg: the sum is of another slot than the answers, or length")
        packing = self.scheme.packing
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
