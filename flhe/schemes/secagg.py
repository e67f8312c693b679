"""SecAgg: pairwise masks on the vectors themselves; the server opens the sum.

    y_u = x_u + PRG(b_u) + sum over v < u of PRG(s_uv) - sum over v > u of PRG(s_uv)    mod 2**b

b = bits + ceil(log2 cohort), at most 32: a sum of `cohort` values of `bits` bits, sign included, never
wraps, and exactly b bits a value travel. Masks are lanes of 32 bits, of which the low b count.

Keys, shares and the set of senders are `flhe.keys.pairwise`'s steps, and who masks with whom is its
graph: complete for SecAgg, regular for SecAgg+. Here is what lies between: values to lanes, lanes to
the sum. A client makes as many streams as it has neighbours, and the server one for each client, and
for each that dropped out one for each neighbour: for what that costs see `flhe.sim.secure_aggregation`.

Source: Bonawitz et al., CCS 2017, Fig. 4; Bell et al., CCS 2020.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, ReuseError
from flhe.keys import pairwise
from flhe.keys.canonical import dumps
from flhe.keys.derive import PREFIX
from flhe.keys.epoch import Epoch
from flhe.keys.graph import MAX_MEMBERS, Graph
from flhe.keys.pairwise import Masked, Plan, Shared
from flhe.keys.pairwise_server import unmask_sum
from flhe.math import COLUMNS
from flhe.math.buffers import empty
from flhe.schemes.base import Reader, check_integers
from flhe.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.spaces import Integers

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

    @property
    def reader(self) -> Reader:
        """The server opens, with what the clients tell it."""
        return "server"

    @property
    def phases(self) -> tuple[str, ...]:
        """Keys and shares before, the set of senders and its opening after."""
        return (
            pairwise.KEY,
            pairwise.SHARE,
            pairwise.SET,
            pairwise.OPEN,
        )

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""
        return {
            "name": NAME,
            "cohort": self.cohort,
            "bits": self.bits,
            "lane_bits": self.lane_bits,
            "columns": COLUMNS,
        }

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

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return self.packing.nbytes(length)

    def check_mode(self, mode: str) -> None:
        """Refuse any mode: there is one way only."""
        if mode:
            raise ProtocolError("secagg: a mode was named, and there is none")

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`; `total` is consumed, its buffer lives on in the result.

        Raises
        ------
        ProtocolError
            Another scheme, round, parameter set or length; a sender outside the cohort; a sparse one.
        ReuseError
            A sender that is already in the total.
        """
        self.check(part)
        if total is None:
            return Sealed(NAME, part.slot, part.senders, part.length, part.data.copy())
        senders = merged_senders(total, part, self.cohort)
        self.packing.add(total.data, part.data, total.length)
        return Sealed(NAME, total.slot, senders, total.length, total.data)

    def close(self, total: Sealed) -> Sealed:
        """The sum as it is."""
        return total

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme; ProtocolError."""
        if sealed.scheme != NAME:
            raise ProtocolError(f"secagg: a ciphertext of {sealed.scheme!r}")
        self.check_mode(sealed.mode)
        check_senders(sealed.senders, self.cohort)
        if sealed.supports:
            raise ProtocolError("secagg: sparse vectors cannot be added, send all coordinates")
        self.packing.check(sealed.data, sealed.length)


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
    threads : int
        Threads to mask on.

    Attributes
    ----------
    masked : Masked or None
        For `pairwise.consist`, once a vector is encrypted.
    """

    scheme: SecAgg
    shared: Shared = field(repr=False)
    boxes: Mapping[int, bytes] = field(repr=False)
    threads: int = 1
    masked: Masked | None = field(default=None, repr=False)
    _lanes: NDArray[np.uint32] | None = field(default=None, repr=False)
    _used: bool = field(default=False, repr=False)

    @property
    def rank(self) -> int:
        """Rank of this client among the members."""
        return self.shared.rank

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Make the masks ahead of time."""
        self.scheme.check_mode(mode)
        plan = self.shared.plan
        if (plan.layout_hash, plan.length, plan.purpose) != (_digest(slot), length, NAME):
            raise ProtocolError("secagg: the shares were made for another slot, or another length")
        if self._lanes is None:
            zeros = np.zeros(length, np.uint32)
            masked, lanes = pairwise.mask(self.shared, self.boxes, zeros, threads=self.threads)
            self.masked, self._lanes = masked, lanes.view(np.uint32)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Raises
        ------
        ReuseError
            A second vector.
        RangeError
            A value outside the space, which would run into its neighbour's sum.
        ProtocolError
            A sparse vector, another slot than that of the shares, and what `pairwise.mask` refuses.
        """
        if support is not None or plain.coords is not None:
            raise ProtocolError("secagg: sparse vectors cannot be added, send all coordinates")
        for part in (plain.values, plain.extras):
            check_integers(NAME, part, self.scheme.space)
        if self._used:
            raise ReuseError("secagg: these masks have encrypted a vector before")
        packing = self.scheme.packing
        values = np.concatenate([plain.values, plain.extras]).astype(packing.signed)
        self.prepare(slot, values.size, mode)
        self._used = True
        assert self._lanes is not None
        data = packing.pack(values, self._lanes, empty(packing.nbytes(values.size), np.uint8))
        self._lanes = None
        return Sealed(NAME, slot, (self.rank,), values.size, data)


@dataclass(frozen=True, slots=True)
class SecAggOpener:
    """The server's side of one slot: the messages that it carried, and the answers.

    Parameters
    ----------
    scheme, plan
        What was agreed.
    keys, sharers, answers
        As for `unmask_sum`.
    threads : int
        Threads to make masks on.
    """

    scheme: SecAgg
    plan: Plan
    keys: Mapping[int, bytes] = field(repr=False)
    sharers: Iterable[int]
    answers: Iterable[bytes] = field(repr=False)
    threads: int = 1

    def decrypt(self, total: Sealed) -> NDArray[np.int32]:
        """Open a sum: signed integers, shape (total.length,).

        Raises what `unmask_sum` does, and ProtocolError for another scheme, slot or length.
        """
        self.scheme.check(total)
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
            threads=self.threads,
        )
        signed: NDArray[np.int32] = packing.signed_of(opened)
        return signed


def _digest(slot: Slot) -> bytes:
    """What a plan binds of a slot."""
    return hashlib.sha256(dumps([PREFIX + "secagg-slot", *slot.context()])).digest()
