"""Shell: what adders and sealers have in common, one way to encrypt among it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Integers, Plain
from flhe.coding.limb_packing import LimbPacking
from flhe.coding.pack import spread
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, ReuseError
from flhe.math.ring import Elements
from flhe.schemes.base import Opener, check_integers
from flhe.schemes.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.wire.secret import Random

NO_SUPPORT = "its adder takes none, and its scheme does not say so (dense)"
MAX_COHORT = 1024
"""The systems are for federations of organizations; FLASHE's paper speaks of 2 to 100 (Sec. 2.1)."""


class Shell:
    """An adder but for `nbytes`, `_sum` and its roles; the base of frozen dataclasses.

    Parameters
    ----------
    scheme : Scheme
        The scheme's own parameters.
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    """

    __slots__ = ()

    scheme: Any
    cohort: int
    bits: int

    @property
    def name(self) -> str:
        """Name on the wire: the scheme's."""
        name: str = self.scheme.name
        return name

    def __post_init__(self) -> None:
        self._check_cohort()
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"{type(self).__name__}(bits={self.bits}): bits must be 2 to 32")

    def _check_cohort(self) -> None:
        if not 2 <= self.cohort <= MAX_COHORT:
            kind = type(self).__name__
            raise ConfigError(f"{kind}(cohort={self.cohort}): cohort must be 2 to {MAX_COHORT}")

    @property
    def space(self) -> Integers:
        """Integers of `bits` bits, symmetric."""
        return Integers((1 << (self.bits - 1)) - 1)

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: schemes add their own."""
        return {"name": self.name, "cohort": self.cohort, "bits": self.bits}

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        raise NotImplementedError

    def check_mode(self, mode: str) -> None:
        """There is one way only; ProtocolError for any other."""
        if mode:
            raise ProtocolError(f"{self.name}: a mode was named, and it has none")

    def check_support(self, plain: Plain, support: Support | None) -> None:
        """Refuse values of some coordinates; ProtocolError."""
        if support is not None or plain.coords is not None:
            raise ProtocolError(f"{self.name}: sparse values; {self.scheme.dense or NO_SUPPORT}")

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`; `total` is consumed, its buffer may live on in the result.

        Raises ProtocolError: another scheme, round, parameter set or length; a sparse ciphertext; a
        sender outside the cohort; data that the scheme does not write; ReuseError: a sender that is
        already in the total.
        """
        self.check(part)  # all of it, before anything is added: an error must leave the total alone
        if total is None:
            data = part.data.copy()
            return Sealed(self.name, part.slot, part.senders, part.length, data, part.mode)
        senders = merged_senders(total, part, self.cohort)
        data = self._sum(total, part)
        return Sealed(self.name, total.slot, senders, total.length, data, total.mode)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        """The bytes of a sum of two that were checked; those of `total` may be written to."""
        raise NotImplementedError

    def close(self, total: Sealed) -> Sealed:
        """What travels to the readers of a sum: `total` itself."""
        return total

    def server_opener(self, released: Elements, *, threads: int = 1) -> Opener:
        """Refused: members open; ConfigError."""
        raise ConfigError(f"{self.name}: members open its sums, and the server none")

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme; ProtocolError."""
        if sealed.scheme != self.name:
            raise ProtocolError(f"{self.name}: a ciphertext of {sealed.scheme!r}")
        self.check_mode(sealed.mode)
        if sealed.supports:
            raise ProtocolError(f"{self.name}: a sparse ciphertext; {self.scheme.dense}")
        check_senders(sealed.senders, self.cohort)
        if sealed.data.size != self.nbytes(sealed.length):
            raise ProtocolError(
                f"{self.name}: a ciphertext of {sealed.data.size} bytes, {sealed.length} values take "
                f"{self.nbytes(sealed.length)}"
            )


class ResidueShell(Shell):
    """One whose ciphertexts are residues: `sizes.count(length)` of each of `sizes.limbs`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        Shell.__post_init__(self)
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
        Shell.check(self, sealed)
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

    Parameters
    ----------
    adder : Adder
        Public parameters.
    group_key : bytes
        K_G of the epoch, 32 bytes.
    rank : int
        This client's rank in the agreed member list; never a number from the server.
    threads : int
        Threads to encrypt on.
    random : callable
        Where what is drawn comes from: n -> n uniform bytes.
    """

    threads: int = field(default=1, kw_only=True)
    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)
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
        """Open a sum: signed integers, shape (total.length,), int32 where the largest sum fits.

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
