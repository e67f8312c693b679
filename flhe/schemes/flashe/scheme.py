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

Under adaptive masking the server announces, attempt by attempt, which of the two saves the clients more
work (FLASHE, Algorithm 1, Line 5); each ciphertext names it. Sparse vectors: see `flhe.schemes.flashe.sparse`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing, spread
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, ReuseError
from flhe.math import COLUMNS
from flhe.math.buffers import empty
from flhe.math.prg import BLOCK, CHUNK, AesCtr, Prg
from flhe.schemes.base import check_integers
from flhe.schemes.flashe import sparse
from flhe.schemes.flashe.sparse import Mode, SparseTotal
from flhe.schemes.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.schemes.shell import Shell
from flhe.wire.derive import hkdf

NAME = "flashe"
Masking = Literal["double", "single", "adaptive"]
MODES: tuple[Mode, ...] = ("double", "single")

MAX_COHORT = 1024
"""FLASHE is for cross-silo federations; the paper speaks of 2 to 100 clients (Sec. 2.1)."""


@dataclass(frozen=True, slots=True)
class Flashe(Shell):
    """Public parameters; all that the server has.

    Parameters
    ----------
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    masking : "double", "single" or "adaptive"
        Double masking opens fast when few drop out (FLASHE, Theorem 2), single encrypts fast, and
        adaptive takes for each attempt the one that the server announces.
    """

    name: ClassVar[str] = NAME

    cohort: int
    bits: int = 16
    masking: Masking = "double"

    def __post_init__(self) -> None:
        if not 2 <= self.cohort <= MAX_COHORT:
            raise ConfigError(f"Flashe(cohort={self.cohort}): cohort must be 2 to {MAX_COHORT}")
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"Flashe(bits={self.bits}): bits must be 2 to 32")
        if self.masking not in (*MODES, "adaptive"):
            raise ConfigError(
                f"Flashe(masking={self.masking!r}): masking is 'double', 'single' or 'adaptive'"
            )

    @property
    def lane_bits(self) -> int:
        """b: bits that one value takes on the wire."""
        return self.bits + (self.cohort - 1).bit_length()

    @property
    def packing(self) -> Packing:
        """How values lie in the ciphertext."""
        return Packing(self.lane_bits)

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""
        return {
            "name": NAME,
            "cohort": self.cohort,
            "bits": self.bits,
            "masking": self.masking,
            "lane_bits": self.lane_bits,
            "columns": COLUMNS,
        }

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return self.packing.nbytes(length)

    def mode_of(self, mode: str) -> Mode:
        """The masking of a ciphertext that names `mode`; "" is the scheme's own.

        Raises
        ------
        ProtocolError
            A mode that this scheme does not have.
        """
        if self.masking == "adaptive":
            if mode not in MODES:
                raise ProtocolError("flashe: adaptive masking needs a mode, 'double' or 'single'")
            return "double" if mode == "double" else "single"
        if mode:
            raise ProtocolError("flashe: a mode was named, and the masking is fixed")
        return self.masking

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that this scheme does not have; ProtocolError."""
        self.mode_of(mode)

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`; `total` is consumed, its buffer lives on in the result.

        Raises
        ------
        ProtocolError
            Another scheme, mode, round, parameter set or length; a sender outside the cohort.
        ReuseError
            A sender that is already in the total.
        """
        if part.scheme != NAME:
            raise ProtocolError(f"flashe: cannot add a ciphertext of {part.scheme!r}")
        self.mode_of(part.mode)
        check_senders(part.senders, self.cohort)
        if not part.supports:
            self.packing.check(part.data, part.length)
        senders = part.senders if total is None else merged_senders(total, part, self.cohort)
        if part.supports:
            return sparse.add(self.packing, total, part, senders)
        if total is None:
            return Sealed(NAME, part.slot, senders, part.length, part.data.copy(), part.mode)
        self.packing.add(total.data, part.data, total.length)
        return Sealed(NAME, total.slot, senders, total.length, total.data, total.mode)

    def close(self, total: Sealed) -> Sealed:
        """What travels to the readers of a sum: `total` itself unless it is sparse."""
        return sparse.close(self.packing, total) if isinstance(total, SparseTotal) else total

    def mask_terms(self, senders: Iterable[int], mode: str = "") -> tuple[list[int], list[int]]:
        """Streams that `senders` added in total, and streams that they took away, telescoped."""
        return sparse.telescoped(senders, self.mode_of(mode))


