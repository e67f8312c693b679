"""FLASHE on sparse vectors: each sender encrypts its own coordinates (FLASHE, Algorithm 1).

A sender encrypts the coordinates in its support, and all extras, which follow the last coordinate.
The mask of coordinate d is the same as in a dense vector, F(j, d) (extra number e is coordinate
length + e). So sums telescope over the senders of d. Masks between neighbours in rank cancel, and
opening removes the masks at the two ends of each run. That needs all supports, and nothing else.

A sum in progress is one lane a coordinate (`SparseTotal`). Only the coordinates that at least one
member sent travel to the readers.

Source: FLASHE, Sec. 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import Packing
from flhe.coding.support import Support, members
from flhe.errors import ProtocolError
from flhe.math.buffers import empty, fixed
from flhe.math.keystream import BLOCK, Terms, keystream
from flhe.math.threads import spread
from flhe.schemes.flashe.masking import Mode, telescoped
from flhe.schemes.sealed import Sealed
from flhe.schemes.shell import packed, unpacked

_WINDOW = 1 << 18
"""Coordinates that are opened at a time: their masks' sums fit a core's own cache."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseTotal(Sealed):
    """A sum in progress: `data` holds one whole lane for each coordinate and each extra."""


def masks_for(
    key: bytes,
    packing: Packing,
    terms: Terms,
    support: Support,
    extras: int,
    threads: int = 1,
) -> NDArray[Any]:
    """Return one sender's masks: of its coordinates, then of the extras, (count + extras,)."""
    behind = np.arange(support.length, support.length + extras, dtype=np.uint32)
    return _masks_at(key, packing, terms, np.concatenate([support.coords, behind]), threads)


def _masks_at(
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
    sums, ends = empty(total.length, packing.lane), _ends(total, mode)

    def work(start: int, stop: int) -> None:
        stream, lanes = keystream(key), np.empty(min(_WINDOW, stop - start), packing.lane)
        made = np.empty_like(lanes)
        for at in range(start, stop, _WINDOW):
            window = np.array([at, min(at + _WINDOW, stop)], np.uint32)
            lanes[:] = 0
            for terms, places in ends:
                here = places[slice(*np.searchsorted(places, window))]
                stream.at(made[: here.size], here, terms)
                coordinate_kernels.scatter_add(fixed(here), made[: here.size], np.uint64(at), lanes)
            own = slice(*np.searchsorted(coords, window))
            coordinate_kernels.gather(lanes, fixed(coords[own]), np.uint64(at), sums[own])

    spread(work, length, packing.block, threads)
    behind = np.arange(length, length + extras, dtype=np.uint32)
    sums[coords.size :] = _masks_at(key, packing, telescoped(total.senders, mode), behind)
    np.subtract(values, sums, out=sums)
    return packing.signed_of(sums)


def _ends(total: Sealed, mode: Mode) -> list[tuple[Terms, NDArray[np.uint32]]]:
    """Return the streams in a sum, and the coordinates of each.

    F(j, d) was added by j and, under double masking, subtracted by j - 1: they cancel where both sent.
    """
    sent = dict(zip(total.senders, total.supports, strict=True))
    if mode == "single":
        return [(([j], []), support.coords) for j, support in sent.items()]
    words = {j: support.bitmap() for j, support in sent.items()}
    nobody, found = np.zeros_like(words[total.senders[0]]), list[tuple[Terms, NDArray[np.uint32]]]()
    for j in sorted(words.keys() | {j + 1 for j in words}):
        added, taken = words.get(j, nobody), words.get(j - 1, nobody)
        found += [(([j], []), members(added & ~taken)), (([], [j]), members(taken & ~added))]
    return found
