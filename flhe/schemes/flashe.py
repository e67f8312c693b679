"""FLASHE: masks from AES that telescope when summed.

    c_d = m_d + F(j, d) - F(j + 1, d)   mod 2**b                    (double masking; FLASHE, Eq. 1)
    m_d = sum_j c_(j,d) + sum over j in S of F(j + 1, d) - F(j, d)                   (FLASHE, Eq. 3)

For a run of consecutive senders all inner masks cancel, so opening costs two streams a run. Single
masking, c_d = m_d + F(j, d), costs one stream to encrypt and |S| to open (FLASHE, Sec. 3.6).

b = bits + ceil(log2 cohort): a sum of `cohort` values of `bits` bits, sign included, never wraps.
F(j, .) is AES-256-CTR under K_r, counter block starting at be64(j) | be64(0), read as little-endian
lanes of 32 bits (64 where b > 32); the low b bits count. K_r is derived for one run, roster, epoch,
round, attempt, masking mode, b and layout, so a mask serves one vector. The mode is in the derivation
because a server that got both modes for one round would hold F(j + 1) alone. The mask of a value
depends on (j, d) only: never on how a machine cuts its work. j + 1 is never reduced mod N, or a full
sum would lose its last mask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing, spread
from flhe.errors import ConfigError, ProtocolError, RangeError, ReuseError
from flhe.keys.derive import hkdf
from flhe.math.buffers import empty_bytes
from flhe.math.prg import BLOCK, CHUNK, AesCtr, Prg
from flhe.schemes.base import Phase, Reader
from flhe.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.spaces import Integers

NAME = "flashe"
Masking = Literal["double", "single"]

MAX_COHORT = 1024
"""FLASHE is for cross-silo federations; the paper speaks of 2 to 100 clients (Sec. 2.1)."""


@dataclass(frozen=True, slots=True)
class Flashe:
    """Public parameters; all that the server has.

    Parameters
    ----------
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    masking : "double" or "single"
        Double masking opens fast when few drop out (FLASHE, Theorem 2), single encrypts fast.
    """

    cohort: int
    bits: int = 16
    masking: Masking = "double"

    def __post_init__(self) -> None:
        if not 2 <= self.cohort <= MAX_COHORT:
            raise ConfigError(f"Flashe(cohort={self.cohort}): cohort must be 2 to {MAX_COHORT}")
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"Flashe(bits={self.bits}): bits must be 2 to 32")
        if self.masking not in ("double", "single"):
            raise ConfigError(f"Flashe(masking={self.masking!r}): masking is 'double' or 'single'")

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
        """Clients open; the server holds nothing."""
        return "clients"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """A dense round needs no exchange beyond `train`."""
        return ()

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""
        return {
            "name": NAME,
            "cohort": self.cohort,
            "bits": self.bits,
            "masking": self.masking,
            "lane_bits": self.lane_bits,
        }

    def tolerance(self, count: int) -> float:
        """Zero: sums are exact."""
        return 0.0

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return self.packing.nbytes(length)

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`; `total` is consumed, its buffer lives on in the result.

        Raises
        ------
        ProtocolError
            Another scheme, round, parameter set or length; a sender outside the cohort.
        ReuseError
            A sender that is already in the total.
        """
        if part.scheme != NAME:
            raise ProtocolError(f"flashe: cannot add a ciphertext of {part.scheme!r}")
        check_senders(part.senders, self.cohort)
        self.packing.check(part.data, part.length)
        if total is None:
            return Sealed(NAME, part.slot, part.senders, part.length, part.data.copy())
        senders = merged_senders(total, part, self.cohort)
        self.packing.add(total.data, part.data, total.length)
        return Sealed(NAME, total.slot, senders, total.length, total.data)

    def mask_terms(self, senders: Iterable[int]) -> tuple[list[int], list[int]]:
        """Streams that `senders` added in total, and streams that they took away, telescoped."""
        present = sorted(senders)
        if self.masking == "single":
            return present, []
        inside = set(present)
        plus = [j for j in present if j - 1 not in inside]
        minus = [j + 1 for j in present if j + 1 not in inside]
        return plus, minus


class _Masks:
    """Reads sum(plus) - sum(minus) of a slot's streams forwards, modulo 2**lane.

    `step` lanes at a time; streams and scratch space live as long as the reader.
    """

    __slots__ = ("_added", "_one", "_taken", "_two", "step")

    def __init__(
        self,
        key: bytes,
        prg: Prg,
        lane: Any,
        start: int,
        plus: Iterable[int],
        minus: Iterable[int],
    ) -> None:
        block = start * np.dtype(lane).itemsize // BLOCK
        self._added = [prg.stream(key, j, block) for j in plus]
        self._taken = [prg.stream(key, j, block) for j in minus]
        self._one = np.empty(CHUNK + BLOCK, np.uint8)
        self._two = np.empty(CHUNK + BLOCK, np.uint8)
        self.step = CHUNK // np.dtype(lane).itemsize

    def into(self, out: NDArray[Any]) -> None:
        """Write the next `out.size` lanes, at most `step`."""
        nbytes = out.nbytes
        one, two = (s[:nbytes].view(out.dtype) for s in (self._one, self._two))
        paired = min(len(self._added), len(self._taken), 1)
        if paired:  # the common case, in one pass
            self._added[0].into(self._one, nbytes)
            self._taken[0].into(self._two, nbytes)
            np.subtract(one, two, out=out)
        else:
            out[:] = 0
        for stream in self._added[paired:]:
            stream.into(self._one, nbytes)
            np.add(out, one, out=out)
        for stream in self._taken[paired:]:
            stream.into(self._one, nbytes)
            np.subtract(out, one, out=out)


