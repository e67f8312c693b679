"""Scheme, Adder, Sealer, Opener: each role holds its own keys.

A `Scheme` is one system: its parameters, and the properties that all other modules ask for. It
builds an `Adder` for the members of an epoch. The adder is public: the server holds nothing else
and cannot decrypt. From a member's `Secrets` the adder makes a `Sealer`, which encrypts, and an
`Opener`.

Law, for any subset S of distinct senders of a cohort, in any order of addition:
    opener.decrypt(add over S of sealer_i.encrypt(x_i)) == sum over S of x_i

`fits` checks at construction that an adder carries the values that a codec produces.
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
"""The schemes are for federations of organizations; FLASHE's paper names 2 to 100 (Sec. 2.1)."""

Reader = Literal["clients", "server"]
Agreement = Literal["group", "key-pair", "joint", "masking", "shares"]
"""Keys that members agree on beside the group key: none, a shared key pair, one key for each member
and the sum of all, fresh keys for each sum, or shares of a key that no member holds."""


class Spends(NamedTuple):
    """Use of a shared key by one opening: the units that it takes, of the total that the key allows."""

    takes: int
    of: int


FREE = Spends(0, 0)
"""Use of keys that serve one sum only: nothing to count."""


class Choice(NamedTuple):
    """A chosen mode, and the reason for it, as text for a log."""

    mode: str
    why: str


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets that one member of an epoch holds.

    `rank` is the member's position in the agreed member list, never a number from the server. `own`
    is the encoded output of the scheme's key agreement, empty if the scheme has none.
    """

    group_key: bytes = field(repr=False)
    rank: int
    own: bytes = field(default=b"", repr=False)

    def needed(self) -> bytes:
        """Return `own`; NoKeyError if it was erased or never agreed on."""
        if not self.own:
            raise NoKeyError(
                "this epoch has no scheme keys left, because its members began to agree on new ones: "
                "the group must agree on a new epoch"
            )
        return self.own


@dataclass(frozen=True, slots=True)
class Scheme(Record):
    """One system; the base of frozen dataclasses whose fields are its parameters.

    The attributes below default to the values of most schemes. Raises ConfigError for invalid
    parameters.
    """

    name: ClassVar[str]
    """Name on the wire, in configurations and on command lines."""
    title: ClassVar[str]
    """The system's name in its paper."""
    ADDER: ClassVar[str]
    """Class of its adder, "module:Class", imported on first use."""
    default_bits: ClassVar[int] = 16
    """Default number of bits of one value; 0 takes all that fit."""
    dense: ClassVar[str] = "its ciphertexts are added up as wholes"
    """Reason why the scheme carries no sparse vectors; empty if it does."""
    slow: ClassVar[bool] = False
    """True if encrypting may take as long as training."""
    deployed: ClassVar[bool] = True
    """True if a deployed node allows the scheme without naming it in its config."""
    needs: ClassVar[Needs] = Needs()
    """Packages beyond flhe's own."""
    limits: ClassVar[tuple[Limit, ...]] = ()
    """Limits that a site may set on the scheme, in its node config and in a signed roster."""

    @property
    def security(self) -> int:
        """Classical security in bits; 0 if unrated."""
        return 0

    @property
    def agreement(self) -> Agreement:
        """Keys that members agree on beside the group key: none."""
        return "group"

    @property
    def dealt(self) -> bool:
        """True if a trusted dealer makes the members' keys offline."""
        return False

    @classmethod
    def dealing(cls, **parameters: Any) -> Self | None:
        """Return the scheme with dealt keys and these parameters; None if it cannot have them."""
        return None

    @property
    def reader(self) -> Reader:
        """The role that opens sums: the clients; the server holds no key."""
        return "clients"

    @property
    def per_sum_keys(self) -> bool:
        """True if members agree on masking keys for each sum."""
        return self.agreement == "masking"

    @property
    def opened_together(self) -> bool:
        """True if the senders of a sum agree on their set and then release its key together."""
        return self.agreement in ("masking", "shares")

    @property
    def needs_all_members(self) -> bool:
        """True if only sums of all members open, because each member has a long-lived key."""
        return self.agreement == "joint"

    @property
    def member_secrets(self) -> bool:
        """True if members hold keys of the scheme, beside the group key, for a whole epoch."""
        return self.agreement in ("key-pair", "joint", "shares")

    def check_packages(self, role: Role = "node") -> None:
        """Import the packages for this role; PackageError with the install command otherwise."""
        self.needs.check(f"scheme {self.name!r}", role)

    def summary(self) -> str:
        """Return the parameters as text, for logs."""
        return f"Scheme: {self.title}"

    def settle(self, cohort: int, bits: int) -> tuple[Self, int]:
        """Return the scheme, and the bits of one value, for `cohort` members that asked for `bits`.

        With 0 bits a value gets all that fit, or all that cost no more on the wire than 16 do.
        """
        return self, bits or self.adder(cohort, 0).bits

    def elements(self, cohort: int) -> int:
        """Return the field elements of one ciphertext's key, if masking keys are agreed on."""
        return 0

    def threshold_of(self, cohort: int) -> int:
        """Return how many of `cohort` members open a sum together with a shared key; else 0."""
        return 0

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> Any:
        """Return the public parameters for `cohort` members, an `Adder`.

        Raises ConfigError: a cohort or bits that the scheme does not take; ProtocolError: an
        invalid public key, or one of other parameters.

        `bits` default to `default_bits`. `public` is the epoch's encoded public key, if the scheme
        has one: the adder cannot add without it. For joint keys it is the name of the sum of keys.
        """
        kind, named = pkgutil.resolve_name(self.ADDER), public and self.member_secrets
        return kind(self, cohort, self.or_default(bits), *([public] if named else []))

    @property
    def mode_ahead(self) -> str:
        """The mode of sums that come before the server knows what a round sends."""
        return ""

    def mode_for(self, members: int, dropout: float) -> str:
        """Return the mode of a dense round in which a share `dropout` of the members is missing."""
        return ""

    def mode_of(self, supports: Sequence[tuple[int, Support]], extras: int, readers: int) -> Choice:
        """Return the mode of a sparse round with these (rank, support), ranks ascending.

        Each sender sends `extras` integers beside its values; `readers` is how many members open.
        Schemes with one mode return the empty one.
        """
        return Choice("", "")

    def check_limits(self, limits: Mapping[str, Value]) -> tuple[str, str] | None:
        """Return the first site limit that these parameters break, and the reason; None if none."""
        return None

    def or_default(self, bits: int | None) -> int:
        """Return `bits`, or the default if None."""
        return self.default_bits if bits is None else bits


