"""FLASHE on sparse vectors: each sender encrypts its own coordinates (FLASHE, Algorithm 1).

A sender encrypts the coordinates in its support, and all extras, which follow the last coordinate.
The mask of coordinate d is the same as in a dense vector, F(j, d) (extra number e is coordinate
length + e). So sums telescope over the senders of d: masks between neighbours in rank cancel.
Opening needs all supports, and nothing else.

A sum in progress is one lane a coordinate (`SparseTotal`). Only the coordinates that at least one
member sent travel to the readers.

Source: FLASHE, Sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import Packing
from flhe.errors import ProtocolError
from flhe.math.buffers import empty, fixed
from flhe.math.keystream import BLOCK, CHUNK, OpenSsl, Terms, keystream
from flhe.math.threads import spread
from flhe.schemes.flashe.masking import Mode, telescoped
from flhe.schemes.sealed import Sealed
from flhe.schemes.shell import packed, unpacked

Add = Callable[[int, int, NDArray[Any]], None]
"""(first place, last place, sums of masks between) -> None, with a sum's masks added."""

_SHARE = 5
"""A sum is of few coordinates if its senders sent one in so many, on average, or fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseTotal(Sealed):
    """A sum in progress: `data` holds one whole lane for each coordinate and each extra."""


def masks_at(
    key: bytes, packing: Packing, terms: Terms, coords: NDArray[np.uint32], threads: int = 1
) -> NDArray[Any]:
    """Return the masks at some places, ascending, (count,)."""
    out = empty(coords.size, packing.lane)

    def work(start: int, stop: int) -> None:
        keystream(key).at(out[start:stop], coords[start:stop], terms)

    spread(work, coords.size, BLOCK, threads)
    return out


def check_part(packing: Packing, part: Sealed, count: int) -> int:
    """Return the number of extras in a ciphertext or closed sum of `count` coordinates.

    Raises ProtocolError: it is shorter than its supports say, or not valid.
    """
    extras = part.length - count
    if extras < 0:
        raise ProtocolError("flashe: a sparse ciphertext is shorter than its supports say")
    packing.check(part.data, part.length)
    return extras


def add(
    packing: Packing, total: Sealed | None, part: Sealed, senders: tuple[int, ...]
) -> SparseTotal:
    """Fold a ciphertext or another sum into a sum, whose buffer is reused if in progress."""
    from flhe.math import coordinate_kernels

    if total is not None and not isinstance(total, SparseTotal):
        total = add(packing, None, total, total.senders)
    if isinstance(part, SparseTotal):
        part = close(packing, part)
    coords = part.coords
    length, extras = part.supports[0].length, check_part(packing, part, coords.size)
    if total is None:
        lanes: NDArray[Any] = np.zeros(length + extras, packing.lane)
    else:
        lanes = total.data.view(packing.lane)
        if lanes.size != length + extras:
            raise ProtocolError("add: the part has another length than the sum")
    values = _lanes(packing, part)
    coordinate_kernels.scatter_add(fixed(coords), values[: coords.size], np.uint64(0), lanes)
    np.add(lanes[length:], values[coords.size :], out=lanes[length:])
    supports = dict(zip(part.senders, part.supports, strict=True))
    if total is not None:
        supports |= dict(zip(total.senders, total.supports, strict=True))
    ordered = tuple(supports[j] for j in senders)
    data = lanes.view(np.uint8)
    return SparseTotal(part.scheme, part.slot, senders, lanes.size, data, part.mode, ordered)


def close(packing: Packing, total: SparseTotal) -> Sealed:
    """Return the sum as it travels to readers: coordinates that were sent, and the extras."""
    from flhe.math import coordinate_kernels

    lanes = total.data.view(packing.lane)
    coords = total.coords
    length = total.supports[0].length
    values = empty(coords.size + total.length - length, packing.lane)
    coordinate_kernels.gather(lanes, fixed(coords), np.uint64(0), values[: coords.size])
    values[coords.size :] = lanes[length:]
    data = packed(packing, values.view(packing.signed))
    return Sealed(
        total.scheme, total.slot, total.senders, values.size, data, total.mode, total.supports
    )


def _lanes(packing: Packing, sealed: Sealed) -> NDArray[Any]:
    return unpacked(packing, sealed.data, sealed.length).view(packing.lane)


def open_sum(
    packing: Packing, mode: Mode, key: bytes, total: Sealed, threads: int = 1
) -> NDArray[Any]:
    """Open a closed sum: signed values of the union's coordinates, then extras, (total.length,)."""
    from flhe.math import coordinate_kernels

    length, coords = total.supports[0].length, total.coords
    extras = check_part(packing, total, coords.size)
    values = _lanes(packing, total)
    sums = empty(total.length, packing.lane)
    masks = _sent if _few(total, keystream(key)) else _runs
    add, window = masks(packing, mode, key, total)

    def work(start: int, stop: int) -> None:
        lanes: NDArray[Any] = np.empty(min(window, stop - start), packing.lane)
        for at in range(start, stop, window):
            end = min(at + window, stop)
            lanes[:] = 0
            add(at, end, lanes[: end - at])
            own = _within(coords, at, end)
            coordinate_kernels.gather(lanes, fixed(coords[own]), np.uint64(at), sums[own])

    spread(work, length, packing.block, threads)
    behind = np.arange(length, length + extras, dtype=np.uint32)
    sums[coords.size :] = masks_at(key, packing, telescoped(total.senders, mode), behind)
    np.subtract(values, sums, out=sums)
    return packing.signed_of(sums)


