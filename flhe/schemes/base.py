"""Scheme, Sealer, Opener: roles hold keys.

A `Scheme` is public parameters only, and all that a server ever has: it can add, and has nothing to
decrypt with. A `Sealer` holds one client's secrets, an `Opener` a reader's; `flhe.keys` builds both.

Law, for any subset S of distinct senders of a cohort, in any order of addition:
    opener.decrypt(add over S of sealer_i.encrypt(x_i)) == sum over S of x_i

`fits` says at construction whether what a codec produces is what a scheme carries.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Codec, Plain
from flhe.coding.spaces import Integers, Reals
from flhe.coding.support import Support
from flhe.errors import MisfitError, RangeError
from flhe.schemes.sealed import Sealed, Slot

Reader = Literal["clients", "server"]


@runtime_checkable
class Scheme(Protocol):
    """Public parameters of one system, and the addition that needs nothing else."""

    @property
    def name(self) -> str:
        """Name on the wire."""

    @property
    def cohort(self) -> int:
        """Senders that a sum has room for."""

    @property
    def space(self) -> Integers:
        """What one sender may encrypt."""

    @property
    def reader(self) -> Reader:
        """Who opens sums."""

    @property
    def phases(self) -> tuple[str, ...]:
        """Stages that a round needs beyond `train`, by their names on the wire."""

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that this scheme does not have; "" is that of a scheme with one only."""

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`, whose buffer is consumed: use the returned one from then on."""

    def close(self, total: Sealed) -> Sealed:
        """The sum as it travels to the readers: its digest is taken of this."""

    def nbytes(self, length: int) -> int:
        """Bytes that a ciphertext of `length` values takes on the wire."""


@runtime_checkable
class Sealer(Protocol):
    """A client's secrets."""

    @property
    def rank(self) -> int:
        """Rank of this client among the members."""

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Compute what `encrypt` will need for `slot`, ahead of time and on any thread."""

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt values, of all coordinates or those in `support`, and extras.

        One slot is used once, ever. `mode` is which of its ways a scheme that has several shall use.
        """


@runtime_checkable
class SharedSealer(Sealer, Protocol):
    """A sealer with a fresh key for each ciphertext, of which readers get to know sums only."""

    def take_seed(self, slot: Slot) -> NDArray[np.uint64]:
        """The key of a ciphertext that was made, as field elements, once; ReuseError after that."""


@runtime_checkable
class Opener(Protocol):
    """A reader's secrets."""

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Open a closed sum: signed values, then extras, shape (total.length,)."""


def check_integers(name: str, values: NDArray[Any], space: Integers) -> None:
    """Refuse what is not within a space of integers; no value is in the error's text.

    Raises
    ------
    RangeError
        Another type, or a value beyond the bound: it would run into others' sums.
    """
    if values.dtype.kind != "i":
        raise RangeError(f"{name}: takes signed integers, got {values.dtype}; quantize first")
    bound = space.bound
    if values.size and (values.max() > bound or values.min() < -bound):
        raise RangeError(f"{name}: a value lies beyond {bound}; quantize to fewer bits")


def fits(codec: Codec, scheme: Scheme, cohort: int) -> None:
    """Refuse, at construction, what would go wrong at round 7.

    Raises
    ------
    MisfitError
        When what the codec produces is not what the scheme carries, for `cohort` senders.
    """
    if scheme.cohort < cohort:
        raise MisfitError(
            f"{scheme.name} is built for {scheme.cohort} senders, got a cohort of {cohort}; "
            f"build it with cohort={cohort}"
        )
    produced = codec.out(Reals(float("inf")))
    if not isinstance(produced, Integers):
        raise MisfitError(
            f"{scheme.name} carries integers, the codec produces {produced}; "
            "end the chain with Quantize(bits)"
        )
    if produced.bound > scheme.space.bound:
        raise MisfitError(
            f"{scheme.name} carries integers up to {scheme.space.bound}, the codec produces up "
            f"to {produced.bound}; give both the same bits"
        )
    check = getattr(codec, "check_cohort", None)
    if check is not None:
        check(cohort)
