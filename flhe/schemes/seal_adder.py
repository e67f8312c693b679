"""Adders, sealers and openers of schemes that TenSEAL encrypts, block by block, under a shared key.

    c = (ciphertext under SEAL's mask) remasked: its second half `a` is derived, and does not travel
    sum of c, with the sum of a        opened by TenSEAL

So half of a ciphertext travels, up and down. `a` is derived from the group key, per slot and
sender: two plaintexts under one `a` would reveal their difference. The server adds residues. It
holds no key, and needs no TenSEAL.

    a_j = P_j - P_(j+1)                      of the sender of rank j, each P uniform below q

The differences of P_0 to P_N are N uniform and independent polynomials. In a sum over consecutive
ranks all but two of the P cancel. So a reader expands two streams for each run of senders, whatever
its length: FLASHE's double masking (Eq. 1).

A sum opened with a wrong key, round or set of senders has slots that look random. Values then
exceed the senders' bound, or unused slots are not zero. `flhe.schemes.sum_mac` verifies authorship.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, PrimeRing
from flhe.schemes.base import Opener, Sealer, Secrets
from flhe.schemes.flashe.masking import telescoped
from flhe.schemes.keyed import KeyPairAdder
from flhe.schemes.presets import SealScheme
from flhe.schemes.seal_blocks import SealBlocks
from flhe.schemes.seal_keys import SealPublic, SealSecret
from flhe.schemes.seal_sizes import sizes_for
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import ResidueShell, each_piece, window
from flhe.wire.derive import hkdf


@dataclass(frozen=True, slots=True)
class PolynomialMasks:
    """The sum of some senders' masks in one slot: streams that are added, and streams subtracted."""

    ring: PrimeRing
    plus: tuple[FieldElements, ...] = field(repr=False)
    minus: tuple[FieldElements, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        ring: PrimeRing,
        label: str,
        group_key: bytes,
        slot: Slot,
        senders: Sequence[int],
    ) -> PolynomialMasks:
        """Return the masks of the senders of these ranks; `label` names the scheme's derivation."""

        def stream(j: int) -> FieldElements:
            # A key for one slot, P and ring: no word of its streams is used for another mask.
            key = hkdf(group_key, label, *slot.context(), j, ring.n, ring.q)
            return FieldElements(key, ring.q)

        plus, minus = telescoped(senders, "double")
        return cls(ring, tuple(map(stream, plus)), tuple(map(stream, minus)))

    def blocks(self, first: int, count: int) -> Elements:
        """Return blocks from `first` on: uint64 (count, n), below q."""
        ring, n = self.ring, self.ring.n
        out, space = np.zeros((count, n), np.uint64), np.empty(count * n + 4, np.uint64)
        for stream in self.plus:
            ring.add(out, stream.blocks(first, count, n, space), out)
        for stream in self.minus:
            ring.subtract(out, stream.blocks(first, count, n, space), out)
        return out


@dataclass(frozen=True, slots=True)
class SealAdder(ResidueShell, KeyPairAdder):
    """Public parameters, as for `Adder`, and the digest of the epoch's key, once there is one."""

    SECRET, PUBLIC, SIZE = SealSecret, SealPublic, ("ring",)
    MASKS: ClassVar[str]
    """Label for deriving the keys of masks."""
    SIZES: ClassVar[Any]
    """Class of `SealSizes`."""
    SEALER: ClassVar[Any] = None
    """Class of sealer; `SealSealer` if the scheme has none of its own."""

    scheme: SealScheme
    cohort: int
    bits: int = 16
    public: SealPublic | None = None

    @property
    def sizes(self) -> Any:
        """Ring, moduli and slots."""
        return sizes_for(self.SIZES, self.scheme.preset, self.cohort, self.bits)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout, the key's name included."""
        sizes = self.sizes
        return {
            **ResidueShell.parameters(self),
            "ring": self.scheme.ring,
            "key_id": b"" if self.public is None else self.public.key_id,
            "modulus": sizes.q.to_bytes(8, "big"),
            "slot_bits": sizes.digits.width,
            "slots": sizes.digits.per,
            **sizes.parameters(),
        }

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> SealSealer:
        """Return a member's sealer, with the key, and the group key for masks."""
        key = self.pair_of(secrets)
        made: SealSealer = (self.SEALER or SealSealer)(
            self, key, secrets.group_key, secrets.rank, threads=threads
        )
        return made

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> SealOpener:
        """Return a member's opener, with the key, and the group key for masks."""
        key = self.pair_of(secrets)
        return SealOpener(self, key, secrets.group_key, threads=threads)

    def masks(self, group_key: bytes, slot: Slot, senders: tuple[int, ...]) -> PolynomialMasks:
        """Return the sum of these senders' masks."""
        return PolynomialMasks.of(self.sizes.ring, self.MASKS, group_key, slot, senders)


