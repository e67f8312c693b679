"""BfvAdder: values as integers in the slots of BFV, encrypted by TenSEAL under a shared key.

    (c0, c1) = (q m / t + e - c1 s, c1)        TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = q m / t + e - a s    what travels: a is derived, so it need not
    sum of c + (sum of a) s                    opened by TenSEAL: the sum of the m, modulo t

As under FedML-HE half of a ciphertext travels, up and down, and the server adds residues: it holds
nothing to decrypt with, and not even TenSEAL. Beside CKKS a block has twice as many slots, and sums are
integers by themselves; what lies beyond what its senders add up to, or where nobody put anything, says
that a sum was opened with another key, round or set of senders. That is no proof of authorship, which
`flhe.schemes.sum_mac` is there to show.

Members share s: together with the server one of them reads single updates, as under FLASHE.

Source: Fan and Vercauteren (ePrint 2012/144); sizes: `flhe.schemes.bfv.sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import spread
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import AesCtr, Prg
from flhe.math.ring_arrays import Elements
from flhe.schemes.base import Secrets, check_agrees
from flhe.schemes.bfv.keys import BfvPublic, BfvSecret, same_ring
from flhe.schemes.bfv.seal_blocks import Blocks
from flhe.schemes.bfv.sizes import BfvSizes, sizes_for
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import SealerShell, Shell, window, windows
from flhe.wire.secret import Random

if TYPE_CHECKING:
    from flhe.schemes.bfv.scheme import Bfv

MASKS = "bfv-a"
"""Label of the keys that masks are derived with."""


@dataclass(frozen=True, slots=True)
class BfvAdder(Shell):
    """Public parameters for a cohort; all that the server has.

    Parameters
    ----------
    scheme : Bfv
        The scheme's own parameters.
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    public : BfvPublic, optional
        Which key the epoch's members use; None before they have one.
    """

    scheme: Bfv
    cohort: int
    bits: int = 16
    public: BfvPublic | None = None

    def __post_init__(self) -> None:
        self._check_cohort()
        self._check_bits()
        _ = self.sizes
        if self.public is not None:
            self.public.check(self.scheme.ring)

    @property
    def sizes(self) -> BfvSizes:
        """Ring, moduli and slots."""
        return sizes_for(self.scheme.preset, self.cohort, self.bits)

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout: what the key is called among them."""
        sizes = self.sizes
        return {
            "name": self.name,
            "cohort": self.cohort,
            "bits": self.bits,
            "ring": self.scheme.ring,
            "key_id": b"" if self.public is None else self.public.key_id,
            "modulus": sizes.q.to_bytes(8, "big"),
            "plain_modulus": sizes.t.to_bytes(8, "big"),
            "slot_bits": sizes.digits.width,
            "slots": sizes.digits.per,
        }

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values: half of each block's, the last one whole."""
        return self.sizes.limbs.nbytes(self.sizes.count(length))

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        sizes = self.sizes
        sizes.limbs.add(total.data, part.data, sizes.count(part.length), [sizes.ring])
        return total.data

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme, a residue that is not below the modulus."""
        Shell.check(self, sealed)
        try:
            self.sizes.limbs.check(sealed.data, self.sizes.count(sealed.length))
        except ProtocolError as error:
            whose = f"of sender {sealed.senders[0]}" if len(sealed.senders) == 1 else "of a sum"
            raise ProtocolError(f"bfv: the ciphertext {whose}: {error}") from None

    def new_pair(self, random: Random) -> tuple[bytes, bytes]:
        """A fresh key, encoded, and what is public of it."""
        secret = BfvSecret.generate(self.scheme.ring, random)
        return secret.public.to_bytes(), secret.to_bytes()

    def check_pair(self, public: bytes, secret: bytes) -> None:
        """Refuse a key of another ring, one that was not drawn, or another one's public part."""
        own = BfvSecret.from_bytes(secret)
        own.check(self.scheme.ring)
        if own.public != BfvPublic.from_bytes(public):
            raise ProtocolError("bfv: the secret key does not belong to the public part")

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> BfvSealer:
        """A member's sealer: with the key, and the group key for masks."""
        key = BfvSecret.from_bytes(secrets.needed())
        return BfvSealer(self, key, secrets.group_key, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> BfvOpener:
        """A member's opener: likewise."""
        check_agrees(self.scheme, released)
        key = BfvSecret.from_bytes(secrets.needed())
        return BfvOpener(self, key, secrets.group_key, threads=threads)


@dataclass(slots=True)
class BfvSealer(SealerShell):
    """One client's side; errors are drawn by SEAL, from the system's own random source.

    Parameters
    ----------
    adder, group_key, rank, prg, threads
        As for `SealerShell`; `a` is derived from the group key. TenSEAL keeps Python's lock, so more
        threads than one save little.
    key : BfvSecret
        The epoch's key.
    """

    adder: BfvAdder
    key: BfvSecret
    group_key: bytes = field(repr=False)
    rank: int
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    _blocks: Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        SealerShell.__post_init__(self)
        self._blocks = _blocks_for(self.adder, self.key)

    def _seal(
        self, plain: Plain, slot: Slot, ready: None, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        sizes, blocks = self.adder.sizes, self._blocks
        length = plain.values.size + plain.extras.size
        count, data = sizes.count(length), empty(self.adder.nbytes(length), np.uint8)
        masks = PolynomialMasks.of(sizes.ring, MASKS, self.group_key, slot, (self.rank,), self.prg)

        def work(start: int, stop: int) -> None:
            for at, end in windows(start, stop, sizes.step):
                first, size = at // sizes.n, (end - at) // sizes.n
                values = np.zeros(size * sizes.block, np.int64)
                known = (first * sizes.block, min((first + size) * sizes.block, length))
                values[: known[1] - known[0]] = window((plain.values, plain.extras), *known)
                residues = blocks.encrypt(sizes.digits.join(values), masks.blocks(first, size))
                sizes.limbs.write(residues.reshape(-1), data, count, 0, at)

        spread(work, count, sizes.step, self.threads)
        return data


@dataclass(slots=True)
class BfvOpener:
    """A reader's side.

    Parameters
    ----------
    adder, key, group_key, prg, threads
        As for `BfvSealer`.
    """

    adder: BfvAdder
    key: BfvSecret
    group_key: bytes = field(repr=False)
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    _blocks: Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._blocks = _blocks_for(self.adder, self.key)

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Open a sum: signed integers, shape (total.length,).

        Raises
        ------
        ProtocolError
            Another scheme, a sender outside the cohort, data of another length, a residue that is not
            below the modulus; what is not the sum of its senders' vectors of this slot.
        """
        adder, sizes = self.adder, self.adder.sizes
        try:
            adder.check(total)
        except ProtocolError as error:
            raise ProtocolError(f"{error}; the round is refused") from None
        senders, count = len(total.senders), sizes.count(total.length)
        masks = PolynomialMasks.of(
            sizes.ring, MASKS, self.group_key, total.slot, total.senders, self.prg
        )
        out = empty(total.length, np.int32 if sizes.digits.width <= 32 else np.int64)

        def work(start: int, stop: int) -> None:
            for at, end in windows(start, stop, sizes.step):
                c, first = np.empty(end - at, np.uint64), at // sizes.n
                sizes.limbs.read(total.data, count, 0, at, c)
                rows = c.size // sizes.n
                slots = self._blocks.decrypt(c.reshape(rows, sizes.n), masks.blocks(first, rows))
                values, fits = sizes.digits.split(slots, senders)
                part = out[first * sizes.block :][: values.size]
                # One verdict: what exactly was off is not for whoever altered it to learn.
                if values[part.size :].any() or not fits:
                    raise ProtocolError(
                        "bfv: this is not the sum of what its senders encrypted in this round: it was "
                        "altered, or is opened with another key or other senders; the round is refused"
                    )
                part[:] = values[: part.size]

        spread(work, count, sizes.step, self.threads)
        return out


def _blocks_for(adder: BfvAdder, key: BfvSecret) -> Blocks:
    """TenSEAL with that key, once it proved to be the adder's."""
    same_ring(key, adder.scheme.ring)
    if adder.public is not None and adder.public != key.public:
        raise ConfigError("bfv: the secret key is not the one that the public part names")
    return Blocks.of(adder.sizes, key)
