"""Scheme, Adder, Sealer, Opener: roles hold keys.

A `Scheme` is one system: its own parameters, and what it declares of itself, which is what everything
else asks. It builds an `Adder` for the members of an epoch: public, all that a server ever has, with
nothing to decrypt with. With a member's `Secrets` the adder makes a `Sealer`, which encrypts, and an
`Opener`.

Law, for any subset S of distinct senders of a cohort, in any order of addition:
    opener.decrypt(add over S of sealer_i.encrypt(x_i)) == sum over S of x_i

`fits` says at construction whether what a codec produces is what an adder carries.
"""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Integers, Plain, Reals
from flhe.coding.support import Support
from flhe.errors import (
    ConfigError,
    MisfitError,
    NoKeyError,
    ProtocolError,
    RangeError,
    ReuseError,
)
from flhe.math.ring import Elements
from flhe.packages import Needs, Role
from flhe.schemes.limit import Limit, Value
from flhe.schemes.sealed import Sealed, Slot, check_senders, merged_senders
from flhe.wire.record import Record

MAX_COHORT = 1024
"""The systems are for federations of organizations; FLASHE's paper speaks of 2 to 100 (Sec. 2.1)."""

Reader = Literal["clients", "server"]
Agreement = Literal["group", "key-pair", "joint", "masking", "shares"]
"""What members agree on beside the group key: nothing, a key pair that they share, a key for each
member and the sum of all, the keys of each sum by itself, or shares of a key that nobody has."""


class Spends(NamedTuple):
    """What opening a sum takes of a key that members hold shares of, and how much it may open."""

    takes: int
    of: int


FREE = Spends(0, 0)
"""What keys of one sum alone take."""


class Choice(NamedTuple):
    """A mode that was chosen, and why, in words for a log."""

    mode: str
    why: str


@dataclass(frozen=True, slots=True)
class Secrets:
    """What one member of an epoch holds.

    `rank` is its own in the agreed member list, never a number from the server; `own` is what the
    scheme's key agreement gave it, encoded, empty where there is none.
    """

    group_key: bytes = field(repr=False)
    rank: int
    own: bytes = field(default=b"", repr=False)

    def needed(self) -> bytes:
        """`own`, where the scheme has one; NoKeyError where it was erased, or there never was any."""
        if not self.own:
            raise NoKeyError(
                "this epoch has no keys of the scheme any more, because members agreed on others or "
                "began to: the group must agree anew"
            )
        return self.own


