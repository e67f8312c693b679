"""Selective: a part of each vector under any scheme, the rest in clear (FedML-HE, Sec. 2.4).

    data = ciphertext of the scheme inside | zeros up to 8 bytes | the rest, `lane_bits` a value

A vector has `floats` values, then extras. What a mask selects and all extras are encrypted by the
scheme inside, exactly as a shorter vector would be. The rest is packed as it is, with room for the sum
of the cohort, or left out. `length` counts what is encrypted. The server knows how many values that
are, and where they belong only if it can tell from those that it sees.

Nothing here hides the rest of an update; what that costs is in docs/fedml_he.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing, spread
from flhe.coding.spaces import Integers
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import PIECE
from flhe.schemes.base import (
    Opener,
    Reader,
    Scheme,
    Sealer,
    SharedSealer,
    check_integers,
)
from flhe.schemes.sealed import Sealed, Slot, merged_senders
from flhe.schemes.shell import windows

SUFFIX = "/selected"
ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Selective:
    """Public parameters: the scheme inside, and how much of a vector is for it.

    Parameters
    ----------
    inner : Scheme
        What encrypts the selected values and the extras; one that carries integers.
    floats : int
        Values of a whole vector, without extras.
    selected : int
        How many of them are encrypted, 1 to `floats`.
    clear : bool
        Whether the others travel, in clear; otherwise they do not.
    """

    inner: Scheme
    floats: int
    selected: int
    clear: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.selected <= self.floats:
            raise ConfigError(
                f"Selective(selected={self.selected}): 1 to all of the {self.floats} values"
            )

    @property
    def name(self) -> str:
        """Name on the wire: another one than the scheme inside has, whose ciphertexts these are not."""
        return self.inner.name + SUFFIX

    @property
    def cohort(self) -> int:
        """Senders that a sum has room for."""
        return self.inner.cohort

    @property
    def space(self) -> Integers:
        """The integers of the scheme inside."""
        return self.inner.space

    @property
    def reader(self) -> Reader:
        """Who opens the encrypted part."""
        return self.inner.reader

    @property
    def phases(self) -> tuple[str, ...]:
        """Those of the scheme inside."""
        return self.inner.phases

    @property
    def packing(self) -> Packing:
        """How the rest lies in the bytes: signed, with room for the sum of the cohort."""
        return Packing((2 * self.cohort * self.space.bound + 1).bit_length())

    @property
    def rest(self) -> int:
        """Values that travel in clear."""
        return self.floats - self.selected if self.clear else 0

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""
        return {
            "name": "selective",
            "inner": self.inner.parameters(),
            "floats": self.floats,
            "selected": self.selected,
            "clear": self.clear,
            "lane_bits": self.packing.bits,
        }

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that the scheme inside does not have."""
        self.inner.check_mode(mode)

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` encrypted values, with the rest."""
        return self._start(length) + self.packing.nbytes(self.rest)

    def _start(self, length: int) -> int:
        """Where the rest begins."""
        inner = self.inner.nbytes(length)
        return inner if self.rest == 0 else -(-inner // ALIGNED) * ALIGNED

    def split(self, sealed: Sealed) -> tuple[Sealed, NDArray[np.uint8]]:
        """The ciphertext of the scheme inside, and the rest, packed; both are views.

        Raises
        ------
        ProtocolError
            Another scheme or length, a sparse ciphertext, or bytes between the two.
        """
        if isinstance(sealed, SelectiveTotal) and sealed.scheme == self.name:
            return self.inner.close(sealed.inner), sealed.rest
        if sealed.scheme != self.name:
            raise ProtocolError(f"{self.name}: a ciphertext of {sealed.scheme!r}")
        if sealed.supports or sealed.length < self.selected:
            raise ProtocolError(f"{self.name}: a ciphertext of another form or length")
        if sealed.data.size != self.nbytes(sealed.length):
            raise ProtocolError(
                f"{self.name}: {sealed.data.size} bytes, {self.nbytes(sealed.length)} were expected"
            )
        end, start = self.inner.nbytes(sealed.length), self._start(sealed.length)
        if sealed.data[end:start].any():
            raise ProtocolError(f"{self.name}: there is something between the two parts")
        inside = replace(sealed, scheme=self.inner.name, data=sealed.data[:end])
        return inside, sealed.data[start:]

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`, which is consumed.

        Raises
        ------
        ProtocolError
            Another scheme, round, parameter set or length, or what the scheme inside refuses.
        ReuseError
            A sender that is already in the total.
        """
        inside, rest = self.split(part)
        if total is None:
            return _under_way(part, self.inner.add(None, inside), rest.copy())
        if not isinstance(total, SelectiveTotal):
            total = self.add(None, total)
        assert isinstance(total, SelectiveTotal)
        merged_senders(total, part, self.cohort)
        # The scheme inside first: what it refuses must leave the whole total alone.
        inner = self.inner.add(total.inner, inside)
        self.packing.add(total.rest, rest, self.rest)
        return _under_way(total, inner, total.rest)

    def close(self, total: Sealed) -> Sealed:
        """The sum as it travels to the readers."""
        if not isinstance(total, SelectiveTotal):
            return total
        inner = self.inner.close(total.inner)
        return self.join(inner, total.rest)

    def join(self, inside: Sealed, rest: NDArray[np.uint8]) -> Sealed:
        """Inverse of `split`; the two parts are copied."""
        data = empty(self.nbytes(inside.length), np.uint8)
        end, start = inside.data.size, self._start(inside.length)
        data[:end], data[end:start], data[start:] = inside.data, 0, rest
        return Sealed(self.name, inside.slot, inside.senders, inside.length, data, inside.mode)


@dataclass(frozen=True, slots=True, eq=False)
class SelectiveTotal(Sealed):
    """A sum under way: `inner` is that of the scheme inside, `rest` that of what is in clear."""

    inner: Sealed = field(kw_only=True)
    rest: NDArray[np.uint8] = field(kw_only=True, repr=False)


def _under_way(like: Sealed, inner: Sealed, rest: NDArray[np.uint8]) -> SelectiveTotal:
    return SelectiveTotal(
        like.scheme,
        like.slot,
        inner.senders,
        like.length,
        np.empty(0, np.uint8),
        like.mode,
        inner=inner,
        rest=rest,
    )


@dataclass(slots=True)
class SelectiveSealer:
    """One client's side: the sealer inside, and the mask, which all clients have in common.

    Parameters
    ----------
    scheme : Selective
        Public parameters.
    inner : Sealer
        Of the scheme inside.
    mask : Support
        Which values are encrypted.
    """

    scheme: Selective
    inner: Sealer
    mask: Support = field(repr=False)
    threads: int = 1

    def __post_init__(self) -> None:
        _check_mask(self.scheme, self.mask)

    @property
    def rank(self) -> int:
        """Rank of this client among the members."""
        return self.inner.rank

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Compute ahead what the sealer inside needs for `length` encrypted values."""
        self.inner.prepare(slot, length, mode)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt the selected values of a whole vector, and its extras; pack the rest.

        Raises
        ------
        ProtocolError
            A vector of another length, or a sparse one.
        RangeError, ReuseError
            As the sealer inside does.
        """
        from flhe.math import select_kernels

        scheme, values = self.scheme, plain.values
        if support is not None or plain.coords is not None or values.size != scheme.floats:
            raise ProtocolError(
                f"{scheme.name}: {values.size} values, whole vectors of {scheme.floats} are encrypted"
            )
        chosen = empty(scheme.selected, values.dtype)
        others = empty(scheme.floats - scheme.selected, values.dtype)
        select_kernels.apart(values, self.mask.coords, chosen, others)
        check_integers(scheme.name, others, scheme.space)  # as the sealer inside does, of its part
        inside = self.inner.encrypt(Plain(chosen, plain.extras), slot, mode=mode)
        if scheme.rest == 0:
            return replace(inside, scheme=scheme.name)
        return scheme.join(inside, pack_clear(scheme.packing, others, self.threads))


@dataclass(slots=True)
class SelectiveSharedSealer(SelectiveSealer):
    """The same where the sealer inside has a fresh key for each ciphertext."""

    def take_seed(self, slot: Slot) -> NDArray[np.uint64]:
        """The key of a ciphertext that was made, once; ReuseError after that."""
        return cast(SharedSealer, self.inner).take_seed(slot)


def selective_sealer(
    scheme: Selective, inner: Sealer, mask: Support, *, threads: int = 1
) -> SelectiveSealer:
    """A sealer that shares keys where the one inside does."""
    kind = SelectiveSharedSealer if isinstance(inner, SharedSealer) else SelectiveSealer
    return kind(scheme, inner, mask, threads)


@dataclass(slots=True)
class SelectiveOpener:
    """A reader's side: the opener inside, and the mask.

    Parameters
    ----------
    scheme : Selective
        Public parameters.
    inner : Opener
        Of the scheme inside.
    mask : Support
        Which values are encrypted.
    """

    scheme: Selective
    inner: Opener
    mask: Support = field(repr=False)
    threads: int = 1

    def __post_init__(self) -> None:
        _check_mask(self.scheme, self.mask)

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Signed values, then extras, shape (floats + extras,); zeros where nothing was sent.

        Raises
        ------
        ProtocolError
            What is no sum of this scheme, or what the opener inside refuses.
        """
        from flhe.math import select_kernels

        scheme, packing = self.scheme, self.scheme.packing
        inside, packed = scheme.split(total)
        opened = self.inner.decrypt(inside)
        others: NDArray[Any] = np.zeros(scheme.floats - scheme.selected, packing.signed)
        if scheme.rest:
            others = unpack_clear(packing, packed, scheme.rest, self.threads)
        dtype = np.promote_types(opened.dtype, others.dtype)
        lanes = empty(scheme.floats + opened.size - scheme.selected, dtype)
        select_kernels.together(
            opened[: scheme.selected], others, self.mask.coords, lanes[: scheme.floats]
        )
        lanes[scheme.floats :] = opened[scheme.selected :]
        return lanes


