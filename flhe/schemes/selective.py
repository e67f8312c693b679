"""Selective: a part of each vector under any scheme, the rest in clear (FedML-HE, Sec. 2.4).

    data = ciphertext of the scheme inside | zeros up to 8 bytes | the rest, `lane_bits` a value

A vector has `floats` values, then extras. The inner scheme encrypts the values that a mask selects,
and all extras, as a shorter vector. The rest is packed in clear, with room for the sum of the
cohort, or left out. `length` counts the encrypted values: the server knows their number. It learns
their places only if it can infer them from the values in clear.

Nothing here hides the rest of an update; docs/fedml_he.md gives the cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Integers, Plain
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.ring import Elements
from flhe.schemes.base import Adder, Opener, Scheme, Sealer, Secrets, check_integers
from flhe.schemes.sealed import Sealed, Slot, merged_senders
from flhe.schemes.shell import packed, unpacked

SUFFIX = "/selected"
ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Selective(Adder):
    """Public parameters: the inner adder, which encrypts `selected` of `floats` values, and extras.

    Parameters
    ----------
    clear : bool
        True if the other values travel in clear; False if they do not travel.
    mask : Support, optional
        Set of encrypted values: a secret of the members, needed for sealing and opening.
    """

    inner: Adder
    floats: int
    selected: int
    clear: bool = True
    mask: Support | None = field(default=None, repr=False, compare=False)
    scheme: Scheme = field(init=False, repr=False, compare=False)
    cohort: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", self.inner.scheme)
        object.__setattr__(self, "cohort", self.inner.cohort)
        if not 1 <= self.selected <= self.floats:
            raise ConfigError(
                f"Selective(selected={self.selected}): 1 to all of the {self.floats} values"
            )
        mask = self.mask
        if mask is not None and (mask.length, mask.count) != (self.floats, self.selected):
            raise ConfigError(
                f"{self.name}: a mask of {mask.count} of {mask.length} values, this is for "
                f"{self.selected} of {self.floats}"
            )

    @property
    def name(self) -> str:
        """Name on the wire: not that of the inner scheme, because its ciphertexts differ."""
        return self.inner.name + SUFFIX

    @property
    def space(self) -> Integers:
        """The integers of the inner scheme."""
        return self.inner.space

    @property
    def known(self) -> Support:
        """The mask; ConfigError without one, as on a server."""
        if self.mask is None:
            raise ConfigError(f"{self.name}: only members know which values are encrypted")
        return self.mask

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> SelectiveSealer:
        """Return a member's sealer."""
        _ = self.known
        inner = self.inner.sealer(secrets, threads=threads)
        return SelectiveSealer(self, inner, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> SelectiveOpener:
        """Return a member's opener."""
        _ = self.known
        inner = self.inner.opener(secrets, released, threads=threads)
        return SelectiveOpener(self, inner, threads)

    @property
    def packing(self) -> Packing:
        """Layout of the rest in the bytes: signed, with room for the sum of the cohort."""
        return Packing((2 * self.cohort * self.space.bound + 1).bit_length())

    @property
    def rest(self) -> int:
        """Number of values that travel in clear."""
        return self.floats - self.selected if self.clear else 0

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout."""
        return {
            "name": "selective",
            "inner": self.inner.parameters(),
            "floats": self.floats,
            "selected": self.selected,
            "clear": self.clear,
            "lane_bits": self.packing.bits,
        }

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that the inner scheme does not have."""
        self.inner.check_mode(mode)

    def nbytes(self, length: int) -> int:
        """Return the bytes of a ciphertext of `length` encrypted values, with the rest."""
        return self._start(length) + self.packing.nbytes(self.rest)

    def _start(self, length: int) -> int:
        inner = self.inner.nbytes(length)
        return inner if self.rest == 0 else -(-inner // ALIGNED) * ALIGNED

    def split(self, sealed: Sealed) -> tuple[Sealed, NDArray[np.uint8]]:
        """Return the ciphertext of the inner scheme, and the packed rest; both are views.

        Raises ProtocolError: another scheme or length, a sparse ciphertext, or bits between the two
        or behind the rest: an error while the rest is added would leave half a sum.
        """
        self.check(sealed)
        if sealed.length < self.selected:
            raise ProtocolError(f"{self.name}: a ciphertext of another length")
        end, start = self.inner.nbytes(sealed.length), self._start(sealed.length)
        if sealed.data[end:start].any():
            raise ProtocolError(f"{self.name}: unexpected bytes between the two parts")
        self.packing.check(sealed.data[start:], self.rest)
        inside = replace(sealed, scheme=self.inner.name, data=sealed.data[:end])
        return inside, sealed.data[start:]

    def add(self, total: Sealed | None, part: Sealed) -> Sealed:
        """Fold `part` into `total`, which is consumed.

        Raises ProtocolError: another scheme, round, parameter set or length, or a refusal of the
        inner scheme; ReuseError: a sender that is already in the total.
        """
        inside, rest = self.split(part)
        if total is None:
            return self.join(self.inner.close(self.inner.add(None, inside)), rest)
        senders = merged_senders(total, part, self.cohort)
        before, clear = self.split(total)
        # The inner scheme first: if it refuses, the whole total must stay unchanged.
        inner = self.inner.close(self.inner.add(before, inside))
        if not np.may_share_memory(inner.data, before.data):
            before.data[:] = inner.data
        self.packing.add(clear, rest, self.rest)
        return replace(total, senders=senders)

    def join(self, inside: Sealed, rest: NDArray[np.uint8]) -> Sealed:
        """Invert `split`; copies the two parts."""
        data = empty(self.nbytes(inside.length), np.uint8)
        end, start = inside.data.size, self._start(inside.length)
        data[:end], data[end:start], data[start:] = inside.data, 0, rest
        return Sealed(self.name, inside.slot, inside.senders, inside.length, data, inside.mode)


@dataclass(slots=True)
class SelectiveSealer(Sealer):
    """One client's sealer: the inner sealer; the adder holds the mask, like every client's."""

    adder: Selective
    inner: Sealer
    rank: int

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Precompute the data that the inner sealer needs for `length` encrypted values."""
        self.inner.prepare(slot, length, mode)

    def encrypt(
        self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
    ) -> Sealed:
        """Encrypt the selected values of a whole vector, and its extras; pack the rest.

        Raises ProtocolError: a vector of another length, or a sparse one; RangeError, ReuseError:
        as the inner sealer.
        """
        from flhe.math import coordinate_kernels

        adder, values = self.adder, plain.values
        if support is not None or plain.coords is not None or values.size != adder.floats:
            raise ProtocolError(
                f"{adder.name}: {values.size} values, whole vectors of {adder.floats} are encrypted"
            )
        chosen = empty(adder.selected, values.dtype)
        others = empty(adder.floats - adder.selected, values.dtype)
        coordinate_kernels.apart(values, adder.known.coords, chosen, others)
        check_integers(adder.name, others, adder.space)  # as the inner sealer does with its part
        inside = self.inner.encrypt(Plain(chosen, plain.extras), slot, mode=mode)
        if adder.rest == 0:
            return replace(inside, scheme=adder.name)
        return adder.join(inside, packed(adder.packing, others, self.threads))

    def take_seed(self, slot: Slot) -> Elements:
        """Return the inner sealer's key, once; ReuseError after that, or if it has none."""
        return self.inner.take_seed(slot)


@dataclass(slots=True)
class SelectiveOpener(Opener):
    """A reader's opener: the inner opener; the adder holds the mask."""

    adder: Selective
    inner: Opener
    threads: int = 1

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return signed values, then extras, shape (floats + extras,); zeros for values not sent.

        Raises ProtocolError: not a sum of this scheme, or a refusal of the inner opener.
        """
        from flhe.math import coordinate_kernels

        adder, packing = self.adder, self.adder.packing
        inside, rest = adder.split(total)
        opened = self.inner.decrypt(inside)
        others: NDArray[Any] = np.zeros(adder.floats - adder.selected, packing.signed)
        if adder.rest:
            others = unpacked(packing, rest, adder.rest, self.threads)
        dtype = np.promote_types(opened.dtype, others.dtype)
        lanes = empty(adder.floats + opened.size - adder.selected, dtype)
        coordinate_kernels.together(
            opened[: adder.selected], others, adder.known.coords, lanes[: adder.floats]
        )
        lanes[adder.floats :] = opened[adder.selected :]
        return lanes