@dataclass(frozen=True, slots=True)
class Scheme(Record):
    """One system; the base of frozen dataclasses whose fields are its own parameters.

    Declared below is what most systems say. Raises ConfigError for parameters that cannot be.
    """

    name: ClassVar[str]
    """Name on the wire, in configurations and on command lines."""
    title: ClassVar[str]
    """The system as its paper calls it."""
    ADDER: ClassVar[str]
    """Its adder's class, "module:Class", which is imported when it is needed."""
    default_bits: ClassVar[int] = 16
    """Bits of one value where nobody says; 0 takes what there is room for."""
    dense: ClassVar[str] = "its ciphertexts are added up as wholes"
    """Why it carries no sparse vectors; empty where it does."""
    slow: ClassVar[bool] = False
    """Whether encrypting may take as long as training."""
    deployed: ClassVar[bool] = True
    """Whether a deployed node allows it where its config names no schemes."""
    needs: ClassVar[Needs] = Needs()
    """Packages beyond flhe's own."""
    limits: ClassVar[tuple[Limit, ...]] = ()
    """What a site may set on it, in its node config and in a signed roster."""

    @property
    def security(self) -> int:
        """Bits of classical work that breaking it takes; 0 where nobody has rated it."""
        return 0

    @property
    def agreement(self) -> Agreement:
        """What members agree on beside the group key: nothing."""
        return "group"

    @property
    def dealt(self) -> bool:
        """Whether somebody trusted deals the members' keys offline."""
        return False

    @classmethod
    def dealing(cls, **parameters: Any) -> Self | None:
        """The scheme with keys that are dealt, and these parameters; None where they cannot be."""
        return None

    @property
    def reader(self) -> Reader:
        """Who opens sums: the clients; the server has nothing to decrypt with."""
        return "clients"

    @property
    def per_sum_keys(self) -> bool:
        """Whether sums are opened by an agreement on masking keys, sum by sum."""
        return self.agreement == "masking"

    @property
    def opened_together(self) -> bool:
        """Whether the senders of a sum release what opens it, once they are agreed on who they are."""
        return self.agreement in ("masking", "shares")

    @property
    def needs_all_members(self) -> bool:
        """Whether only sums of all members are opened: where each has a key that lasts."""
        return self.agreement == "joint"

    @property
    def member_secrets(self) -> bool:
        """Whether members hold keys of the scheme beside the group key, for all of an epoch."""
        return self.agreement in ("key-pair", "joint", "shares")

    def check_packages(self, role: Role = "node") -> None:
        """Import what it needs in this role; PackageError saying how to install what is missing."""
        self.needs.check(f"scheme {self.name!r}", role)

    def summary(self) -> str:
        """Its parameters in words, for logs."""
        return f"Scheme: {self.title}"

    def settle(self, cohort: int, bits: int) -> tuple[Self, int]:
        """The scheme and the bits of one value for `cohort` members, where `bits` were asked for.

        0 bits take all that there is room for, or that cost no more on the wire than 16 do.
        """
        return self, bits or self.adder(cohort, 0).bits

    def elements(self, cohort: int) -> int:
        """Field elements of the key of one ciphertext, where masking keys are agreed on."""
        return 0

    def threshold_of(self, cohort: int) -> int:
        """Members of `cohort` that open a sum together, where they hold shares of the key; else 0."""
        return 0

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> Any:
        """Public parameters for `cohort` members, an `Adder`.

        Raises ConfigError: a cohort or bits that the scheme does not take; ProtocolError: a public key
        that is none, or of other parameters.

        `bits` are `default_bits` unless said. `public` is the epoch's public key, encoded, where the
        scheme has one: nothing is added without it. Or what its members call the sum of their keys.
        """
        kind, named = pkgutil.resolve_name(self.ADDER), public and self.member_secrets
        return kind(self, cohort, self.or_default(bits), *([public] if named else []))

    @property
    def mode_ahead(self) -> str:
        """The mode of sums that come before what a round sends is known: the only one there is."""
        return ""

    def mode_for(self, members: int, dropout: float) -> str:
        """The mode of a dense round in which a share `dropout` of the members is missing."""
        return ""

    def mode_of(self, supports: Sequence[tuple[int, Support]], extras: int, readers: int) -> Choice:
        """The mode of a sparse round of these (rank, support), ranks ascending; empty for the only one.

        `extras` are the integers that each sends beside its values, `readers` the members that open.
        """
        return Choice("", "")

    def check_limits(self, limits: Mapping[str, Value]) -> tuple[str, str] | None:
        """Which of a site's limits these parameters break, and why, in words; None if none."""
        return None

    def or_default(self, bits: int | None) -> int:
        """`bits`, or the default."""
        return self.default_bits if bits is None else bits