@dataclass(slots=True)
class SealSealer(Sealer):
    """One client's sealer; parameters as for `Sealer`, and the epoch's key.

    SEAL draws errors, and the masks that are replaced, from the system's own random source. TenSEAL
    holds Python's lock, so more threads than one save little.
    """

    adder: SealAdder
    key: SealSecret
    group_key: bytes = field(repr=False)
    rank: int
    _blocks: SealBlocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        Sealer.__post_init__(self)
        self._blocks = SealBlocks.of(self.adder.sizes, self.key)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """Return the function that turns values, from the block of a number on, into slots."""
        digits = self.adder.sizes.digits
        return lambda values, first: digits.join(values)

    def _seal(
        self, plain: Plain, slot: Slot, ready: None, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        sizes, joined = self.adder.sizes, self._joining()
        length = plain.values.size + plain.extras.size
        count, data = sizes.count(length), empty(self.adder.nbytes(length), np.uint8)
        masks = self.adder.masks(self.group_key, slot, (self.rank,))

        def work(at: int, end: int) -> None:
            first, size = at // sizes.n, (end - at) // sizes.n
            values = np.zeros(size * sizes.block, np.int64)
            known = (first * sizes.block, min((first + size) * sizes.block, length))
            values[: known[1] - known[0]] = window((plain.values, plain.extras), *known)
            residues = self._blocks.encrypt(joined(values, first), masks.blocks(first, size))
            sizes.limbs.write(residues.reshape(-1), data, count, 0, at)

        each_piece(work, count, sizes.step, self.threads)
        return data


@dataclass(slots=True)
class SealOpener(Opener):
    """A reader's opener; parameters as for `SealSealer`."""

    adder: SealAdder
    key: SealSecret
    group_key: bytes = field(repr=False)
    threads: int = 1
    _blocks: SealBlocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._blocks = SealBlocks.of(self.adder.sizes, self.key)

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        adder, sizes = self.adder, self.adder.sizes
        senders = len(total.senders)
        masks = adder.masks(self.group_key, total.slot, total.senders)
        out = empty(total.length, np.int32 if sizes.digits.width <= 32 else np.int64)

        def work(at: int, end: int) -> None:
            slots, known = sizes.slots(self._opened(total, masks, at, end), senders)
            values, fits = sizes.digits.split(slots, senders)
            part = out[at // sizes.n * sizes.block :][: values.size]
            # One verdict: details of the fault would help an attacker who altered the sum.
            if values[part.size :].any() or not (fits and known):
                raise ProtocolError(
                    f"{adder.name}: this is not the sum of what its senders encrypted in this "
                    "round: it was altered, or is opened with another key or other senders"
                )
            part[:] = values[: part.size]

        each_piece(work, sizes.count(total.length), sizes.step, self.threads)
        return out

    def _opened(self, total: Sealed, masks: PolynomialMasks, at: int, end: int) -> NDArray[Any]:
        """Return TenSEAL's decryption of residues `at` to `end`."""
        sizes, c = self.adder.sizes, np.empty(end - at, np.uint64)
        sizes.limbs.read(total.data, sizes.count(total.length), 0, at, c)
        rows = c.reshape(-1, sizes.n)
        return self._blocks.decrypt(rows, masks.blocks(at // sizes.n, len(rows)))
