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
from flhe.coding.support import Support, covered, members
from flhe.errors import ProtocolError
from flhe.math.buffers import empty, fixed
from flhe.math.threads import spread
from flhe.schemes.flashe.masking import Mode, Terms, masks, telescoped
from flhe.schemes.sealed import Sealed
from flhe.schemes.shell import packed, unpacked


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
    from flhe.schemes.flashe import kernels

    coords, length = support.coords, support.length
    out = empty(coords.size + extras, packing.lane)

    def work(start: int, stop: int) -> None:
        # Of the coordinates' own type: NumPy would widen all of them first.
        first = int(np.searchsorted(coords, np.uint32(start)))
        for at, end, sums in masks(key, packing.lane, terms, start, stop):
            last = first + int(np.searchsorted(coords[first:], np.uint32(end)))
            kernels.gather(sums, fixed(coords[first:last]), np.uint64(at), out[first:last])
            first = last
            if end > length:  # the extras, which follow the last coordinate
                begin = max(at, length)
                part = sums[begin - at :]
                out[coords.size + begin - length : coords.size + end - length] = part

    spread(work, length + extras, packing.block, threads)
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
    from flhe.schemes.flashe import kernels

    if total is not None and not isinstance(total, SparseTotal):
        total = add(packing, None, total, total.senders)
    if isinstance(part, SparseTotal):
        part = close(packing, part)
    coords = covered(part.supports)
    length, extras = part.supports[0].length, check_part(packing, part, coords.size)
    if total is None:
        lanes: NDArray[Any] = np.zeros(length + extras, packing.lane)
    else:
        lanes = total.data.view(packing.lane)
        if lanes.size != length + extras:
            raise ProtocolError("add: the part has another length than the sum")
    values = _lanes(packing, part)
    kernels.scatter_add(fixed(coords), values[: coords.size], lanes)
    np.add(lanes[length:], values[coords.size :], out=lanes[length:])
    supports = dict(zip(part.senders, part.supports, strict=True))
    if total is not None:
        supports |= dict(zip(total.senders, total.supports, strict=True))
    ordered = tuple(supports[j] for j in senders)
    data = lanes.view(np.uint8)
    return SparseTotal(part.scheme, part.slot, senders, lanes.size, data, part.mode, ordered)


def close(packing: Packing, total: SparseTotal) -> Sealed:
    """Return the sum as it travels to readers: coordinates that were sent, and the extras."""
    from flhe.schemes.flashe import kernels

    lanes = total.data.view(packing.lane)
    coords = covered(total.supports)
    length = total.supports[0].length
    values = empty(coords.size + total.length - length, packing.lane)
    kernels.gather(lanes, fixed(coords), np.uint64(0), values[: coords.size])
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
    from flhe.schemes.flashe import kernels

    length = total.supports[0].length
    words = {j: s.bitmap() for j, s in zip(total.senders, total.supports, strict=True)}
    union = np.bitwise_or.reduce([*words.values()])
    extras = check_part(packing, total, int(np.bitwise_count(union).sum()))
    coords = members(union, total.length - extras)
    values = _lanes(packing, total)
    nobody = np.zeros(-(-length // 64), np.uint64)
    lanes: NDArray[Any] = np.zeros(length, packing.lane)  # sums of the masks of each coordinate

    def work(start: int, stop: int) -> None:
        for j in sorted(words.keys() | ({j + 1 for j in words} if mode == "double" else set())):
            # F(j, d) was added by j and, under double masking, subtracted by j - 1.
            added = words.get(j, nobody)
            taken = words.get(j - 1, nobody) if mode == "double" else nobody
            if np.array_equal(added, taken):
                continue
            for at, end, stream in masks(key, packing.lane, ([j], []), start, stop):
                w = slice(at // 64, -(-end // 64))
                kernels.add_where(added[w], taken[w], stream, lanes[at:end], False)
                if mode == "double":
                    kernels.add_where(taken[w], added[w], stream, lanes[at:end], True)

    spread(work, length, packing.block, threads)
    sums = empty(total.length, packing.lane)
    kernels.gather(lanes, fixed(coords), np.uint64(0), sums[: coords.size])
    first = length // packing.block * packing.block  # a stream can be entered only at a block
    terms, behind = telescoped(total.senders, mode), sums[coords.size :]
    for at, end, stream in masks(key, packing.lane, terms, first, length + extras):
        begin = max(at, length)
        behind[begin - length : max(end - length, 0)] = stream[begin - at :]
    return packing.signed_of(values - sums)
