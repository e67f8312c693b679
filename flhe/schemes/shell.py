"""What adders of residues and sealers have in common, and how they work on pieces of vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import LimbPacking, spread
from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.schemes.base import Adder, check_integers
from flhe.schemes.sealed import Sealed, Slot, check_senders


class ResidueShell(Adder):
    """One whose ciphertexts are residues: `sizes.count(length)` of each of `sizes.limbs`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        Adder.__post_init__(self)
        _ = self.sizes  # what does not fit is refused now

    @property
    def sizes(self) -> Any:
        """Rings and limbs."""
        raise NotImplementedError

    @property
    def limbs(self) -> LimbPacking:
        """How residues lie in the ciphertext."""
        limbs: LimbPacking = self.sizes.limbs
        return limbs

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return self.limbs.nbytes(self.sizes.count(length))

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        sizes = self.sizes
        self.limbs.add(total.data, part.data, sizes.count(part.length), sizes.rings)
        return total.data

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme, a residue that is not below its modulus."""
        Adder.check(self, sealed)
        try:
            self.limbs.check(sealed.data, self.sizes.count(sealed.length))
        except ProtocolError as error:
            raise ProtocolError(f"{self.name}: the ciphertext {whose(sealed)}: {error}") from None


def whose(sealed: Sealed) -> str:
    """Whose a ciphertext is, in an error."""
    return f"of sender {sealed.senders[0]}" if len(sealed.senders) == 1 else "of a sum"


class _Rank:
    """What fields of sealers have in common; each has them in an order of its own."""

    __slots__ = ()

    adder: Any
    rank: int


@dataclass(slots=True)
class SealerShell(_Rank):
    """A sealer but for `_seal`; the base of dataclasses with some of these fields.

    `group_key` is K_G of the epoch, 32 bytes, `rank` as in `Secrets`, `random` what is drawn from.
    """

    threads: int = field(default=1, kw_only=True)
    _used: set[Slot] = field(default_factory=set, init=False, repr=False)
    _ready: dict[tuple[Slot, int, str], Any] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.adder.cohort)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Nothing: there is nothing to compute before there are values."""
        self.adder.check_mode(mode)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Parameters as for `Sealer`.

        Raises ReuseError: a second vector for one slot: their difference would show; RangeError: a
        value outside the space, which would run into others' sums; ProtocolError: a mode or a support
        that the scheme does not have, or values of other coordinates.
        """
        adder = self.adder
        adder.check_mode(mode)
        adder.check_support(plain, support)
        for part in (plain.values, plain.extras):
            check_integers(adder.name, part, adder.space)
        length = plain.values.size + plain.extras.size
        with self._lock:
            if slot in self._used:
                raise ReuseError(f"{adder.name}: this slot has encrypted a vector before")
            self._used.add(slot)
            ready = self._ready.pop((slot, length, mode), None)
        data = self._seal(plain, slot, ready, mode, support)
        supports = () if support is None else (support,)
        return Sealed(adder.name, slot, (self.rank,), length, data, mode, supports)

    def _seal(
        self, plain: Plain, slot: Slot, ready: Any, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        """The ciphertext's bytes; `ready` is what `_keep` was given, or None."""
        raise NotImplementedError

    def _keep(self, slot: Slot, length: int, ready: Any, mode: str = "") -> None:
        """Keep what `_seal` will need for a vector of `length` integers in `slot`."""
        with self._lock:
            self._ready[slot, length, mode] = ready


@dataclass(slots=True)
class SharedSealerShell(SealerShell):
    """One with a fresh key for each ciphertext, of which readers get to know sums only."""

    _seeds: dict[Slot, NDArray[np.uint64]] = field(default_factory=dict, init=False, repr=False)

    def take_seed(self, slot: Slot) -> NDArray[np.uint64]:
        """The key of a ciphertext that was made, as field elements, once: it is shared and forgotten.

        Raises ReuseError: nothing was encrypted for `slot` with a key of its own, or the key was
        taken.
        """
        with self._lock:
            if slot not in self._seeds:
                name = self.adder.name
                raise ReuseError(f"{name}: there is no key of this slot, or it was taken before")
            return self._seeds.pop(slot)


class OpenerShell:
    """An opener but for `_open`; the base of dataclasses with an adder."""

    __slots__ = ()

    adder: Any

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Open a closed sum: signed values, then extras, shape (total.length,), int32 where sums fit.

        Raises ProtocolError: another scheme, a sender outside the cohort, data of another length or
        that the scheme does not write; a sum of other senders than it says, opened with another key,
        or altered.
        """
        try:
            self.adder.check(total)
            return self._open(total)
        except ProtocolError as error:
            raise ProtocolError(f"{error}; the round is refused") from None

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """What a sum that was checked holds."""
        raise NotImplementedError


def windows(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """First and last place of each piece of `step` places."""
    for at in range(start, stop, step):
        yield at, min(at + step, stop)


def each_piece(work: Callable[[int, int], None], length: int, step: int, threads: int) -> None:
    """Call `work(start, stop)` for each piece of `step` places, on so many threads."""

    def run(start: int, stop: int) -> None:
        for at, end in windows(start, stop, step):
            work(at, end)

    spread(run, length, step, threads)


def window(arrays: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
    """Values `start` to `stop` of two arrays that follow each other; a view where one has them all."""
    first, second = arrays
    if stop <= first.size:
        return first[start:stop]
    rest = second[max(start - first.size, 0) : stop - first.size]
    return np.concatenate([first[start:], rest]) if start < first.size else rest