class Adder:
    """Public parameters for the members of an epoch, and the addition that needs nothing else.

    The base of frozen dataclasses, with what most adders do. A sum has room for `cohort` members, 2 to
    1024, and an encoded value for `bits`, sign included, 2 to 32.
    """

    __slots__ = ()

    scheme: Any
    cohort: int
    bits: int

    def __post_init__(self) -> None:
        self._check_cohort()
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"{type(self).__name__}(bits={self.bits}): bits must be 2 to 32")

    def _check_cohort(self) -> None:
        if not 2 <= self.cohort <= MAX_COHORT:
            kind = type(self).__name__
            raise ConfigError(f"{kind}(cohort={self.cohort}): cohort must be 2 to {MAX_COHORT}")

    @property
    def name(self) -> str:
        """Name of its ciphertexts on the wire: the scheme's."""
        name: str = self.scheme.name
        return name

    @property
    def space(self) -> Integers:
        """What one sender may encrypt: integers of `bits` bits, symmetric."""
        return Integers((1 << (self.bits - 1)) - 1)

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: schemes add their own."""
        return {"name": self.name, "cohort": self.cohort, "bits": self.bits}

    def nbytes(self, length: int) -> int:
        """Bytes that a ciphertext of `length` values takes on the wire."""
        raise NotImplementedError

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that this scheme does not have; ProtocolError. "" is the only one of most."""
        if mode:
            raise ProtocolError(f"{self.name}: a mode was named, and it has none")

    def check_support(self, plain: Plain, support: Support | None) -> None:
        """Refuse values of some coordinates; ProtocolError."""
        if support is not None or plain.coords is not None:
            why = (
                self.scheme.dense or "its adder takes none, and its scheme does not say so (dense)"
            )
            raise ProtocolError(f"{self.name}: sparse values; {why}")

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`, whose buffer is consumed: use the returned one from then on.

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
        """The sum as it travels to the readers, of which its digest is taken: `total` itself."""
        return total

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

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> Sealer:
        """The sealer of the member that holds `secrets`."""
        raise NotImplementedError

    def opener(self, secrets: Secrets, released: Any = None, *, threads: int = 1) -> Opener:
        """The opener of the member that holds `secrets`.

        `released` is what its senders released of the sum to open, where they open it together: the
        sum of their keys of it, or partial decryptions by rank.
        """
        raise NotImplementedError

    def server_opener(self, released: Elements, *, threads: int = 1) -> Opener:
        """The server's opener, where the scheme lets it read: it holds what was released, no more.

        Raises ConfigError where members open.
        """
        if self.scheme.reader != "server":
            raise ConfigError(f"{self.name}: members open its sums, and the server none")
        return self.opener(Secrets(b"", 0), released, threads=threads)


class _Rank:
    """What fields of sealers have in common; each has them in an order of its own."""

    __slots__ = ()

    adder: Any
    rank: int


@dataclass(slots=True)
class Sealer(_Rank):
    """A client's secrets; the base of dataclasses that add `_seal`, and some of these fields.

    `group_key` is K_G of the epoch, 32 bytes, `rank` as in `Secrets`, `random` what is drawn from.
    """

    threads: int = field(default=1, kw_only=True)
    _used: set[Slot] = field(default_factory=set, init=False, repr=False)
    _ready: dict[tuple[Slot, int, str], Any] = field(default_factory=dict, init=False, repr=False)
    _seeds: dict[Slot, Elements] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.adder.cohort)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Compute what `encrypt` will need for `slot`, ahead of time, on any thread: here nothing."""
        self.adder.check_mode(mode)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values`, of all coordinates or those in `support`, then `plain.extras`.

        They are signed integers within the scheme's space. One slot is used once, ever. `mode` is
        which of its ways a scheme that has several shall use.

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

    def take_seed(self, slot: Slot) -> Elements:
        """The key of a ciphertext that was made, as field elements, once: it is shared and forgotten.

        Raises ReuseError: nothing was encrypted for `slot` with a key of its own, which `_seal` puts
        into `_seeds`, or the key was taken.
        """
        with self._lock:
            if slot not in self._seeds:
                name = self.adder.name
                raise ReuseError(f"{name}: there is no key of this slot, or it was taken before")
            return self._seeds.pop(slot)


class Opener:
    """A reader's secrets; the base of dataclasses with an adder, that add `_open`."""

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


def check_integers(name: str, values: NDArray[Any], space: Integers) -> None:
    """Refuse what is not within a space of integers; no value is in the error's text.

    Raises RangeError: another type, or a value beyond the bound: it would run into others' sums.
    """
    if values.dtype.kind != "i":
        raise RangeError(f"{name}: takes signed integers, got {values.dtype}; quantize first")
    bound = space.bound
    if values.size and (values.max() > bound or values.min() < -bound):
        raise RangeError(f"{name}: a value lies beyond {bound}; quantize to fewer bits")


def fits(codec: Codec, adder: Adder, cohort: int) -> None:
    """Refuse, at construction, what would go wrong at round 7.

    Raises MisfitError: when what the codec produces is not what the adder carries, for `cohort`
    senders.
    """
    if adder.cohort < cohort:
        raise MisfitError(
            f"{adder.name} is built for {adder.cohort} senders, got a cohort of {cohort}; "
            f"build it with cohort={cohort}"
        )
    produced = codec.out(Reals(float("inf")))
    if not isinstance(produced, Integers):
        raise MisfitError(
            f"{adder.name} carries integers, the codec produces {produced}; "
            "end the chain with Quantize(bits)"
        )
    if produced.bound > adder.space.bound:
        raise MisfitError(
            f"{adder.name} carries integers up to {adder.space.bound}, the codec produces up "
            f"to {produced.bound}; give both the same bits"
        )
    codec.check_cohort(cohort)