class _Masks:
    """Reads sum(plus) - sum(minus) of a slot's streams forwards, modulo 2**lane.

    `step` lanes at a time; streams and scratch space live as long as the reader.
    """

    __slots__ = ("_added", "_lane", "_lanes", "_one", "_taken", "_two", "step")

    def __init__(
        self,
        key: bytes,
        prg: Prg,
        lane: Any,
        start: int,
        plus: Iterable[int],
        minus: Iterable[int],
    ) -> None:
        self._lane = np.dtype(lane)
        block = start * self._lane.itemsize // BLOCK
        self._added = [prg.stream(key, j, block) for j in plus]
        self._taken = [prg.stream(key, j, block) for j in minus]
        self._one = np.empty(CHUNK + BLOCK, np.uint8)
        self._two = np.empty(CHUNK + BLOCK, np.uint8)
        self._lanes = [scratch[:CHUNK].view(self._lane) for scratch in (self._one, self._two)]
        self.step = CHUNK // self._lane.itemsize

    def next(self, count: int) -> NDArray[Any]:
        """The next `count` lanes, at most `step`; overwritten by the next call."""
        nbytes = count * self._lane.itemsize
        total: NDArray[Any]
        total, lanes = self._lanes[0][:count], self._lanes[1][:count]
        fresh = True
        for stream in self._added:
            stream.into(self._one if fresh else self._two, nbytes)
            if not fresh:
                np.add(total, lanes, out=total)
            fresh = False
        if fresh:
            total[:] = 0
        for stream in self._taken:
            stream.into(self._two, nbytes)
            np.subtract(total, lanes, out=total)
        return total


