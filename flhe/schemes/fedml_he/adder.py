"""FedmlHeAdder: values as reals in the slots of CKKS, encrypted by TenSEAL under a shared key.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

(c, a) is the ciphertext that TenSEAL would have made had it drawn a for c1: m + e = c0 + c1 s does not
depend on c1. So half of a ciphertext travels, up and down. `a` comes from the group key, per slot and
sender (`flhe.schemes.polynomial_masks`): two plaintexts under one `a` would show their difference.
The server adds residues. It holds nothing to decrypt with, and not even TenSEAL.

Members share s: together with the server one of them reads single updates, as under FLASHE.

Values are integers on the codec's grid. The noise of a sum stays below a quarter of a step
(`flhe.schemes.fedml_he.sizes` proves it for the cohort), so rounding gives the sum exactly, on every
machine, and takes off the noise: nothing of what is opened depends on s or on an error, which is how
decrypted CKKS values otherwise give the key away (Li and Micciancio, EUROCRYPT 2021). A slot that lies
off the grid, or beyond what its senders add up to, says that it is not their sum: with another key,
round or set of senders slots are as good as random. That is no proof of authorship: whoever relays a
sum can add to it, which `flhe.schemes.sum_mac` is there to show.

Vectors are worked on piece by piece: beside a vector and its ciphertext that takes a few megabytes.

Source: FedML-HE, Algorithm 1 and Sec. 2.3, without selection, which is the codec's; CKKS
(ASIACRYPT 2017); docs/protocol.md.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.limb_packing import LimbPacking
from flhe.coding.pack import spread
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import AesCtr, Prg
from flhe.math.ring_arrays import Elements
from flhe.schemes.base import Secrets, check_agrees
from flhe.schemes.fedml_he.keys import CkksPublic, CkksSecret
from flhe.schemes.fedml_he.presets import ckks_preset
from flhe.schemes.fedml_he.seal_blocks import Blocks, Dither
from flhe.schemes.fedml_he.sizes import CkksSizes, sizes_for
from flhe.schemes.polynomial_masks import PolynomialMasks
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import SealerShell, Shell, window, windows
from flhe.wire.secret import Random

if TYPE_CHECKING:
    from flhe.schemes.fedml_he.scheme import FedmlHe

MASKS = "ckks-a"
"""Label of the keys that masks are derived with."""


@dataclass(frozen=True, slots=True)
class FedmlHeAdder(Shell):
    """Public parameters for a cohort; all that the server has.

    Parameters
    ----------
    scheme : FedmlHe
        The scheme's own parameters.
    cohort : int
        N, members of the epoch, 2 to 1024.
    bits : int
        Bits of one encoded value, sign included, 2 to 32.
    public : CkksPublic, optional
        TenSEAL's context without a key, and which key the epoch's members use. None before they have
        one.
    """

    scheme: FedmlHe
    cohort: int
    bits: int = 16
    public: CkksPublic | None = None

    def __post_init__(self) -> None:
        self._check_cohort()
        self._check_bits()
        sizes = self.sizes
        if self.public is not None:
            self.public.check(self.scheme.ring, sizes)

    @property
    def sizes(self) -> CkksSizes:
        """Ring, modulus, scale and slots."""
        return sizes_for(ckks_preset(self.scheme.ring), self.cohort, self.bits)

    @property
    def limbs(self) -> LimbPacking:
        """How residues lie in the ciphertext."""
        return self.sizes.limbs

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
            "scale_bits": sizes.scale_bits,
            "slot_bits": sizes.width,
            "slots": sizes.per,
        }

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values: half of each block's, the last one whole."""
        return self.limbs.nbytes(self.sizes.count(length))

    def check_public(self, data: bytes) -> CkksPublic:
        """The public part that a server was given; ProtocolError unless it holds no key.

        Byte for byte it must be the context of this ring, with this modulus, and nothing else.
        """
        public = CkksPublic.from_bytes(data)
        public.check(self.scheme.ring, self.sizes)
        return public

    def new_pair(self, random: Random) -> tuple[bytes, bytes]:
        """A fresh key, encoded, and what is public of it."""
        secret = CkksSecret.generate(self.scheme.ring, random)
        return secret.public(self.sizes).to_bytes(), secret.to_bytes()

    def check_pair(self, public: bytes, secret: bytes) -> None:
        """Refuse a key of another ring, one that was not drawn, or another one's context."""
        own = CkksSecret.from_bytes(secret)
        own.check(self.scheme.ring)
        if own.public(self.sizes) != self.check_public(public):
            raise ProtocolError("fedml-he: the secret key does not belong to the public context")

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> FedmlHeSealer:
        """A member's sealer: with the key, and the group key for masks."""
        key = CkksSecret.from_bytes(secrets.needed())
        return FedmlHeSealer(self, key, secrets.group_key, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> FedmlHeOpener:
        """A member's opener: likewise."""
        check_agrees(self.scheme, released)
        key = CkksSecret.from_bytes(secrets.needed())
        return FedmlHeOpener(self, key, secrets.group_key, threads=threads)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        count = self.sizes.count(part.length)
        self.limbs.add(total.data, part.data, count, [self.sizes.ring])
        return total.data

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme, a residue that is not below the modulus."""
        Shell.check(self, sealed)
        try:
            self.limbs.check(sealed.data, self.sizes.count(sealed.length))
        except ProtocolError as error:
            whose = f"of sender {sealed.senders[0]}" if len(sealed.senders) == 1 else "of a sum"
            raise ProtocolError(f"fedml-he: the ciphertext {whose}: {error}") from None


@dataclass(slots=True)
class FedmlHeSealer(SealerShell):
    """One client's side.

    Errors, and the masks that are replaced, are drawn by SEAL, from the system's own random source.

    Parameters
    ----------
    adder, group_key, rank, prg, threads, random
        As for `SealerShell`; `a` is derived from the group key, and dither is drawn, which makes
        roundings random. TenSEAL keeps Python's lock, so more threads than one save little.
    key : CkksSecret
        The epoch's key.
    """

    adder: FedmlHeAdder
    key: CkksSecret
    group_key: bytes = field(repr=False)
    rank: int
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    random: Random = field(default=secrets.token_bytes, repr=False)
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
        dither = Dither.of(sizes, self.prg, self.random)

        def work(start: int, stop: int) -> None:
            for at, end in windows(start, stop, sizes.step):
                first, size = at // sizes.n, (end - at) // sizes.n
                values = np.zeros(size * sizes.block, np.int64)
                known = (first * sizes.block, min((first + size) * sizes.block, length))
                values[: known[1] - known[0]] = window((plain.values, plain.extras), *known)
                slots = sizes.digits.join(values) + dither.blocks(first, size)
                residues = blocks.encrypt(slots, masks.blocks(first, size))
                sizes.limbs.write(residues.reshape(-1), data, count, 0, at)

        spread(work, count, sizes.step, self.threads)
        return data


@dataclass(slots=True)
class FedmlHeOpener:
    """A reader's side.

    Parameters
    ----------
    adder, key, group_key, prg, threads
        As for `FedmlHeSealer`.
    """

    adder: FedmlHeAdder
    key: CkksSecret
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
        sizes = self.adder.sizes
        try:
            self.adder.check(total)
        except ProtocolError as error:
            raise ProtocolError(f"{error}; the round is refused") from None
        senders, count = len(total.senders), sizes.count(total.length)
        masks = self._masks(total)
        out = empty(total.length, np.int32 if sizes.width <= 32 else np.int64)

        def work(start: int, stop: int) -> None:
            for at in range(start, stop, sizes.step):
                slots, residual = self._slots(total, masks, at)
                values, fits = sizes.digits.split(slots, senders)
                part = out[at // sizes.n * sizes.block :][: values.size]
                stray = values[part.size :].any()
                # One verdict: what exactly was off is not for whoever altered it to learn.
                if stray or not fits or residual > sizes.residual(senders):
                    raise ProtocolError(
                        "fedml-he: this is not the sum of what its senders encrypted in this round: it "
                        "was altered, or is opened with another key or other senders; the round is "
                        "refused"
                    )
                part[:] = values[: part.size]

        spread(work, count, sizes.step, self.threads)
        return out

    def residual(self, total: Sealed) -> float:
        """How far the furthest slot of a sum lies off the grid, in steps of it; 0.5 at most.

        Below `CkksSizes.residual` for every honest sum: for measurements.
        """
        masks, sizes = self._masks(total), self.adder.sizes
        pieces = range(0, sizes.count(total.length), sizes.step)
        return max((self._slots(total, masks, at)[1] for at in pieces), default=0.0)

    def _masks(self, total: Sealed) -> PolynomialMasks:
        return PolynomialMasks.of(
            self.adder.sizes.ring, MASKS, self.group_key, total.slot, total.senders, self.prg
        )

    def _slots(
        self, total: Sealed, masks: PolynomialMasks, at: int
    ) -> tuple[NDArray[np.int64], float]:
        """Slots of the piece from residue `at` on, rounded, and how far the furthest was off."""
        sizes = self.adder.sizes
        count = sizes.count(total.length)
        c = np.empty(min(sizes.step, count - at), np.uint64)
        sizes.limbs.read(total.data, count, 0, at, c)
        rows = c.size // sizes.n
        slots = self._blocks.decrypt(c.reshape(rows, sizes.n), masks.blocks(at // sizes.n, rows))
        nearest = np.rint(slots)
        residual = float(np.abs(np.subtract(slots, nearest, out=slots)).max())
        return nearest.astype(np.int64), residual


def _blocks_for(adder: FedmlHeAdder, key: CkksSecret) -> Blocks:
    """TenSEAL with that key, once it proved to be the adder's."""
    if key.ring != adder.scheme.ring:
        raise ConfigError(f"fedml-he: a key of ring {key.ring!r}, not of {adder.scheme.ring!r}")
    if adder.public is not None and adder.public.key_id != key.key_id:
        raise ConfigError("fedml-he: the secret key is not the one that the public part names")
    return Blocks.of(adder.sizes, key)
