"""Adders, sealers and openers of schemes that TenSEAL encrypts, block by block, under a shared key.

    c = (ciphertext under SEAL's mask) remasked: its second half `a` is derived, and does not travel
    sum of c, with the sum of a        opened by TenSEAL

So half of a ciphertext travels, up and down. `a` comes from the group key, per slot and sender
(`flhe.schemes.polynomial_masks`): two plaintexts under one `a` would show their difference. The server
adds residues. It holds nothing to decrypt with, and not even TenSEAL.

What lies beyond what its senders add up to, or where nobody put anything, says that a sum was opened
with another key, round or set of senders: slots are then as good as random. Authorship is for
`flhe.schemes.sum_mac` to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.ring import Elements
from flhe.schemes.base import Secrets, check_agrees
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.seal_blocks import SealBlocks
from flhe.schemes.seal_keys import SealPublic, SealSecret
from flhe.schemes.seal_scheme import SealScheme
from flhe.schemes.seal_sizes import sizes_for
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import OpenerShell, ResidueShell, SealerShell, each_piece, window
from flhe.wire.secret import Random


@dataclass(frozen=True, slots=True)
class SealAdder(ResidueShell):
    """Public parameters, as for `Adder`, and which key the epoch's members use, once they have one."""

    MASKS: ClassVar[str]
    """Label of the keys that masks are derived with."""
    SIZES: ClassVar[Any]
    """Kind of `SealSizes`."""
    SEALER: ClassVar[type[SealSealer]]
    OPENER: ClassVar[type[SealOpener]]

    scheme: SealScheme
    cohort: int
    bits: int = 16
    public: SealPublic | None = None

    @classmethod
    def of(cls, scheme: SealScheme, cohort: int, bits: int | None, public: bytes) -> Self:
        """That of a scheme; parameters and errors as for `Scheme.adder`."""
        known = SealPublic.from_bytes(public) if public else None
        return cls(scheme, cohort, scheme.or_default(bits), known)

    def __post_init__(self) -> None:
        ResidueShell.__post_init__(self)
        if self.public is not None:
            self.public.check(self.scheme.ring)

    @property
    def sizes(self) -> Any:
        """Ring, moduli and slots."""
        return sizes_for(self.SIZES, self.scheme.preset, self.cohort, self.bits)

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: what the key is called among them."""
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

    def new_pair(self, random: Random) -> tuple[bytes, bytes]:
        """A fresh key, encoded, and what is public of it."""
        secret = SealSecret.generate(self.scheme.ring, random)
        return secret.public.to_bytes(), secret.to_bytes()

    def check_pair(self, public: bytes, secret: bytes) -> None:
        """Refuse a key of another ring, one that was not drawn, or another one's public part."""
        own = SealSecret.from_bytes(secret)
        own.check(self.scheme.ring)
        if own.public != SealPublic.from_bytes(public):
            raise ProtocolError(f"{self.name}: the secret key does not belong to the public part")

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> SealSealer:
        """A member's sealer: with the key, and the group key for masks."""
        key = SealSecret.from_bytes(secrets.needed())
        return self.SEALER(self, key, secrets.group_key, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> SealOpener:
        """A member's opener: likewise."""
        check_agrees(self.scheme, released)
        key = SealSecret.from_bytes(secrets.needed())
        return self.OPENER(self, key, secrets.group_key, threads=threads)

    def blocks(self, key: SealSecret) -> SealBlocks:
        """TenSEAL with that key, once it proved to be this adder's; ConfigError for another one."""
        if key.ring != self.scheme.ring:
            raise ConfigError(
                f"{self.name}: a key of ring {key.ring!r}, not of {self.scheme.ring!r}"
            )
        if self.public is not None and self.public != key.public:
            raise ConfigError(
                f"{self.name}: the secret key is not the one that the public part names"
            )
        return SealBlocks.of(self.sizes, key)

    def masks(self, group_key: bytes, slot: Slot, senders: tuple[int, ...]) -> PolynomialMasks:
        """The sum of the masks of these senders."""
        return PolynomialMasks.of(self.sizes.ring, self.MASKS, group_key, slot, senders)


@dataclass(slots=True)
class SealSealer(SealerShell):
    """One client's side; parameters as for `SealerShell`, and the epoch's key.

    Errors, and the masks that are replaced, are drawn by SEAL, from the system's own random source.
    TenSEAL keeps Python's lock, so more threads than one save little.
    """

    adder: SealAdder
    key: SealSecret
    group_key: bytes = field(repr=False)
    rank: int
    _blocks: SealBlocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        SealerShell.__post_init__(self)
        self._blocks = self.adder.blocks(self.key)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """Gives the slots of values, (blocks * block,), from the block of a number on."""
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
class SealOpener(OpenerShell):
    """A reader's side; parameters as for `SealSealer`."""

    adder: SealAdder
    key: SealSecret
    group_key: bytes = field(repr=False)
    threads: int = 1
    _blocks: SealBlocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._blocks = self.adder.blocks(self.key)

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        adder, sizes = self.adder, self.adder.sizes
        senders = len(total.senders)
        masks = adder.masks(self.group_key, total.slot, total.senders)
        out = empty(total.length, np.int32 if sizes.digits.width <= 32 else np.int64)

        def work(at: int, end: int) -> None:
            slots, known = self._slots(self._opened(total, masks, at, end), senders)
            values, fits = sizes.digits.split(slots, senders)
            part = out[at // sizes.n * sizes.block :][: values.size]
            # One verdict: what exactly was off is not for whoever altered it to learn.
            if values[part.size :].any() or not (fits and known):
                raise ProtocolError(
                    f"{adder.name}: this is not the sum of what its senders encrypted in this "
                    "round: it was altered, or is opened with another key or other senders"
                )
            part[:] = values[: part.size]

        each_piece(work, sizes.count(total.length), sizes.step, self.threads)
        return out

    def _slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """Slots as integers, and whether so many senders' may have come out like that."""
        return opened, True

    def _opened(self, total: Sealed, masks: PolynomialMasks, at: int, end: int) -> NDArray[Any]:
        """What TenSEAL makes of residues `at` to `end`."""
        sizes, c = self.adder.sizes, np.empty(end - at, np.uint64)
        sizes.limbs.read(total.data, sizes.count(total.length), 0, at, c)
        rows = c.reshape(-1, sizes.n)
        return self._blocks.decrypt(rows, masks.blocks(at // sizes.n, len(rows)))
