"""Shell: what schemes and sealers of dense vectors have in common, one way to encrypt among it."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.spaces import Integers
from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.schemes.base import Reader, check_integers
from flhe.schemes.sealed import Sealed, Slot, check_senders, merged_senders


class Shell:
    """A scheme but for its parameters, `nbytes` and `_sum`; the base of frozen dataclasses.

    Clients open, and a round needs nothing beyond what the codec asks for, unless a scheme says
    otherwise.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Name on the wire."""
    dense: ClassVar[str]
    """Why it carries no sparse vectors."""

    cohort: int
    bits: int

    @property
    def space(self) -> Integers:
        """Integers of `bits` bits, symmetric."""
        return Integers((1 << (self.bits - 1)) - 1)

    @property
    def reader(self) -> Reader:
        """Clients open; the server has nothing to decrypt with."""
        return "clients"

    @property
    def phases(self) -> tuple[str, ...]:
        """Nothing beyond what the codec asks for."""
        return ()

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        raise NotImplementedError

    def check_mode(self, mode: str) -> None:
        """There is one way only; ProtocolError for any other."""
        if mode:
            raise ProtocolError(f"{self.name}: a mode was named, and it has none")

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`; `total` is consumed, its buffer may live on in the result.

        Raises
        ------
        ProtocolError
            Another scheme, round, parameter set or length; a sparse ciphertext; a sender outside the
            cohort; data that the scheme does not write.
        ReuseError
            A sender that is already in the total.
        """
        self.check(part)  # all of it, before anything is added: an error must leave the total alone
        if total is None:
            return Sealed(self.name, part.slot, part.senders, part.length, part.data.copy())
        senders = merged_senders(total, part, self.cohort)
        data = self._sum(total, part)
        return Sealed(self.name, total.slot, senders, total.length, data)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        """The bytes of a sum of two that were checked; those of `total` may be written to."""
        raise NotImplementedError

    def close(self, total: Sealed) -> Sealed:
        """What travels to the readers of a sum: `total` itself."""
        return total

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme; ProtocolError."""
        if sealed.scheme != self.name:
            raise ProtocolError(f"{self.name}: a ciphertext of {sealed.scheme!r}")
        self.check_mode(sealed.mode)
        if sealed.supports:
            raise ProtocolError(f"{self.name}: a sparse ciphertext; {self.dense}")
        check_senders(sealed.senders, self.cohort)
        if sealed.data.size != self.nbytes(sealed.length):
            raise ProtocolError(
                f"{self.name}: a ciphertext of {sealed.data.size} bytes, {sealed.length} values take "
                f"{self.nbytes(sealed.length)}"
            )


class SealerShell:
    """A sealer but for `_make` and `_seal`; the base of dataclasses with the fields named here."""

    __slots__ = ()

    scheme: Any
    rank: int
    _used: set[Slot]
    _ready: dict[tuple[Slot, int], Any]
    _lock: threading.Lock

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values` then `plain.extras`, signed integers within the scheme's space.

        Raises
        ------
        ReuseError
            A second vector for one slot: their difference would show.
        RangeError
            A value outside the space, which would run into others' sums.
        ProtocolError
            A mode or a support: there are none here.
        """
        scheme = self.scheme
        scheme.check_mode(mode)
        if support is not None or plain.coords is not None:
            raise ProtocolError(f"{scheme.name}: sparse values; {scheme.dense}")
        for part in (plain.values, plain.extras):
            check_integers(scheme.name, part, scheme.space)
        length = plain.values.size + plain.extras.size
        with self._lock:
            if slot in self._used:
                raise ReuseError(f"{scheme.name}: this slot has encrypted a vector before")
            self._used.add(slot)
            ready = self._ready.pop((slot, length), None)
        data = self._seal(plain, slot, length, ready)
        return Sealed(scheme.name, slot, (self.rank,), length, data)

    def _seal(self, plain: Plain, slot: Slot, length: int, ready: Any) -> NDArray[np.uint8]:
        """The ciphertext's bytes; `ready` is what `_keep` was given, or None."""
        raise NotImplementedError

    def _keep(self, slot: Slot, length: int, ready: Any) -> None:
        """Keep what `_seal` will need for a vector of `length` integers in `slot`."""
        with self._lock:
            self._ready[slot, length] = ready


class SharedSealerShell(SealerShell):
    """One with a fresh key for each ciphertext, of which readers get to know sums only."""

    __slots__ = ()

    _seeds: dict[Slot, NDArray[np.uint64]]

    def take_seed(self, slot: Slot) -> NDArray[np.uint64]:
        """The key of a ciphertext that was made, as field elements, once: it is shared and forgotten.

        Raises
        ------
        ReuseError
            Nothing was encrypted for `slot` with a key of its own, or the key was taken.
        """
        with self._lock:
            if slot not in self._seeds:
                name = self.scheme.name
                raise ReuseError(f"{name}: there is no key of this slot, or it was taken before")
            return self._seeds.pop(slot)
