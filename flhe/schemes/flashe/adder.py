"""FlasheAdder: masks from AES that telescope when summed.

    c_d = m_d + F(j, d) - F(j + 1, d)   mod 2**b                    (double masking; FLASHE, Eq. 1)
    m_d = sum_j c_(j,d) + sum over j in S of F(j + 1, d) - F(j, d)                   (FLASHE, Eq. 3)

For a run of consecutive senders all inner masks cancel, so opening costs two streams a run. Single
masking, c_d = m_d + F(j, d), costs one stream to encrypt and |S| to open (FLASHE, Sec. 3.6).

b = bits + ceil(log2 cohort): a sum of `cohort` values of `bits` bits, sign included, never wraps.
F(j, .) is AES-256-CTR under K_r, counter block starting at be64(j) | be64(0), read as little-endian
lanes of 32 bits (64 if b > 32); the low b bits count. K_r is derived for one run, roster, epoch,
round, attempt, masking mode, b and layout, so a mask serves one vector. The derivation includes the
mode: a server with both modes of one round would otherwise learn F(j + 1). The mask of a value
depends on (j, d) only, not on how a machine splits the work. j + 1 is never reduced mod N, or a
full sum would lose its last mask.

Under adaptive masking the server announces, attempt by attempt, the mode that saves more work
(FLASHE, Algorithm 1, Line 5); each ciphertext names it. Sparse vectors:
`flhe.schemes.flashe.sparse`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.math import COLUMNS
from flhe.math.buffers import empty
from flhe.math.keystream import CHUNK, Terms, keystream
from flhe.math.ring import Elements
from flhe.math.threads import spread
from flhe.schemes.base import Adder, Opener, Sealer, Secrets
from flhe.schemes.flashe import sparse
from flhe.schemes.flashe.masking import Mode, telescoped
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.flashe.sparse import SparseTotal
from flhe.schemes.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.schemes.shell import windows
from flhe.wire.derive import hkdf

MODES: tuple[Mode, ...] = ("double", "single")


@dataclass(frozen=True, slots=True)
class FlasheAdder(Adder):
    """Public parameters for a cohort, as for `Adder`; the server holds nothing else."""

    scheme: Flashe
    cohort: int
    bits: int = 16

    @property
    def lane_bits(self) -> int:
        """b: bits that one value takes on the wire."""
        return self.bits + (self.cohort - 1).bit_length()

    @property
    def packing(self) -> Packing:
        """Layout of values in the ciphertext."""
        return Packing(self.lane_bits)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout."""
        return {
            **Adder.parameters(self),
            "masking": self.scheme.masking,
            "lane_bits": self.lane_bits,
            "columns": COLUMNS,
        }

    def nbytes(self, length: int) -> int:
        """Return the bytes of a ciphertext of `length` values."""
        return self.packing.nbytes(length)

    def mode_of(self, mode: str) -> Mode:
        """Return the masking of a ciphertext that names `mode`; "" is the scheme's own.

        Raises ProtocolError: a mode that this scheme does not have.
        """
        if self.scheme.masking == "adaptive":
            if mode not in MODES:
                raise ProtocolError("flashe: adaptive masking needs a mode, 'double' or 'single'")
            return "double" if mode == "double" else "single"
        if mode:
            raise ProtocolError("flashe: a mode was named, and the masking is fixed")
        return self.scheme.masking

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that this scheme does not have; ProtocolError."""
        self.mode_of(mode)

    def check_support(self, plain: Plain, support: Support | None) -> None:
        """Refuse values of other coordinates than the support's; ProtocolError."""
        coords = np.empty(0, np.uint32) if plain.coords is None else plain.coords
        told = np.empty(0, np.uint32) if support is None else support.coords
        if (support is None) != (plain.coords is None) or not np.array_equal(told, coords):
            raise ProtocolError("flashe: the values are not those of the support")

    def check(self, sealed: Sealed) -> None:
        """Refuse an invalid ciphertext; does not unpack a sparse one. Raises ProtocolError."""
        if sealed.scheme != self.name:
            raise ProtocolError(
                f"flashe: cannot add and cannot open a ciphertext of {sealed.scheme!r}"
            )
        self.mode_of(sealed.mode)
        check_senders(sealed.senders, self.cohort)
        if not sealed.supports:
            self.packing.check(sealed.data, sealed.length)

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part`, dense or sparse, into `total`; errors as for all schemes."""
        if not part.supports:
            return Adder.add(self, total, part)
        self.check(part)
        senders = part.senders if total is None else merged_senders(total, part, self.cohort)
        return sparse.add(self.packing, total, part, senders)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        self.packing.add(total.data, part.data, total.length)
        return total.data

    def close(self, total: Sealed) -> Sealed:
        """Return the sum as it travels to readers: `total` itself unless it is sparse."""
        return sparse.close(self.packing, total) if isinstance(total, SparseTotal) else total

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> FlasheSealer:
        """Return a member's sealer, with the group key and its rank."""
        return FlasheSealer(self, secrets.group_key, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> FlasheOpener:
        """Return a member's opener, with the group key."""
        return FlasheOpener(self, secrets.group_key, threads=threads)

    def mask_terms(self, senders: Iterable[int], mode: str = "") -> Terms:
        """Return the streams that `senders` added in total, and those subtracted, telescoped."""
        return telescoped(senders, self.mode_of(mode))


def _round_key(adder: FlasheAdder, group_key: bytes, slot: Slot, mode: str) -> bytes:
    """Return K_r: one key for one slot, mode and lane width."""
    return hkdf(group_key, adder.name, *slot.context(), adder.mode_of(mode), adder.lane_bits)


@dataclass(slots=True)
class FlasheSealer(Sealer):
    """One client's sealer: the group key and its own rank; parameters as for `Sealer`."""

    adder: FlasheAdder
    group_key: bytes = field(repr=False)
    rank: int

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Encrypt `length` zeros for `slot`: `encrypt` then adds the values to them.

        So a prepared mask takes b bits a value, and the ciphertext no more memory. Dense vectors
        only: the coordinates of a sparse one, and so its mode, are known too late.
        """
        packing = self.adder.packing
        data = empty(packing.nbytes(length), np.uint8)
        # As narrow as the values will be: the kernel is compiled once for each type.
        zeros = np.zeros(min(length, CHUNK), np.int16 if self.adder.bits <= 16 else np.int32)
        key = _round_key(self.adder, self.group_key, slot, mode)
        stream, terms = keystream(key), self.adder.mask_terms((self.rank,), mode)
        for at, end in windows(0, length, CHUNK):
            packing.seal(zeros[: end - at], stream, terms, at, packing.cut(data, at, end))
        self._keep(slot, length, data, mode)

    def _seal(
        self, plain: Plain, slot: Slot, ready: Any, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        packing, length = self.adder.packing, plain.values.size + plain.extras.size
        key = _round_key(self.adder, self.group_key, slot, mode)
        terms = self.adder.mask_terms((self.rank,), mode)
        if support is not None:
            behind = np.arange(plain.extras.size, dtype=np.uint32) + np.uint32(support.length)
            places = np.concatenate([support.coords, behind])
            lanes = sparse.masks_at(key, packing, terms, places, self.threads)
            whole = np.concatenate([plain.values, plain.extras]).astype(packing.signed)
            return packing.pack(whole, lanes)
        data = empty(packing.nbytes(length), np.uint8) if ready is None else ready
        # Whole blocks come straight from the values; the remaining values and the extras share a
        # tail.
        blocks = plain.values.size // packing.block * packing.block
        tail = np.concatenate([plain.values[blocks:], plain.extras]).astype(packing.signed)

        def masked(start: int, stop: int, values: NDArray[Any]) -> None:
            packing.seal(values, keystream(key), terms, start, packing.cut(data, start, stop))

        def added(start: int, stop: int, values: NDArray[Any]) -> None:
            step = CHUNK // np.dtype(packing.lane).itemsize
            zeros = np.zeros(step, packing.lane)
            for at, end in windows(start, stop, step):
                part = packing.pack(values[at - start : end - start], zeros[: end - at])
                packing.add(packing.cut(data, at, end), part, end - at)

        work = masked if ready is None else added
        spread(lambda a, b: work(a, b, plain.values[a:b]), blocks, packing.block, self.threads)
        work(blocks, length, tail)
        return data


@dataclass(frozen=True, slots=True)
class FlasheOpener(Opener):
    """A reader's opener: the group key; parameters as for `Sealer`.

    A sparse sum opens to the values of its union of coordinates, in order, then the extras.
    """

    adder: FlasheAdder
    group_key: bytes = field(repr=False)
    threads: int = 1

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        packing, threads = self.adder.packing, self.threads
        key = _round_key(self.adder, self.group_key, total.slot, total.mode)
        if total.supports:
            mode, closed = self.adder.mode_of(total.mode), self.adder.close(total)
            return sparse.open_sum(packing, mode, key, closed, threads)
        minus, plus = self.adder.mask_terms(total.senders, total.mode)  # added ones come off
        out = empty(total.length, packing.signed)

        def work(start: int, stop: int) -> None:
            data = packing.cut(total.data, start, stop)
            packing.open(data, keystream(key), (plus, minus), start, out[start:stop])

        spread(work, total.length, packing.block, threads)
        return out