def pack_clear(packing: Packing, values: NDArray[Any], threads: int = 1) -> NDArray[np.uint8]:
    """Signed integers as they travel in clear."""
    signed = values.astype(packing.signed, copy=False)
    out = empty(packing.nbytes(signed.size), np.uint8)
    _each(packing, signed, out, threads, packing.pack)
    return out


def unpack_clear(
    packing: Packing, data: NDArray[np.uint8], length: int, threads: int = 1
) -> NDArray[Any]:
    """Inverse of `pack_clear`, or of a sum; ProtocolError for data of another length."""
    packing.check(data, length)
    out = empty(length, packing.signed)
    _each(packing, out, data, threads, lambda part, zeros, cut: packing.unpack(cut, zeros, part))
    return out


def _each(
    packing: Packing, signed: NDArray[Any], data: NDArray[np.uint8], threads: int, work: Any
) -> None:
    """Call `work(values, zeros, bytes)` for each piece, on so many threads."""
    step = max(PIECE // packing.block, 1) * packing.block
    zeros = np.zeros(min(step, signed.size), packing.lane)

    def run(start: int, stop: int) -> None:
        for at, end in windows(start, stop, step):
            work(signed[at:end], zeros[: end - at], packing.cut(data, at, end))

    spread(run, signed.size, step, threads)


def _check_mask(scheme: Selective, mask: Support) -> None:
    if (mask.length, mask.count) != (scheme.floats, scheme.selected):
        raise ConfigError(
            f"{scheme.name}: a mask of {mask.count} of {mask.length} values, this is for "
            f"{scheme.selected} of {scheme.floats}"
        )