def _few(total: Sealed, stream: OpenSsl) -> bool:
    """Return whether the senders' coordinates are so few that blocks for each of them cost less."""
    sent = sum(support.count for support in total.supports)
    return _SHARE * stream.PRICE * sent < len(total.senders) * total.supports[0].length


def _within(coords: NDArray[np.uint32], start: int, stop: int) -> slice:
    return slice(*np.searchsorted(coords, np.array([start, stop], np.uint32)))


def _sent(packing: Packing, mode: Mode, key: bytes, total: Sealed) -> tuple[Add, int]:
    """Add the masks of each sender at its coordinates.

    Those that cancel are made too: few senders of one coordinate are neighbours.
    """
    from flhe.math import coordinate_kernels

    def add(start: int, stop: int, lanes: NDArray[Any]) -> None:
        stream, made = keystream(key), np.empty_like(lanes)
        for j, support in zip(total.senders, total.supports, strict=True):
            here = support.coords[_within(support.coords, start, stop)]
            masks = made[: here.size]
            stream.at(masks, here, telescoped((j,), mode))
            coordinate_kernels.scatter_add(fixed(here), masks, np.uint64(start), lanes)

    return add, 1 << 18


def _runs(packing: Packing, mode: Mode, key: bytes, total: Sealed) -> tuple[Add, int]:
    """Add the masks at the ends of runs of senders.

    F(j, d) was added by j and, under double masking, subtracted by j - 1: they cancel where both sent.
    """
    from flhe.math import coordinate_kernels

    words = {j: s.bitmap() for j, s in zip(total.senders, total.supports, strict=True)}
    nobody = np.zeros_like(words[total.senders[0]])
    ends = words.keys() | ({j + 1 for j in words} if mode == "double" else set())

    def add(start: int, stop: int, lanes: NDArray[Any]) -> None:
        stream, held = keystream(key), np.empty(lanes.size + BLOCK, packing.lane)
        part = slice(start // 64, -(-stop // 64))
        for j in sorted(ends):
            added = words.get(j, nobody)[part]
            taken = (words.get(j - 1, nobody) if mode == "double" else nobody)[part]
            if not np.array_equal(added, taken):
                stream.into(held, lanes.size, start * held.itemsize // BLOCK, ([j], []))
                coordinate_kernels.add_where(added, taken, held, lanes, False)
                coordinate_kernels.add_where(taken, added, held, lanes, True)

    return add, CHUNK // np.dtype(packing.lane).itemsize