class Adder:
    """Public parameters for the members of an epoch, and the addition, which needs no secret.

    The base of frozen dataclasses, with the defaults of most adders. A sum has room for `cohort`
    members, 2 to 1024. An encoded value has `bits` bits, sign included, 2 to 32.
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
        """Name of its ciphertexts on the wire: the scheme's name."""
        return str(self.scheme.name)

    @property
    def space(self) -> Integers:
        """Values that one sender may encrypt: integers of `bits` bits, symmetric."""
        return Integers((1 << (self.bits - 1)) - 1)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout; schemes add their own."""
        return {"name": self.name, "cohort": self.cohort, "bits": self.bits}

    def nbytes(self, length: int) -> int:
        """Return the bytes that a ciphertext of `length` values takes on the wire."""
        raise NotImplementedError

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that this scheme does not have; most have only "". Raises ProtocolError."""
        if mode:
            raise ProtocolError(f"{self.name}: a mode was named, and it has none")

    def check_support(self, plain: Plain, support: Support | None) -> None:
        """Refuse values of some coordinates; ProtocolError."""
        if support is not None or plain.coords is not None:
            why = self.scheme.dense or "its adder takes none, but its scheme leaves `dense` empty"
            raise ProtocolError(f"{self.name}: sparse values; {why}")

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`, whose buffer is consumed: use the returned one from then on.

        Raises ProtocolError: another scheme, round, parameter set or length; a sparse ciphertext; a
        sender outside the cohort; data that the scheme does not write; ReuseError: a sender that is
        already in the total.
        """
        self.check(part)  # check everything before adding: an error must leave the total unchanged
        if total is None:
            data = part.data.copy()
            return Sealed(self.name, part.slot, part.senders, part.length, data, part.mode)
        senders = merged_senders(total, part, self.cohort)
        data = self._sum(total, part)
        return Sealed(self.name, total.slot, senders, total.length, data, total.mode)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        """Return the summed bytes of two checked ciphertexts; may overwrite those of `total`."""
        raise NotImplementedError

    def close(self, total: Sealed) -> Sealed:
        """Return the sum as it travels to readers and is hashed: `total` itself."""
        return total

    def check(self, sealed: Sealed) -> None:
        """Refuse bytes that are not a ciphertext of this scheme; ProtocolError."""
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
        """Return the sealer of the member that holds `secrets`."""
        raise NotImplementedError

    def opener(self, secrets: Secrets, released: Any = None, *, threads: int = 1) -> Opener:
        """Return the opener of the member that holds `secrets`.

        `released` is what the senders released for this sum, if they open it together: the sum of
        their keys, or partial decryptions by rank.
        """
        raise NotImplementedError

    def server_opener(self, released: Elements, *, threads: int = 1) -> Opener:
        """Return the server's opener, which holds only `released`, if the server reads sums.

        Raises ConfigError if members open sums.
        """
        if self.scheme.reader != "server":
            raise ConfigError(f"{self.name}: members open its sums; the server cannot")
        return self.opener(Secrets(b"", 0), released, threads=threads)


class _Rank:
    """Fields that sealers share; each sealer orders them for itself."""

    __slots__ = ()

    adder: Any
    rank: int


@dataclass(slots=True)
class Sealer(_Rank):
    """A client's secrets; the base of dataclasses that add `_seal`, and some of these fields.

    `group_key` is the epoch's K_G, 32 bytes. `rank` is as in `Secrets`. `random` is the randomness
    source.
    """

    threads: int = field(default=1, kw_only=True)
    _used: set[Slot] = field(default_factory=set, init=False, repr=False)
    _ready: dict[tuple[Slot, int, str], Any] = field(default_factory=dict, init=False, repr=False)
    _seeds: dict[Slot, Elements] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.adder.cohort)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Precompute what `encrypt` needs for `slot`, on any thread; nothing by default."""
        self.adder.check_mode(mode)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt `plain.values`, of all coordinates or those in `support`, then `plain.extras`.

        The values are signed integers within the scheme's space. A slot may be used only once.
        `mode` selects one of the scheme's modes.

        Raises ReuseError: a second vector for one slot, because their difference would be revealed;
        RangeError: a value outside the space, because it would overflow into other values;
        ProtocolError: a mode or a support that the scheme does not have, or values of other
        coordinates.
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
        """Return the ciphertext's bytes; `ready` is the value stored by `_keep`, or None."""
        raise NotImplementedError

    def _keep(self, slot: Slot, length: int, ready: Any, mode: str = "") -> None:
        """Store the data that `_seal` needs for a vector of `length` integers in `slot`."""
        with self._lock:
            self._ready[slot, length, mode] = ready

    def take_seed(self, slot: Slot) -> Elements:
        """Return the key of a ciphertext as field elements, once, for sharing; then forget it.

        Raises ReuseError: `_seal` stored no key for `slot` in `_seeds`, or the key was taken
        before.
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
        """Open a closed sum: signed values, then extras, shape (total.length,), int32 if sums fit.

        Raises ProtocolError: another scheme, a sender outside the cohort, data of another length or
        that the scheme does not write; a sum that was altered, opened with another key, or does not
        match its listed senders.
        """
        try:
            self.adder.check(total)
            return self._open(total)
        except ProtocolError as error:
            raise ProtocolError(f"{error}; the round is refused") from None

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return the values in a checked sum."""
        raise NotImplementedError


def check_integers(name: str, values: NDArray[Any], space: Integers) -> None:
    """Refuse values outside a space of integers; the error's text holds no value.

    Raises RangeError: another type, or a value beyond the bound, because it would overflow into
    other values.
    """
    if values.dtype.kind != "i":
        raise RangeError(f"{name}: takes signed integers, got {values.dtype}; quantize first")
    bound, ends = space.bound, np.iinfo(values.dtype)
    # Each comparison takes a pass; it is left out where the type has no value beyond the bound.
    if values.size and (
        (ends.max > bound and values.max() > bound) or (ends.min < -bound and values.min() < -bound)
    ):
        raise RangeError(f"{name}: a value lies beyond {bound}; quantize to fewer bits")


def fits(codec: Codec, adder: Adder, cohort: int) -> None:
    """Refuse a codec that does not match the adder, at construction rather than at round 7.

    Raises MisfitError: the adder cannot carry the codec's output for `cohort` senders.
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