def _round_key(scheme: Flashe, group_key: bytes, slot: Slot, mode: Mode) -> bytes:
    """K_r: one key for one slot, mode and lane width."""
    return hkdf(group_key, NAME, *slot.context(), mode, scheme.lane_bits)


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
    _ready: dict[tuple[Slot, int, str], NDArray[Any]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.scheme.cohort)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Encrypt `length` zeros for `slot`: what `encrypt` then adds the values to, and sends.

        So a prepared mask takes b bits a value, and the ciphertext nothing more. Dense vectors only:
        which coordinates a sparse one has, and so its mode, is known too late.
        """
        packing = self.scheme.packing
        data = empty(packing.nbytes(length), np.uint8)
        masks = self._masks(self._key(slot, mode), 0, mode)
        zeros = np.zeros(masks.step, packing.signed)
        for at in range(0, length, masks.step):
            end = min(at + masks.step, length)
            packing.pack(zeros[: end - at], masks.next(end - at), packing.cut(data, at, end))
        with self._lock:
            self._ready[slot, length, mode] = data

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Parameters
        ----------
        plain : Plain
            Values of all coordinates, or of those in `support`.
        slot : Slot
            The one use of a mask that this is.
        mode : str
            The masking that was announced, where the scheme is adaptive.
        support : Support, optional
            Which coordinates the values are of.

        Raises
        ------
        ReuseError
            A second vector for one slot.
        RangeError
            A value outside the space, which would run into its neighbour's sum.
        ProtocolError
            A mode that the scheme does not have, or values that are not those of the support.
        """
        for part in (plain.values, plain.extras):
            check_integers(NAME, part, self.scheme.space)
        length = plain.values.size + plain.extras.size
        key = self._key(slot, mode)
        coords = np.empty(0, np.uint32) if plain.coords is None else plain.coords
        told = np.empty(0, np.uint32) if support is None else support.coords
        if (support is None) != (plain.coords is None) or not np.array_equal(told, coords):
            raise ProtocolError("flashe: the values are not those of the support")
        with self._lock:
            if slot in self._used:
                raise ReuseError("flashe: this slot has encrypted a vector before")
            self._used.add(slot)
            ready = self._ready.pop((slot, length, mode), None)
        packing = self.scheme.packing
        if support is not None:
            terms = self.scheme.mask_terms((self.rank,), mode)
            lanes = sparse.masks_for(
                key, self.prg, packing, terms, support, plain.extras.size, self.threads
            )
            whole = np.concatenate([plain.values, plain.extras]).astype(packing.signed)
            sealed = packing.pack(whole, lanes)
            return Sealed(NAME, slot, (self.rank,), length, sealed, mode, (support,))
        data = empty(packing.nbytes(length), np.uint8) if ready is None else ready
        # Whole blocks come straight from the values; the rest of them and the extras share a tail.
        blocks = plain.values.size // packing.block * packing.block
        tail = np.concatenate([plain.values[blocks:], plain.extras]).astype(packing.signed)

        def masked(start: int, stop: int, values: NDArray[Any]) -> None:
            masks = self._masks(key, start, mode)
            for at in range(start, stop, masks.step):
                end = min(at + masks.step, stop)
                part = values[at - start : end - start]
                packing.pack(part, masks.next(end - at), packing.cut(data, at, end))

        def added(start: int, stop: int, values: NDArray[Any]) -> None:
            step = CHUNK // np.dtype(packing.lane).itemsize
            zeros = np.zeros(step, packing.lane)
            for at in range(start, stop, step):
                end = min(at + step, stop)
                part = packing.pack(values[at - start : end - start], zeros[: end - at])
                packing.add(packing.cut(data, at, end), part, end - at)

        work = masked if ready is None else added
        spread(lambda a, b: work(a, b, plain.values[a:b]), blocks, packing.block, self.threads)
        work(blocks, length, tail)
        return Sealed(NAME, slot, (self.rank,), length, data, mode)

    def _key(self, slot: Slot, mode: str) -> bytes:
        return _round_key(self.scheme, self.group_key, slot, self.scheme.mode_of(mode))

    def _masks(self, key: bytes, start: int, mode: str) -> _Masks:
        plus, minus = self.scheme.mask_terms((self.rank,), mode)
        return _Masks(key, self.prg, self.scheme.packing.lane, start, plus, minus)


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

        Of a sparse one: values of the coordinates that somebody sent, in order, then the extras.

        Raises
        ------
        ProtocolError
            Another scheme, a sender outside the cohort, data of another length.
        """
        if total.scheme != NAME:
            raise ProtocolError(f"flashe: cannot open a ciphertext of {total.scheme!r}")
        check_senders(total.senders, self.scheme.cohort)
        packing = self.scheme.packing
        mode = self.scheme.mode_of(total.mode)
        key = _round_key(self.scheme, self.group_key, total.slot, mode)
        if total.supports:
            closed = self.scheme.close(total)
            return sparse.open_sum(packing, mode, key, self.prg, closed, self.threads)
        packing.check(total.data, total.length)
        minus, plus = self.scheme.mask_terms(total.senders, total.mode)  # what was added comes off
        out = empty(total.length, packing.signed)

        def work(start: int, stop: int) -> None:
            masks = _Masks(key, self.prg, packing.lane, start, plus, minus)
            for at in range(start, stop, masks.step):
                end = min(at + masks.step, stop)
                packing.unpack(packing.cut(total.data, at, end), masks.next(end - at), out[at:end])

        spread(work, total.length, packing.block, self.threads)
        return out
