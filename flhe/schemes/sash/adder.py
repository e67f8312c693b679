"""SashAdder: one mask a client, from a seed-homomorphic PRG.

    y_u = 2^g x_u + G(k_u)  mod 2^32                        k_u fresh for every ciphertext
    sum of y_u - G(sum of k_u) = 2^g (sum of x_u) + e,      |e| <= (|U| + 1) / 2

The holder of the sum of the seeds opens the sum of the vectors; no other party opens anything. A
client that drops out before the seeds are agreed on costs nothing. g guard bits below each value
absorb the error of the homomorphism, so sums are exact. An error beyond its bound indicates a wrong
key.

    G(k)_d = round(<a_d, k>)  from Z_q to Z_p,              q = 2^64 - 2^32 + 1,  p = 2^32

`a` is public. Its rows a_d are those of multiplications by uniform polynomials, one for each 2048
values. A value thus costs a few butterflies of an inverse NTT and eight bytes of `a`. (The paper's
`a` is a matrix: mu products and 8 mu bytes a value.) `a` is expanded again each time.

Masking-key agreement (`flhe.keys.agreement.masking`) gives the sum of seeds to the server
(`unmask="server"`, the paper's) or to the clients.

Source: SASH, Sec. 2.3, Fig. 2 and Theorem 1, with rounding to nearest; Banerjee, Peikert and Rosen,
EUROCRYPT 2012 (learning with rounding); docs/protocol.md for why q is prime.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import FieldElements, random_elements
from flhe.math.ring import Elements, PrimeRing
from flhe.math.threads import spread
from flhe.schemes.base import Adder, Opener, Sealer, Secrets
from flhe.schemes.presets import RingPreset
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import each_piece, window, windows
from flhe.wire.derive import hash_of
from flhe.wire.secret import Random

WORD = 32
"""log2(p): bits that one value takes on the wire."""

PIECE = 16
"""Ring elements that are processed at a time: 256 KiB of `a` at n = 2048, which stay in cache."""

SPARE = 3
"""Words of scratch space beyond the elements: AES comes in blocks of two."""

_CHUNK = 1 << 15
"""Values that are processed at a time."""

_TELLING = 0.99
"""Largest share of residues that a right key may give: with 1,000 values a wrong key passes once in
20,000."""


Then = Callable[[int, NDArray[np.uint32]], None]
"""What is done with a piece of lanes: its first place, and the piece."""


def nothing(at: int, piece: NDArray[np.uint32]) -> None:
    """Leave a piece as it is."""


def guard_bits(cohort: int) -> int:
    """Return g: bits below a value for the error of a sum of `cohort`, and to detect a wrong key."""
    g = 1
    while 1 << g < cohort + 2 or 2 * ((cohort + 1) // 2) + 1 > _TELLING * (1 << g):
        g += 1
    return g


def most_bits(cohort: int) -> int:
    """Return the bits of one value, sign included, for which a sum of `cohort` values has room."""
    return WORD - guard_bits(cohort) - (cohort - 1).bit_length()


Seed = NDArray[np.uint64]
"""A seed: uniform field elements, shape (dimension,)."""


@dataclass(frozen=True, slots=True)
class SashAdder(Adder):
    """Public parameters, as for `Adder`; the server holds nothing else.

    0 bits take all that the cohort leaves room for, 24 for 10 members, 20 for 50, 18 for 100, 15
    for 256, 12 for 1000. A value always takes 32 bits on the wire.
    """

    scheme: Sash
    cohort: int
    bits: int = 0

    def __post_init__(self) -> None:
        self._check_cohort()
        most = most_bits(self.cohort)
        if self.bits == 0:
            object.__setattr__(self, "bits", most)
        if not 2 <= self.bits <= most:
            raise ConfigError(
                f"{type(self).__name__}(bits={self.bits}): a sum of {self.cohort} values has room for "
                f"2 to {most} bits; bits=0 takes all of them"
            )

    @property
    def guard(self) -> int:
        """g: guard bits below each value."""
        return guard_bits(self.cohort)

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> SashSealer:
        """Return a member's sealer: it needs its rank only, and draws the rest."""
        return SashSealer(self, secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> SashOpener:
        """Return a member's opener, with the sum of the senders' seeds."""
        assert released is not None
        return SashOpener(self, released, threads=threads)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout."""
        return {
            **Adder.parameters(self),
            "preset": self.scheme.preset,
            "unmask": self.scheme.unmask,
            "guard": self.guard,
        }

    def nbytes(self, length: int) -> int:
        """Return the bytes of a ciphertext of `length` values: four each."""
        return length * (WORD // 8)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        lanes = _lanes(total.data)  # a copy if the total is not aligned
        np.add(lanes, _lanes(part.data), out=lanes)
        return lanes.view(np.uint8)

    def expand(
        self,
        slot: Slot,
        seed: Seed,
        out: NDArray[np.uint32],
        threads: int = 1,
        then: Then = nothing,
    ) -> None:
        """Write G(seed) for `slot`'s epoch into `out`, shape (length,).

        The result does not depend on `threads`: work is split at ring elements. `then` is called
        for each piece once its mask is there, and in a core's own cache.
        """
        preset = self.scheme.parameters_of_prg
        n, public = preset.dimension, public_key(preset, slot)
        ring = PrimeRing(n)
        transformed = ring.forward(seed)

        def work(start: int, stop: int) -> None:
            elements = FieldElements(public)
            scratch = np.empty(PIECE * n + SPARE, np.uint64)
            for at, end in windows(start, stop, PIECE * n):
                part, count = out[at:end], -(-(end - at) // n)
                a = elements.blocks(at // n, count, n, scratch)
                if part.size == count * n:
                    ring.products(transformed, a, part.reshape(count, n), rounded=True)
                else:
                    made = ring.products(transformed, a, rounded=True)
                    part[:] = made.reshape(-1)[: part.size]
                then(at, part)

        spread(work, out.size, n, threads)


def public_key(preset: RingPreset, slot: Slot) -> bytes:
    """Return the public seed of `a`, 32 bytes: a hash that binds it to one epoch of one run.

    `a` may serve every round of the epoch, because seeds are fresh for each ciphertext. The server
    does not influence the epoch's id, so it cannot choose an `a` with a trapdoor.
    """
    return hash_of("sash-a", preset.name, slot.run_id, slot.roster_hash, slot.epoch)


def _lanes(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a ciphertext as integers modulo 2^32, little-endian on the wire."""
    if data.ctypes.data % 4:  # bytes that were received need not be aligned
        data = data.copy()
    return data.view(np.dtype("<u4"))


Masked = tuple[Seed, NDArray[np.uint32]]
"""A fresh seed, and lanes that hold its mask."""


@dataclass(slots=True)
class SashSealer(Sealer):
    """One client's sealer: it draws a fresh seed for each ciphertext; parameters as for `Sealer`."""

    adder: SashAdder
    rank: int
    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Draw a seed and expand it: `encrypt` then only adds the values."""
        self.adder.check_mode(mode)
        self._keep(slot, length, self._mask(slot, length))

    def _seal(
        self, plain: Plain, slot: Slot, ready: Masked | None, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        from flhe.schemes.sash import kernels

        values, guard = (plain.values, plain.extras), self.adder.guard
        length = plain.values.size + plain.extras.size

        def work(at: int, piece: NDArray[np.uint32]) -> None:
            part = window(values, at, at + piece.size)
            narrow = part if part.dtype in (np.int16, np.int32) else part.astype(np.int32)
            kernels.mask(narrow, guard, piece)

        seed, lanes = ready or self._mask(slot, length, work)
        if ready is not None:
            each_piece(lambda at, end: work(at, lanes[at:end]), length, _CHUNK, self.threads)
        with self._lock:
            self._seeds[slot] = seed
        return lanes.view(np.uint8)

    def _mask(self, slot: Slot, length: int, then: Then = nothing) -> Masked:
        preset = self.adder.scheme.parameters_of_prg
        seed = random_elements(preset.dimension, self.random)
        lanes = empty(length, np.uint32)
        self.adder.expand(slot, seed, lanes, self.threads, then)
        return seed, lanes


@dataclass(frozen=True, slots=True)
class SashOpener(Opener):
    """A reader's opener for one sum; `seed` is the senders' sum modulo q, uint64 (dimension,)."""

    adder: SashAdder
    seed: Seed = field(repr=False)
    threads: int = 1

    def _open(self, total: Sealed) -> NDArray[np.int32]:
        from flhe.schemes.sash import kernels

        bound, guard = (len(total.senders) + 1) // 2, self.adder.guard
        data, lanes = _lanes(total.data), empty(total.length, np.uint32)
        worst: list[int] = []

        def work(at: int, piece: NDArray[np.uint32]) -> None:
            worst.append(kernels.unmask(data[at : at + piece.size], guard, piece))

        self.adder.expand(total.slot, self.seed, lanes, self.threads, work)
        if max(worst, default=0) > bound:
            raise ProtocolError(
                f"sash: the sum is off by more than the {bound} that {len(total.senders)} senders "
                "explain: it was opened with other seeds, or altered"
            )
        out: NDArray[np.int32] = lanes.view(np.int32)
        return out
