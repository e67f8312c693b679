"""Common parts of adders of residues, and work on pieces of vectors for sealers and openers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.limbs import LimbPacking
from flhe.coding.pack import Packing
from flhe.errors import ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import PIECE
from flhe.math.threads import spread
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed


class ResidueShell(Adder):
    """Adder whose ciphertexts are residues: `sizes.count(length)` of each of `sizes.limbs`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sizes  # refuse sizes that do not fit now

    @property
    def sizes(self) -> Any:
        """Rings and limbs."""
        raise NotImplementedError

    @property
    def limbs(self) -> LimbPacking:
        """Layout of residues in the ciphertext."""
        limbs: LimbPacking = self.sizes.limbs
        return limbs

    def nbytes(self, length: int) -> int:
        """Return the bytes of a ciphertext of `length` values."""
        return self.limbs.nbytes(self.sizes.count(length))

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        sizes = self.sizes
        self.limbs.add(total.data, part.data, sizes.count(part.length), sizes.rings)
        return total.data

    def check(self, sealed: Sealed) -> None:
        """Refuse an invalid ciphertext of this scheme, as one with a residue not below its modulus."""
        Adder.check(self, sealed)
        try:
            self.limbs.check(sealed.data, self.sizes.count(sealed.length))
        except ProtocolError as error:
            raise ProtocolError(f"{self.name}: the ciphertext {whose(sealed)}: {error}") from None


def whose(sealed: Sealed) -> str:
    """Return the owner of a ciphertext, for an error."""
    return f"of sender {sealed.senders[0]}" if len(sealed.senders) == 1 else "of a sum"


def windows(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last place of each piece of `step` places."""
    for at in range(start, stop, step):
        yield at, min(at + step, stop)


def each_piece(work: Callable[[int, int], None], length: int, step: int, threads: int) -> None:
    """Call `work(start, stop)` for each piece of `step` places, on `threads` threads."""

    def run(start: int, stop: int) -> None:
        for at, end in windows(start, stop, step):
            work(at, end)

    spread(run, length, step, threads)


def window(arrays: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
    """Return values `start` to `stop` of two consecutive arrays; a view if one has them all."""
    first, second = arrays
    if stop <= first.size:
        return first[start:stop]
    rest = second[max(start - first.size, 0) : stop - first.size]
    return np.concatenate([first[start:], rest]) if start < first.size else rest


def packed(packing: Packing, values: NDArray[Any], threads: int = 1) -> NDArray[np.uint8]:
    """Pack signed integers in clear, without a mask."""
    signed = values.astype(packing.signed, copy=False)
    out = empty(packing.nbytes(signed.size), np.uint8)
    _each_cut(packing, signed, out, threads, packing.pack)
    return out


def unpacked(
    packing: Packing, data: NDArray[np.uint8], length: int, threads: int = 1
) -> NDArray[Any]:
    """Invert `packed`, also for a sum; ProtocolError for data of another length."""
    packing.check(data, length)
    out = empty(length, packing.signed)
    _each_cut(packing, out, data, threads, lambda part, none, cut: packing.unpack(cut, none, part))
    return out


def _each_cut(
    packing: Packing, signed: NDArray[Any], data: NDArray[np.uint8], threads: int, work: Any
) -> None:
    """Call `work(values, no mask, bytes)` for each piece, on `threads` threads."""
    step = max(PIECE // packing.block, 1) * packing.block
    none = np.zeros(min(step, signed.size), packing.lane)

    def run(at: int, end: int) -> None:
        work(signed[at:end], none[: end - at], packing.cut(data, at, end))

    each_piece(run, signed.size, step, threads)
