"""EsaflAdder: learning with errors over a ring, one key a client, one step to open a sum.

    c = a s_i + p e + m             in Z_q[x] / (x^n + 1), for each block of n coefficients
    sum of c - a s = p E + M        s = sum of s_i, E = sum of e: small; M = sum of m, below p

Each client encrypts with a key of its own. Every client holds the sum s of all keys, which opens
only sums of all clients: with one ciphertext missing, s is wrong. A client that colludes with the
server learns no single update as long as two others do not collude (ESAFL, Theorem 5). The server
holds no key: `a` too is derived from the group key, per round, attempt and block. Two polynomials
under one `a` would reveal their difference (the paper's a^t serves a whole round).

A value v, within +-b, travels as v + b in a slot of a coefficient, and sums are exact. Noise beyond
its bound indicates a wrong key, a missing sender or an altered sum.

Source: ESAFL, Eqs. 3 to 5, with the corrections of docs/protocol.md ("ESHE, exactly"); keys, sizes:
`scheme` and `rlwe`; slots: `flhe.coding.coefficients`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.buffers import empty
from flhe.math.prg import drawn
from flhe.math.ring import Elements
from flhe.math.sampling import fill
from flhe.schemes.base import Opener, Sealer, Secrets
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.keys import Own, Total
from flhe.schemes.esafl.rlwe import Products, Rlwe, most_bits, rlwe_for
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.keyed import JointKey
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import ResidueShell, each_piece, window, windows
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random


@dataclass(frozen=True, slots=True)
class EsaflAdder(ResidueShell):
    """Public parameters, as for `Adder`; the server holds nothing else.

    Parameters
    ----------
    bits : int
        0 takes all bits that cost no more on the wire than 16 do: with one limb 24 for 10 members,
        20 for 100, 16 for 1000.
    key_id : bytes
        The members' name for the sum of their keys, 32 bytes; it reveals nothing to the server.
        Empty before the members have one, and if keys are fresh for each round.
    """

    scheme: Esafl
    cohort: int
    bits: int = 16
    key_id: bytes = b""

    def __post_init__(self) -> None:
        if self.bits == 0:
            self._check_cohort()
            object.__setattr__(self, "bits", most_bits(self.scheme.preset, self.cohort))
        ResidueShell.__post_init__(self)
        if len(self.key_id) not in (0, 32) or (self.key_id and self.scheme.per_sum_keys):
            raise ConfigError(
                "EsaflAdder(key_id=...): 32 bytes, and none where keys last for one round"
            )

    @property
    def sizes(self) -> Rlwe:
        """Ring, moduli and slots."""
        return rlwe_for(self.scheme.preset, self.cohort, self.bits)

    @property
    def dimension(self) -> int:
        """Coefficients of a key."""
        return self.sizes.n

    def draw_own(self, random: Random = secrets.token_bytes) -> Own:
        """Draw a fresh key of one member, int8 (dimension,)."""
        return eshe_keys.draw_own(self.dimension, random)

    def check_own(self, own: Own) -> None:
        """Refuse an invalid key of one member; ProtocolError."""
        eshe_keys.check_own(own)

    def check_total(self, total: Total) -> None:
        """Refuse an invalid sum of all members' keys; ProtocolError."""
        eshe_keys.check_total(total, self.cohort)

    def _joint(self, secrets: Secrets) -> JointKey:
        """Return a member's keys; ProtocolError if no honest member has such keys."""
        key = JointKey.from_bytes(secrets.needed())
        key.check(self)
        return key

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> EsaflSealer:
        """Return a member's sealer, with the group key and the member's long-lived key, if any."""
        own = None if self.scheme.per_sum_keys else self._joint(secrets).own
        return EsaflSealer(self, secrets.group_key, secrets.rank, own, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> EsaflOpener:
        """Return a member's opener, with the sum of all members' keys or of the fresh ones."""
        if released is None:
            total = self._joint(secrets).total
        else:
            total = eshe_keys.from_elements(released, self.dimension, self.cohort)
        return EsaflOpener(self, secrets.group_key, total, threads=threads)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout, the key's name included."""
        sizes = self.sizes
        return {
            **ResidueShell.parameters(self),
            "ring": self.scheme.ring,
            "keys": self.scheme.keys,
            "key_id": self.key_id,
            "moduli": [q.to_bytes(8, "big") for q in sizes.slots.moduli],
            "limb_bits": sizes.limb_bits,
            "slot_bits": sizes.slots.width,
            "slots": sizes.slots.per,
        }

    def products(self, group_key: bytes, slot: Slot, key: NDArray[Any]) -> Products:
        """Return a s for one slot, s being `key`: signed coefficients, shape (dimension,)."""
        keys = tuple(
            hkdf(group_key, "eshe-a", *slot.context(), self.scheme.ring, limb)
            for limb in range(len(self.sizes.slots.moduli))
        )
        return Products.of(self.sizes, keys, key)


@dataclass(frozen=True, slots=True)
class Draft:
    """A ciphertext in progress: the bytes to send, and residues and error, by pieces."""

    own: Own = field(repr=False)
    products: Products
    data: NDArray[np.uint8]
    pieces: list[Elements] = field(repr=False)
    noise: NDArray[np.int8] = field(repr=False)
    noise_key: bytes = field(repr=False)

    def mask(self, at: int, end: int) -> None:
        """Compute a s and draw e of the piece of coefficients `at` to `end`."""
        self.products.into(at, self.pieces[at // self.products.sizes.step])
        fill(self.noise_key, at, self.noise[at:end])


@dataclass(slots=True)
class EsaflSealer(Sealer):
    """One client's sealer; parameters as for `Sealer`. Errors and fresh keys are drawn.

    `own` is the client's key, int8 (dimension,); None if each ciphertext has a fresh one.
    """

    adder: EsaflAdder
    group_key: bytes = field(repr=False)
    rank: int
    own: Own | None = field(default=None, repr=False)
    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        Sealer.__post_init__(self)
        scheme = self.adder.scheme
        if (self.own is None) != scheme.per_sum_keys:
            has = "no key of its own" if scheme.per_sum_keys else "a key of its own"
            raise ConfigError(f"esafl: keys={scheme.keys!r}, so a sealer has {has}")

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Draw the error and compute a s: `encrypt` then only adds the values."""
        self.adder.check_mode(mode)
        draft = self._draft(slot, length)
        each_piece(draft.mask, draft.noise.size, self.adder.sizes.step, self.threads)
        self._keep(slot, length, draft)

    def _seal(
        self, plain: Plain, slot: Slot, ready: Draft | None, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        values, length = (plain.values, plain.extras), plain.values.size + plain.extras.size
        sizes = self.adder.sizes
        draft, slots, limbs = ready or self._draft(slot, length), sizes.slots, sizes.limbs

        def work(at: int, end: int) -> None:
            if ready is None:
                draft.mask(at, end)
            residues, noise = draft.pieces[at // sizes.step], draft.noise
            slots.lift(window(values, at * slots.per, end * slots.per), noise[at:end], residues)
            for limb, row in enumerate(() if _in_place(sizes) else residues):
                limbs.write(row, draft.data, noise.size, limb, at)

        each_piece(work, draft.noise.size, sizes.step, self.threads)
        if self.adder.scheme.per_sum_keys:
            with self._lock:
                self._seeds[slot] = eshe_keys.to_elements(draft.own, self.adder.cohort)
        return draft.data

    def _draft(self, slot: Slot, length: int) -> Draft:
        """Return room for a ciphertext of `length` values under a long-lived or fresh key."""
        adder, sizes = self.adder, self.adder.sizes
        own = adder.draw_own(self.random) if self.own is None else self.own
        data, count = empty(adder.nbytes(length), np.uint8), sizes.count(length)
        pieces: list[Elements] = []
        for at, end in windows(0, count, sizes.step):
            if _in_place(sizes):
                pieces.append(data.view(np.uint64)[at:end].reshape(1, -1))
            else:
                pieces.append(np.empty((len(sizes.slots.moduli), end - at), np.uint64))
        products = adder.products(self.group_key, slot, own)
        return Draft(own, products, data, pieces, np.empty(count, np.int8), drawn(self.random, 32))


def _in_place(sizes: Rlwe) -> bool:
    """Return whether residues travel as the words that they are computed in."""
    return sizes.limb_bits == 64


@dataclass(frozen=True, slots=True)
class EsaflOpener(Opener):
    """A reader's opener; parameters as for `Sealer`.

    `total` is s, int32 (dimension,): of all members, or with keys="round" of the senders of one sum.
    """

    adder: EsaflAdder
    group_key: bytes = field(repr=False)
    total: Total = field(repr=False)
    threads: int = 1

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        adder = self.adder
        senders = len(total.senders)
        if adder.scheme.needs_all_members and senders != adder.cohort:
            raise ProtocolError(
                f"esafl: a sum of {senders} of {adder.cohort} members, and the key opens sums of all "
                "only; the members must agree on a new one"
            )
        eshe_keys.check_total(self.total, senders)
        sizes = adder.sizes
        slots, count = sizes.slots, sizes.count(total.length)
        limbs = len(slots.moduli)
        products = adder.products(self.group_key, total.slot, self.total)
        out = empty(total.length, slots.dtype)

        def work(at: int, end: int) -> None:
            masks, residues = np.empty((2, limbs, end - at), np.uint64)
            products.into(at, masks)
            for limb, ring in enumerate(sizes.rings):
                adder.limbs.read(total.data, count, limb, at, residues[limb])
                ring.subtract(residues[limb], masks[limb], residues[limb])
            part = out[at * slots.per : end * slots.per]
            slots.lower(residues, part.size, senders, part)

        try:
            each_piece(work, count, sizes.step, self.threads)
        except ProtocolError as error:
            raise ProtocolError(f"esafl: {error}") from None
        return out