def _round_key(scheme: Flashe, group_key: bytes, slot: Slot) -> bytes:
    """K_r: one key for one slot, mode and lane width."""
    return hkdf(group_key, NAME, *slot.context(), scheme.masking, scheme.lane_bits)


@dataclass(slots=True)
class FlasheSealer:
    """One client's side: the group key and its own rank.

    Parameters
    ----------
    scheme : Flashe
        Public parameters.
    group_key : bytes
        K_G of the epoch, 32 bytes.
    rank : int
        This client's rank in the agreed member list; never a number from the server.
    prg : Prg
        Who computes AES.
    threads : int
        Threads to encrypt on.
    """

    scheme: Flashe
    group_key: bytes = field(repr=False)
    rank: int
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    _used: set[Slot] = field(default_factory=set, repr=False)
    _ready: dict[tuple[Slot, int], NDArray[Any]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.scheme.cohort)

    def prepare(self, slot: Slot, length: int) -> None:
        """Compute the masks of `slot` for `length` values; 4 or 8 bytes a value are kept."""
        mask = np.empty(length, self.scheme.packing.lane)
        masks = self._masks(_round_key(self.scheme, self.group_key, slot), 0)
        for at in range(0, length, masks.step):
            masks.into(mask[at : at + masks.step])
        with self._lock:
            self._ready[slot, length] = mask

    def encrypt(self, plain: Plain, slot: Slot) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Raises
        ------
        ReuseError
            A second vector for one slot.
        RangeError
            A value outside the space, which would run into its neighbour's sum.
        """
        with self._lock:
            if slot in self._used:
                raise ReuseError("flashe: this slot has encrypted a vector before")
            self._used.add(slot)
            length = plain.values.size + plain.extras.size
            ready = self._ready.pop((slot, length), None)
        for part in (plain.values, plain.extras):
            if part.dtype.kind != "i":
                raise RangeError(f"flashe: takes signed integers, got {part.dtype}; quantize first")
        packing = self.scheme.packing
        key = _round_key(self.scheme, self.group_key, slot)
        data = empty_bytes(packing.nbytes(length))
        # Whole blocks come straight from the values; the rest of them and the extras share a tail.
        whole = plain.values.size // packing.block * packing.block
        tail = np.concatenate([plain.values[whole:], plain.extras]).astype(packing.signed)

        def work(start: int, stop: int, values: NDArray[Any]) -> None:
            masks = self._masks(key, start)
            scratch = np.empty(min(masks.step, stop - start), packing.lane)
            for at in range(start, stop, masks.step):
                end = min(at + masks.step, stop)
                mask = scratch[: end - at]
                if ready is None:
                    masks.into(mask)
                else:
                    mask = ready[at:end]
                part = values[at - start : end - start]
                self._check(part)
                first = at * packing.bits // 8
                packing.pack(part, mask, data[first : first + packing.nbytes(end - at)])

        spread(lambda a, b: work(a, b, plain.values[a:b]), whole, packing.block, self.threads)
        work(whole, length, tail)
        return Sealed(NAME, slot, (self.rank,), length, data)

    def _masks(self, key: bytes, start: int) -> _Masks:
        plus, minus = self.scheme.mask_terms((self.rank,))
        return _Masks(key, self.prg, self.scheme.packing.lane, start, plus, minus)

    def _check(self, values: NDArray[Any]) -> None:
        from flhe.math import kernels

        bound = self.scheme.space.bound
        if kernels.count_beyond(values, bound):
            raise RangeError(f"flashe: a value lies beyond {bound}; quantize to fewer bits")


@dataclass(frozen=True, slots=True)
class FlasheOpener:
    """A reader's side: the group key.

    Parameters
    ----------
    scheme, group_key, prg, threads
        As for `FlasheSealer`.
    """

    scheme: Flashe
    group_key: bytes = field(repr=False)
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Open a sum: signed integers, shape (total.length,), int32, or int64 where b > 32.

        Raises
        ------
        ProtocolError
            Another scheme, a sender outside the cohort, data of another length.
        """
        if total.scheme != NAME:
            raise ProtocolError(f"flashe: cannot open a ciphertext of {total.scheme!r}")
        check_senders(total.senders, self.scheme.cohort)
        packing = self.scheme.packing
        packing.check(total.data, total.length)
        key = _round_key(self.scheme, self.group_key, total.slot)
        minus, plus = self.scheme.mask_terms(total.senders)  # what was added comes off
        out = np.empty(total.length, packing.signed)

        def work(start: int, stop: int) -> None:
            masks = _Masks(key, self.prg, packing.lane, start, plus, minus)
            scratch = np.empty(min(masks.step, stop - start), packing.lane)
            for at in range(start, stop, masks.step):
                end = min(at + masks.step, stop)
                mask = scratch[: end - at]
                masks.into(mask)
                first = at * packing.bits // 8
                packing.unpack(
                    total.data[first : first + packing.nbytes(end - at)], mask, out[at:end]
                )

        spread(work, total.length, packing.block, self.threads)
        return out
