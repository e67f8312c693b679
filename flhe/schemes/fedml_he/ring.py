"""FedML-HE: values as reals in the slots of CKKS, encrypted by TenSEAL under a key that members share.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

(c, a) is the ciphertext that TenSEAL would have made had it drawn a for c1: m + e = c0 + c1 s does not
depend on c1. So half of a ciphertext travels, up and down. `a` comes from the group key, per slot and
sender (`flhe.schemes.fedml_he.masks`): two plaintexts under one `a` would show their difference.
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
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import spread
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import AesCtr, Prg
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.masks import Masks
from flhe.schemes.fedml_he.scheme import NAME, Ckks
from flhe.schemes.fedml_he.seal_blocks import Blocks, Dither
from flhe.schemes.sealed import Sealed, Slot, check_senders
from flhe.schemes.shell import SealerShell
from flhe.wire.secret import Random

__all__ = ["NAME", "Ckks", "CkksOpener", "CkksSealer"]


@dataclass(slots=True)
class CkksSealer(SealerShell):
    """One client's side.

    Errors, and the masks that are replaced, are drawn by SEAL, from the system's own random source.

    Parameters
    ----------
    scheme : Ckks
        Public parameters.
    key : CkksSecret
        The epoch's key.
    group_key : bytes
        K_G of the epoch, 32 bytes: what `a` is derived from.
    rank : int
        This client's rank in the agreed member list; never a number from the server.
    prg : Prg
        Who computes AES.
    threads : int
        Threads to encrypt on. TenSEAL keeps Python's lock, so more than one saves little.
    random : callable
        Where dither comes from, which makes roundings random: n -> n uniform bytes.
    """

    scheme: Ckks
    key: CkksSecret
    group_key: bytes = field(repr=False)
    rank: int
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    random: Random = field(default=secrets.token_bytes, repr=False)
    _used: set[Slot] = field(default_factory=set, repr=False)
    _ready: dict[tuple[Slot, int], None] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _blocks: Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.scheme.cohort)
        self._blocks = _blocks_for(self.scheme, self.key)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Nothing: TenSEAL cannot encrypt before it has values, and a s is soon multiplied."""
        self.scheme.check_mode(mode)

    def _seal(self, plain: Plain, slot: Slot, length: int, ready: None) -> NDArray[np.uint8]:
        scheme, sizes, blocks = self.scheme, self.scheme.sizes, self._blocks
        count = sizes.count(length)
        data = empty(scheme.nbytes(length), np.uint8)
        masks = Masks.of(sizes, self.group_key, slot, (self.rank,), self.prg)
        dither = Dither.of(sizes, self.prg, self.random)

        def work(start: int, stop: int) -> None:
            held = np.empty(sizes.step // sizes.n * sizes.block, np.int64)
            for at in range(start, stop, sizes.step):
                size = min(sizes.step, stop - at) // sizes.n
                values = held[: size * sizes.block]
                _fill(values, (plain.values, plain.extras), at // sizes.n * sizes.block)
                slots = sizes.join(values) + dither.blocks(at // sizes.n, size)
                residues = blocks.encrypt(slots, masks.blocks(at // sizes.n, size))
                sizes.limbs.write(residues.reshape(-1), data, count, 0, at)

        spread(work, count, sizes.step, self.threads)
        return data


@dataclass(slots=True)
class CkksOpener:
    """A reader's side.

    Parameters
    ----------
    scheme, key, group_key, prg, threads
        As for `CkksSealer`.
    """

    scheme: Ckks
    key: CkksSecret
    group_key: bytes = field(repr=False)
    prg: Prg = field(default_factory=AesCtr)
    threads: int = 1
    _blocks: Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._blocks = _blocks_for(self.scheme, self.key)

    def decrypt(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        """Open a sum: signed integers, shape (total.length,).

        Raises
        ------
        ProtocolError
            Another scheme, a sender outside the cohort, data of another length, a residue that is not
            below the modulus; what is not the sum of its senders' vectors of this slot.
        """
        scheme, sizes = self.scheme, self.scheme.sizes
        try:
            scheme.check(total)
        except ProtocolError as error:
            raise ProtocolError(f"{error}; the round is refused") from None
        senders, count = len(total.senders), sizes.count(total.length)
        masks = self._masks(total)
        out = empty(total.length, np.int32 if sizes.width <= 32 else np.int64)

        def work(start: int, stop: int) -> None:
            for at in range(start, stop, sizes.step):
                slots, residual = self._slots(total, masks, at)
                values, fits = sizes.split(slots, senders)
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
        masks, sizes = self._masks(total), self.scheme.sizes
        pieces = range(0, sizes.count(total.length), sizes.step)
        return max((self._slots(total, masks, at)[1] for at in pieces), default=0.0)

    def _masks(self, total: Sealed) -> Masks:
        return Masks.of(self.scheme.sizes, self.group_key, total.slot, total.senders, self.prg)

    def _slots(self, total: Sealed, masks: Masks, at: int) -> tuple[NDArray[np.int64], float]:
        """Slots of the piece from residue `at` on, rounded, and how far the furthest was off."""
        sizes = self.scheme.sizes
        count = sizes.count(total.length)
        c = np.empty(min(sizes.step, count - at), np.uint64)
        sizes.limbs.read(total.data, count, 0, at, c)
        rows = c.size // sizes.n
        slots = self._blocks.decrypt(c.reshape(rows, sizes.n), masks.blocks(at // sizes.n, rows))
        nearest = np.rint(slots)
        residual = float(np.abs(np.subtract(slots, nearest, out=slots)).max())
        return nearest.astype(np.int64), residual


def _blocks_for(scheme: Ckks, key: CkksSecret) -> Blocks:
    """TenSEAL with that key, once it proved to be the scheme's."""
    if key.ring != scheme.ring:
        raise ConfigError(f"fedml-he: a key of ring {key.ring!r}, the scheme's is {scheme.ring!r}")
    if scheme.public is not None and scheme.public.key_id != key.key_id:
        raise ConfigError("fedml-he: the secret key is not the one that the public part names")
    return Blocks.of(scheme.sizes, key)


def _fill(out: NDArray[np.int64], arrays: Sequence[NDArray[Any]], start: int) -> None:
    """Values from number `start` on of arrays that follow each other, then zeros."""
    out[:] = 0
    at = -start
    for array in arrays:
        low, high = max(at, 0), min(at + array.size, out.size)
        if low < high:
            out[low:high] = array[low - at : high - at]
        at += array.size
